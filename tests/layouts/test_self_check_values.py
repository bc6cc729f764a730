"""The check values of layouts.md 13: CRC-32 of the little-endian bytes of every order."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from humming_convert.layouts import pack_weight, scales, unpack_weight, zero_points
from humming_convert.layouts.orders import order_c
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.layouts.weights import WeightAux
from humming_convert.standard.packing import stream_pack
from tests.check_values import REPACKED

WAYS = (
    ("standard", "mode3", False),
    ("standard", "mode2", False),
    ("standard", "native", False),
    ("packed_k", "mode3", True),
    ("packed_k", "mode2", False),
)
ROWS = [
    pytest.param(int(a), int(b), way, crc, id=f"A{a}-B{b}-{'-'.join(map(str, way))}")
    for a, b, *crcs in (line.split() for line in REPACKED.split("\n") if line)
    for way, crc in zip(WAYS, crcs, strict=True)
    if crc != "-"
]


def crc(x: np.ndarray) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(x).tobytes()):08x}"


def codes(bits: int, n: int, k: int) -> np.ndarray:
    i, j = np.arange(n)[:, None], np.arange(k)[None]
    return ((31 * i + 7 * j + i * j // 64) % (1 << bits)).astype(np.uint8)


def recipe(a: int, b: int, way: tuple[Any, ...], n: int, k: int) -> WeightRecipe:
    place, interleave, swapped = way
    shape = (k // 64, n * 2 * b) if place == "packed_k" else (k * a // 256, n * 8 * b // a)
    return WeightRecipe(
        bits=b, act_bits=a, n=n, k=k, pad_n=0, pad_k=0, maps=(), place=place, interleave=interleave, swapped=swapped, shape=shape
    )


@pytest.mark.parametrize(("a", "b", "way", "want"), ROWS)
def test_repacked_words_have_the_recorded_checksum_and_unpack(a: int, b: int, way: tuple[Any, ...], want: str) -> None:
    c = codes(b, 128, 1024 // a)
    r = recipe(a, b, way, *c.shape)
    words = pack_weight(r, c, WeightAux())
    assert crc(words) == want
    assert np.array_equal(unpack_weight(r, words, WeightAux()), c)


@pytest.mark.parametrize(
    ("bits", "want"), list(enumerate(["d00b200c", "7a4c5db3", "7a24ba45", "342c3805", "c1dd1b85", "67240475", "ea8a13ad", "ed1e954f"], 1))
)
def test_standard_words_have_the_recorded_checksum(bits: int, want: str) -> None:
    assert crc(stream_pack(codes(bits, 128, 128), bits)) == want


def scale(g: int) -> np.ndarray:
    return ((np.arange(192)[:, None] + 17 * np.arange(g)) % 251).astype(np.uint8)


@pytest.mark.parametrize(
    ("place", "ppu", "g", "want"),
    [
        ("normal", False, 6, "b002cf4b"),
        ("normal", True, 6, "9a42ad3a"),
        ("on_c", False, 6, "d74ba6a5"),
        ("umma", False, 6, "4be24e81"),
        ("mx1", False, 6, "bb43f48c"),
        ("mx4", False, 8, "7f4cdf92"),
    ],
)
def test_scales_have_the_recorded_checksum_and_unplace(place: Any, ppu: bool, g: int, want: str) -> None:
    packed = scales.place_scale(scale(g), place, ppu)
    assert crc(packed) == want
    assert np.array_equal(scales.unplace_scale(packed, place, ppu, 192, g).view(np.uint8), scale(g))


@pytest.mark.parametrize(
    ("bits", "standard", "packed", "grouped"),
    [(3, "c41462ae", "aab19f47", "0db7ed27"), (4, "1847b2ac", "5de37266", "08a48c75"), (8, "484fc6ae", "160c30a3", None)],
)
def test_zero_points_have_the_recorded_checksum_and_unpack(bits: int, standard: str, packed: str, grouped: str | None) -> None:
    z = ((np.arange(192)[:, None] + np.arange(8)) % (1 << bits)).astype(np.uint8)
    words = zero_points.pack_standard(z, bits)
    assert crc(words) == standard
    assert np.array_equal(zero_points.unpack_standard(words, bits, 192), z)
    width = 4 if bits <= 4 else 8
    for joined, want in ((1, packed), (4, grouped)):
        if want is not None:
            out = zero_points.integer(z, width, joined, False)
            assert crc(out) == want
            assert np.array_equal(zero_points.integer_back(out, width, joined, False), z)


# --- Worked rows of layouts.md 5.4: the codes of a word from field 0 up

WORKED = [
    (16, 4, WAYS[0], 0, "0,0 0,8 8,0 8,8 0,1 0,9 8,1 8,9"),
    (16, 4, WAYS[0], 1, "16,0 16,8 24,0 24,8 16,1 16,9 24,1 24,9"),
    (16, 4, WAYS[0], 4, "0,2 0,10 8,2 8,10 0,3 0,11 8,3 8,11"),
    (16, 8, WAYS[0], 0, "0,0 0,8 0,1 0,9"),
    (16, 8, WAYS[0], 1, "8,0 8,8 8,1 8,9"),
    (16, 2, WAYS[0], 0, "0,0 0,8 8,0 8,8 16,0 16,8 24,0 24,8 0,1 0,9 8,1 8,9 16,1 16,9 24,1 24,9"),
    (8, 4, WAYS[0], 0, "0,0 0,16 0,1 0,17 0,2 0,18 0,3 0,19"),
    (8, 4, WAYS[0], 1, "8,0 8,16 8,1 8,17 8,2 8,18 8,3 8,19"),
    (8, 4, WAYS[0], 128, "32,0 32,16 32,1 32,17 32,2 32,18 32,3 32,19"),
    (4, 2, WAYS[0], 0, "0,0 0,32 0,1 0,33 0,2 0,34 0,3 0,35 0,4 0,36 0,5 0,37 0,6 0,38 0,7 0,39"),
    (8, 4, WAYS[3], 0, "0,0 8,0 0,1 8,1 0,2 8,2 0,3 8,3"),
    (8, 4, WAYS[3], 1, "0,16 8,16 0,17 8,17 0,18 8,18 0,19 8,19"),
    (8, 4, WAYS[3], 2, "0,32 8,32 0,33 8,33 0,34 8,34 0,35 8,35"),
    (8, 4, WAYS[3], 128, "16,0 24,0 16,1 24,1 16,2 24,2 16,3 24,3"),
]


@pytest.mark.parametrize(("a", "b", "way", "word", "want"), WORKED)
def test_words_hold_the_codes_of_the_worked_rows(a: int, b: int, way: tuple[Any, ...], word: int, want: str) -> None:
    r = recipe(a, b, way, 128, 128)
    for field, place in enumerate(want.split()):
        n, k = map(int, place.split(","))
        c = np.zeros((128, 128), np.uint8)
        c[n, k] = (1 << b) - 1
        words = pack_weight(r, c, WeightAux()).reshape(-1).view(np.uint32)
        assert np.flatnonzero(words).tolist() == [word]
        assert words[word] == ((1 << b) - 1) << field * b


def test_mode_2_splits_low_bits_and_sign_of_fused_codes() -> None:
    r = recipe(8, 4, WAYS[4], 64, 64)
    low = ["0,0", "0,1", "0,2", "0,3", "0,16", "0,17", "0,18", "0,19"]
    signs = ["0,0", "0,16", "0,1", "0,17", "0,2", "0,18", "0,3", "0,19"]
    for order, code in ((low, 7), (signs, 8)):
        for field, place in enumerate(order):
            n, k = map(int, place.split(","))
            c = np.zeros((64, 64), np.uint8)
            c[n, k] = code
            assert pack_weight(r, c, WeightAux()).reshape(-1).view(np.uint32)[0] == code << 4 * field


def test_order_c_begins_as_written_down() -> None:
    assert order_c(np.arange(32))[:18].tolist() == [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27, 4, 5]


def test_flat_chunks_of_rows_are_the_outer_axis() -> None:
    r = WeightRecipe(bits=4, act_bits=4, n=64, k=128, pad_n=0, pad_k=0, maps=(), place="flat", shape=(64, 16))
    c = np.repeat(np.arange(64, dtype=np.uint8)[:, None] % 16, 128, axis=1)
    c[0, 32:64] = 9
    words = pack_weight(r, c, WeightAux()).reshape(-1).view(np.uint32)
    assert [hex(words[i]) for i in (0, 3, 4, 7, 256, 259)] == ["0x0", "0x0", "0x11111111", "0x11111111", "0x99999999", "0x99999999"]
