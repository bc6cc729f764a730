"""Passes over scales against their numpy references."""

from __future__ import annotations

import numpy as np
import pytest

from humming_convert import passes
from humming_convert.layouts import e8m0, padding
from humming_convert.standard import expr


@pytest.mark.parametrize("shape", [(0,), (1,), (999,), (300, 257)])
def test_numbers_are_looked_up_and_counted(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    codes, table = rng.integers(0, 1 << 16, shape, np.uint16), rng.integers(0, 1 << 16, 1 << 16, np.uint16)
    (got, counts), (want, wanted) = passes.look_up(codes, table), expr.look_up(codes, table)
    assert np.array_equal(got, want)
    assert np.array_equal(counts, wanted)


def test_equal_numbers_in_a_row_are_all_counted() -> None:
    codes = np.full(1000, 77, np.uint16)
    assert passes.look_up(codes, np.zeros(1 << 16, np.uint16))[1][77] == 1000


@pytest.mark.parametrize("groups", [1, 3, 15, 16, 17, 31, 32, 90, 448])
def test_rows_of_e8m0_bytes(groups: int) -> None:
    codes = np.random.default_rng(groups).integers(0, 256, (33, groups), np.uint8)
    for got, want in zip(passes.SMALL_PASSES.row_range(codes), e8m0.row_range(codes), strict=True):
        assert np.array_equal(got, want)
    low = np.random.default_rng(1).integers(0, 256, 33, np.uint8)
    for plus in (0, 3, 200):
        made, wanted = ([np.empty_like(codes), np.empty_like(codes)] for _ in range(2))
        passes.SMALL_PASSES.raise_rows(codes, low, plus, *made)
        e8m0.raise_rows(codes, low, plus, *wanted)
        assert np.array_equal(made, wanted)


@pytest.mark.parametrize("row_bytes", [16, 17, 31, 32, 90, 448])
@pytest.mark.parametrize("more", [0, 1, 5])
@pytest.mark.parametrize("fill", [0, 127, passes.ROW_LARGEST])
def test_rows_become_longer_and_lower(row_bytes: int, more: int, fill: int) -> None:
    rows = np.random.default_rng(row_bytes).integers(0, 256, (33, row_bytes), np.uint8)
    pitch, minus = row_bytes + more, 200
    out, low = np.zeros((33, pitch), np.uint8), np.array([minus])
    listing = passes.Listing()
    passes.add_pad_rows(listing, 33, row_bytes, passes.At(2), passes.At(3), pitch, fill, passes.At(4))
    linked = listing.done().linked(np.array([0, 0, passes.address(rows), passes.address(out), int(low[0])]))
    assert passes.make(linked.calls) == (1, 0)
    if fill == passes.ROW_LARGEST:
        want = padding.extend_fused(rows[None], 33, pitch, with_maximum=True)[0]
    else:
        want = padding.extend(rows[None], 33, pitch, fill)[0]
    assert np.array_equal(out, want - np.uint8(minus))
