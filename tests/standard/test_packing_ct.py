"""The packings of compressed-tensors against words worked out by hand (formats.md 4.3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from humming_convert.standard.packing import PACKINGS, stream_pack
from humming_convert.standard.packing_ct import padded_pack, padded_unpack, zero_codes, zero_words

EIGHT = np.arange(20, dtype=np.uint8) % 8


def test_the_padded_example_of_the_format_page() -> None:
    assert [f"{w:08X}" for w in padded_pack(EIGHT, 3).view(np.uint32)] == ["08FAC688", "1A23EB1A"]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_widths_that_divide_a_word_are_the_same_in_both_layouts(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 64), np.uint8)
    np.testing.assert_array_equal(padded_pack(codes, bits), stream_pack(codes, bits))


@given(
    st.integers(1, 8).flatmap(
        lambda b: st.tuples(
            st.just(b), hnp.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(1, 70)), elements=st.integers(0, (1 << b) - 1))
        )
    )
)
def test_unpacking_undoes_packing(case: tuple[int, np.ndarray]) -> None:
    bits, codes = case
    np.testing.assert_array_equal(padded_unpack(padded_pack(codes, bits), bits, codes.shape[1]), codes)
    np.testing.assert_array_equal(zero_codes(zero_words(codes, bits), bits, codes.shape[0]), codes)


def test_the_packing_is_registered_for_whoever_unpickles_a_block() -> None:
    codes = np.random.default_rng(5).integers(0, 32, (4, 30), np.uint8)
    np.testing.assert_array_equal(PACKINGS["padded"](padded_pack(codes, 5), 5, 4, 30), codes)


def test_zero_points_run_along_the_rows() -> None:
    codes = np.arange(8, dtype=np.uint8)[:, None]
    assert [f"{int(w):08X}" for w in zero_words(codes, 4).view(np.uint32).reshape(-1)] == ["76543210"]
