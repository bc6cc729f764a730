"""Programs: calls that are made in order up to the first that gives another result, linked to bases, repeated and joined."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_convert import passes
from humming_convert.passes import At, Listing, Program
from humming_convert.passes.aux_values import address

SOURCE, TARGET = 2, 3


def copies(*moves: tuple[int, int, int]) -> Program:
    """(from, to, bytes): copies from the source's base to the target's, each compared afterwards."""
    listing = Listing()
    for start, to, nbytes in moves:
        listing.call(passes.function("memcpy"), At(TARGET, to), At(SOURCE, start), nbytes, want=At(TARGET, to))
        listing.call(passes.function("memcmp"), At(TARGET, to), At(SOURCE, start), nbytes)
    return listing.done()


def bases(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.array([0, 0, address(source), address(target)], np.int64)


def test_calls_are_made_at_any_bases() -> None:
    program = copies((0, 8, 8), (8, 0, 8))
    for seed in range(3):
        source, target = np.random.default_rng(seed).integers(0, 256, 16, np.uint8), np.zeros(16, np.uint8)
        linked = program.linked(bases(source, target))
        assert passes.make(linked.calls) == (4, 0)
        assert target.tolist() == [*source[8:], *source[:8]]


def test_the_first_other_result_ends_them() -> None:
    source, target = np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)
    listing = Listing()
    compare = passes.function("memcmp")
    for offset in (0, 0, 4, 0):
        listing.call(compare, At(TARGET), At(SOURCE, offset), 4)
    calls = listing.done().linked(bases(source, source)).calls
    assert passes.make(calls)[0] == 2
    assert passes.make(calls, 3) == (4, 0)
    assert passes.make(calls, 4) == (4, 0)
    assert target.sum() == 0


@given(st.integers(4, 9), st.integers(1, 4), st.integers(0, 5), st.integers(0, 5))
def test_what_repeats_is_worked_out_from_three(count: int, nbytes: int, step: int, to: int) -> None:
    def period(i: int) -> Program:
        return copies((i * step, i * to, nbytes), (i * step + 1, i * to + 3, nbytes))

    found = passes.repeated(period(0), period(1), period(count - 1), count)
    assert found is not None
    want = passes.joined([period(i) for i in range(count)])
    assert np.array_equal(found.calls, want.calls)
    assert np.array_equal(found.call_bases, want.call_bases)


def test_what_does_not_repeat_is_not_taken_for_it() -> None:
    assert passes.repeated(copies((0, 0, 4)), copies((4, 4, 4)), copies((8, 9, 4)), 3) is None
    assert passes.repeated(copies((0, 0, 4)), copies((4, 4, 4)), copies((8, 8, 2)), 3) is None
    assert passes.repeated(copies((0, 0, 4)), copies((4, 4, 4)), copies((8, 8, 4), (9, 9, 1)), 3) is None


def test_a_function_that_the_library_lacks_is_an_error() -> None:
    with pytest.raises(StopIteration):
        passes.function("no_such_function_anywhere")


def test_the_error_of_the_call_that_failed_is_told() -> None:
    listing = Listing()
    for fd in (-1, -1):
        listing.call(passes.function("fsync"), fd)
    assert passes.make(listing.done().linked(np.zeros(4, np.int64)).calls) == (0, errno.EBADF)
