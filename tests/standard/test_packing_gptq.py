"""Packings and zero-point operations of GPTQ, AWQ and Marlin, against the words that formats.md prints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from humming_convert.standard.expr import OPERATIONS
from humming_convert.standard.packing import PACKINGS, stream_pack, stream_unpack
from humming_convert.standard.packing_gptq import awq_fast_pack, awq_pack, marlin_order, marlin_pack, planar_pack, planar_unpack
from humming_convert.standard.zero_points import fast_zeros, zeros_awq


def words(text: str) -> NDArray[np.int32]:
    return np.array([int(x, 16) for x in text.split()], np.uint32).view(np.int32)


def codes(bits: int, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 1 << bits, (n, k), np.uint8)


@pytest.mark.parametrize(
    ("bits", "period", "text"),
    [(5, 32, "76543210 FEDCBA98 76543210 FEDCBA98 FFFF0000"), (3, 8, "E4E4E4E4 E4E4E4E4 F0F0F0F0")],
)
def test_planes_are_the_words_of_the_format_page(bits: int, period: int, text: str) -> None:
    c = (np.arange(32) % period).astype(np.uint8)
    np.testing.assert_array_equal(planar_pack(c, bits), words(text))
    np.testing.assert_array_equal(planar_unpack(words(text), bits, 32), c)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_planes_of_widths_that_divide_32_are_the_plain_stream(bits: int) -> None:
    c = codes(bits, 8, 64)
    np.testing.assert_array_equal(planar_pack(c, bits), stream_pack(c, bits))


@settings(max_examples=30, deadline=None)
@given(bits=st.integers(2, 8), n=st.integers(1, 5), blocks=st.integers(1, 4), seed=st.integers(0, 1000))
def test_planar_columns_come_back(bits: int, n: int, blocks: int, seed: int) -> None:
    c = codes(bits, n, 32 * blocks, seed)
    np.testing.assert_array_equal(PACKINGS["gptq_planar"](planar_pack(c, bits).T, bits, n, 32 * blocks), c)


def test_three_bit_codes_cross_words_as_the_format_page_shows() -> None:
    column = words("88FAC688 C688FAC6 FAC688FA")[:, None]
    np.testing.assert_array_equal(PACKINGS["gptq"](column, 3, 1, 32)[0], np.arange(32) % 8)


def test_awq_word_of_the_format_page_holds_columns_in_order() -> None:
    np.testing.assert_array_equal(PACKINGS["awq"](words("75316420")[None], 4, 8, 1)[:, 0], np.arange(8))
    np.testing.assert_array_equal(awq_pack(np.arange(8, dtype=np.uint8)[None]), words("75316420")[None])


def test_awq_columns_come_back() -> None:
    c = codes(4, 24, 40)
    np.testing.assert_array_equal(PACKINGS["awq"](awq_pack(np.ascontiguousarray(c.T)), 4, 24, 40), c)


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_awq_of_other_widths_is_the_plain_stream_along_n(bits: int) -> None:
    c = codes(bits, 20, 7)
    np.testing.assert_array_equal(PACKINGS["awq_stream"](stream_pack(np.ascontiguousarray(c.T), bits), bits, 20, 7), c)


@pytest.mark.parametrize(("n", "k", "row", "column", "nibble"), [(0, 0, 0, 0, 0), (0, 8, 0, 0, 1), (1, 0, 0, 16, 0), (3, 63, 0, 63, 3)])
def test_gemv_fast_places_are_those_of_the_format_page(n: int, k: int, row: int, column: int, nibble: int) -> None:
    stored = np.zeros((1, 64), np.uint16)
    stored[row, column] = 9 << (4 * nibble)
    c = PACKINGS["awq_fast"](stored.view(np.int16), 4, 4, 64)
    assert c[n, k] == 9
    assert c.sum() == 9


def test_gemv_fast_tiles_come_back() -> None:
    c = codes(4, 12, 192)
    np.testing.assert_array_equal(PACKINGS["awq_fast"](awq_fast_pack(c), 4, 12, 192), c)


def test_marlin_order_is_a_permutation_and_begins_as_its_formula() -> None:
    order = marlin_order()
    np.testing.assert_array_equal(np.sort(order), np.arange(1024))
    # t = 0, j = 0: rows 0 1 8 9 of the left half, then of the right; taken in the order 0 2 4 6 1 3 5 7
    left = [0, 16, 128, 144]
    np.testing.assert_array_equal(order[:8], np.array([*left, *(x + 8 for x in left)])[[0, 2, 4, 6, 1, 3, 5, 7]])


def test_marlin_tiles_come_back() -> None:
    c = codes(4, 128, 48)
    np.testing.assert_array_equal(PACKINGS["marlin"](marlin_pack(c), 4, 128, 48), c)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_word_rule_undoes_a_subtraction_with_borrows(bits: int) -> None:
    zeros = codes(bits, 3, 64)
    zeros[0, :9] = 0
    step = np.uint32(sum(1 << i for i in range(0, 32, bits)))
    stored = (stream_pack(zeros, bits).view(np.uint32) - step).view(np.int32)
    np.testing.assert_array_equal(stream_unpack(OPERATIONS["zeros_plus_words"](stored, bits), bits, 64), zeros)
    assert (stream_unpack(OPERATIONS["zeros_plus_one"](stored, bits, 64), bits, 64) != zeros).any()


def test_the_word_rule_of_three_bits_undoes_the_damaged_constants() -> None:
    damaged = words("00000000 B6DB6DB7 49249249")[None]
    np.testing.assert_array_equal(stream_unpack(OPERATIONS["zeros_plus_words"](damaged, 3), 3, 32), np.full((1, 32), 4))


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_field_rule_adds_one_to_each_field(bits: int) -> None:
    stored = codes(bits, 3, 64)
    got = stream_unpack(OPERATIONS["zeros_plus_one"](stream_pack(stored, bits), bits, 64), bits, 64)
    np.testing.assert_array_equal(got, (stored.astype(int) + 1) % (1 << bits))


def test_gemv_fast_zero_points_come_out_whole_for_every_scale() -> None:
    r = np.random.default_rng(3)
    scales = r.integers(1, 0x7800, (64, 256), np.uint16).view(np.float16)
    scales = np.where(np.isinf(scales.astype(np.float32) * 15) | (scales > 4000), np.float16(1), scales)
    zeros = r.integers(0, 16, (64, 256))
    scaled = -(scales.astype(np.float32) * zeros).astype(np.float16)
    rounded, exact = fast_zeros(scaled, scales, 64)
    np.testing.assert_array_equal(rounded, zeros)
    assert np.abs(exact - rounded).max() < 0.02


def test_a_dead_group_of_gemv_fast_has_the_zero_point_0() -> None:
    dead: NDArray[Any] = np.zeros((1, 8), np.float16)
    np.testing.assert_array_equal(fast_zeros(-dead, dead, 1)[0], np.zeros((1, 8)))


def test_awq_zero_words_are_reordered_as_nibbles_are() -> None:
    words = np.random.default_rng(5).integers(-(2**31), 2**31, (6, 11), dtype=np.int64).astype(np.int32)
    nibbles = stream_unpack(words, 4, 88).reshape(6, 11, 8)
    wanted = np.empty_like(nibbles)
    wanted[..., [0, 2, 4, 6, 1, 3, 5, 7]] = nibbles
    np.testing.assert_array_equal(stream_unpack(zeros_awq(words), 4, 88).reshape(6, 11, 8), wanted)
