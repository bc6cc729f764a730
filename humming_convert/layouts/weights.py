"""Weights: codes of one expert to packed words by a WeightRecipe, and back. The numpy reference of the compiled passes.

In: codes [n, k], and what maps need (zero points, E8M0 offsets).  Out: int32 of the recipe's shape.
Facts: layouts.md 5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from humming_convert.findings import Finding
from humming_convert.layouts import code_maps
from humming_convert.layouts.orders import ppu_order, ppu_restore
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.standard.packing import Codes, stream_pack, stream_unpack

Words = NDArray[np.int32]
EARLY = ("e0m", "e0m_to_int")


class WeightAux(Struct, frozen=True, kw_only=True):
    """What weight maps need from the small tensors, padded: uint8 [E or 1, N', G], of one expert [N', G].

    zero: zero point codes (int_to_float_zp).  offsets: d of each group (fused_e8m0).
    scales, scale_2: scale bytes before S5 and float32 [E, N'] or [E, 1] secondary scales; only to measure what S5 changes.
    """

    zero: NDArray[np.uint8] | None = None
    offsets: NDArray[np.uint8] | None = None
    scales: NDArray[np.uint8] | None = None
    scale_2: NDArray[np.float32] | None = None

    def of_expert(self, expert: int) -> WeightAux:
        return WeightAux(**{name: None if x is None else x[expert] for name, x in asdict(self).items()})

    @property
    def array(self) -> NDArray[np.uint8] | None:
        """What the compiled passes take: zero points or offsets, whichever the maps need; a layer has at most one of them."""
        assert self.zero is None or self.offsets is None
        return self.zero if self.zero is not None else self.offsets

    def findings(self, layer: str | None = None) -> tuple[Finding, ...]:
        """Groups whose offset is 128 or more: the library's codes for them mean nothing, and are reproduced (layouts.md S5)."""
        count = 0 if self.offsets is None else int((self.offsets >= 128).sum())
        if not count:
            return ()
        text = f"{count} groups have scales 2^128 or more below the range of their row; the library turns their weights into other numbers"
        advice = "use 16-bit activations for this layer, or re-quantize it"
        return (
            Finding(severity="warning", code="e8m0-spread", layer=layer, tensor="weight_scale", message=text, advice=advice, count=count),
        )


# --- Codes to codes


def map_codes(recipe: WeightRecipe, codes: Codes, aux: WeightAux) -> Codes:
    """Standard codes [n, k] -> codes [N', K'] as they are placed."""
    assert codes.shape == (recipe.n, recipe.k), (codes.shape, recipe)
    out = codes
    for name in recipe.maps:
        if name in EARLY:
            out = code_maps.table(name, recipe.bits)[out]
    if recipe.pad_n or recipe.pad_k:
        out = np.pad(out, ((0, recipe.pad_n), (0, recipe.pad_k)))
    for name in recipe.maps:
        if name == "fused_e8m0":
            assert aux.offsets is not None
            out = code_maps.fused(out, aux.offsets, recipe.group)
        elif name == "int_to_float_zp":
            assert aux.zero is not None
            out = code_maps.with_zero_points(out, aux.zero, recipe.bits, recipe.group)
        elif name not in EARLY:
            out = code_maps.table(name, recipe.bits)[out]
    return out


def unmap_codes(recipe: WeightRecipe, codes: Codes, aux: WeightAux) -> Codes:
    """The inverse of `map_codes`; codes that `fused_e8m0` changed stay changed."""
    out = codes
    for name in reversed(recipe.maps):
        if name == "int_to_float_zp":
            assert aux.zero is not None
            out = code_maps.without_zero_points(out, aux.zero, recipe.bits, recipe.group)
        elif name not in ("fused_e8m0", *EARLY):
            out = code_maps.inverse(name, recipe.bits)[out]
    out = out[: recipe.n, : recipe.k]
    for name in reversed(recipe.maps):
        if name in EARLY:
            out = code_maps.inverse(name, recipe.bits)[out]
    return np.ascontiguousarray(out)


# --- Places


@lru_cache(maxsize=None)
def bit_places(bits: int, act_bits: int, interleave: str, swapped: bool) -> NDArray[np.intp]:
    """[32, B]: where bit i of code t of a lane's sub-block goes: word * 32 + bit, words 0..B-1 (layouts.md 5.2, 5.3).

    t counts (i3, i4, i5, i6); swapped blocks exchange i4 and i5.  A = 16, B = 4, mode 3, word 0:

        bit  0..3  4..7  8..11  12..15  16..19 ...      t  0  2  4  6  1 ...
        n,k  0,0   0,8   8,0    8,8     0,1
    """
    w = 1 << (bits - 1).bit_length()
    per_word, c, ratio = 32 // w, 32 // act_bits, act_bits // w
    out = np.empty((32, bits), np.intp)
    for t in range(32):
        i6, i5, i4, i3 = t % c, t // c % 2, t // c // 2 % 2, t // c // 4
        place = ((i3 * 2 + i5) * 2 + i4) * c + i6 if swapped else t
        j, p0 = divmod(place, per_word)
        mixed = (p0 % c) * ratio + p0 // c
        low = mixed if interleave == "mode3" else p0
        top = p0 if interleave == "native" else mixed
        start = j * bits
        word, free = start // w, w - start % w
        for i in range(bits):
            field = top if i == bits - 1 else low
            if bits <= free:
                at, bit = word, start % w + i
            elif i >= bits - free:
                at, bit = word, start % w + i - (bits - free)
            else:
                at, bit = word + 1, i
            out[t, i] = at * 32 + field * w + bit
    return out


def by_lane(codes: Codes, act_bits: int) -> Codes:
    """[N', K'] -> [K tiles, N'/64, N parts, 32 lanes, 32 codes]: which code is the t-th of a lane (layouts.md 5.2)."""
    n, k = codes.shape
    parts, c, tile = 16 // act_bits, 32 // act_bits, 256 // act_bits
    axes = codes.reshape(n // 64, parts, act_bits // 4, 2, 8, k // tile, 2, 4, c)  # X, i2, i3, i4, n mod 8, y, i5, lane mod 4, i6
    return axes.transpose(5, 0, 1, 4, 7, 2, 3, 6, 8).reshape(k // tile, n // 64, parts, 32, 32)


def from_lanes(lanes: Codes, act_bits: int) -> Codes:
    """The inverse of `by_lane`."""
    y, x, parts = lanes.shape[:3]
    c = 32 // act_bits
    axes = lanes.reshape(y, x, parts, 8, 4, act_bits // 4, 2, 2, c)
    return axes.transpose(1, 2, 5, 6, 3, 0, 7, 4, 8).reshape(x * 64, y * 256 // act_bits)


def into_words(lanes: Codes, recipe: WeightRecipe) -> Words:
    """[..., 32 codes] -> [..., B words]."""
    b = recipe.bits
    places = bit_places(b, recipe.act_bits, recipe.interleave, recipe.swapped)
    bits = np.unpackbits(lanes[..., None], axis=-1, count=b, bitorder="little").reshape(*lanes.shape[:-1], 32 * b)
    source = np.empty(32 * b, np.intp)
    source[places.reshape(-1)] = np.arange(32 * b)
    return np.packbits(bits[..., source], axis=-1, bitorder="little").view("<i4")


def from_words(words: Words, recipe: WeightRecipe) -> Codes:
    """The inverse of `into_words`."""
    b = recipe.bits
    places = bit_places(b, recipe.act_bits, recipe.interleave, recipe.swapped)
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    fields = bits[..., places.reshape(-1)].reshape(*words.shape[:-1], 32, b)
    return np.packbits(fields, axis=-1, bitorder="little")[..., 0]


def standard(codes: Codes, recipe: WeightRecipe) -> Words:
    """Rows are K tiles; a row holds X, N part, lane, word (layouts.md 5.4)."""
    return into_words(by_lane(codes, recipe.act_bits), recipe).reshape(recipe.shape)


def standard_back(words: Words, recipe: WeightRecipe) -> Codes:
    parts = 16 // recipe.act_bits
    lanes = words.reshape(recipe.shape[0], -1, parts, 32, recipe.bits)
    return from_lanes(from_words(lanes, recipe), recipe.act_bits)


def packed_k(codes: Codes, recipe: WeightRecipe) -> Words:
    """A = 8: rows are pairs of K tiles; a row holds X, N part, word half h, lane, K tile of the pair, word in the half."""
    words = into_words(by_lane(codes, 8), recipe)
    y, x = words.shape[:2]
    axes = words.reshape(y // 2, 2, x, 2, 32, 2, recipe.bits // 2)  # row, i1, X, i2, lane, h, w
    return axes.transpose(0, 2, 3, 5, 4, 1, 6).reshape(recipe.shape)


def packed_k_back(words: Words, recipe: WeightRecipe) -> Codes:
    rows, half = recipe.shape[0], recipe.bits // 2
    axes = words.reshape(rows, -1, 2, 2, 32, 2, half)  # row, X, i2, h, lane, i1, w
    lanes = axes.transpose(0, 5, 1, 2, 4, 3, 6).reshape(rows * 2, -1, 2, 32, recipe.bits)
    return from_lanes(from_words(lanes, recipe), 8)


def raw(codes: Codes, recipe: WeightRecipe) -> Words:
    """Rows as in the standard form; FP8 x FP6 and FP4 are extended along K to whole 128s (layouts.md 5.5)."""
    wide = recipe.shape[1] * 32 // recipe.bits
    return stream_pack(np.pad(codes, ((0, 0), (0, wide - codes.shape[1]))), recipe.bits)


def raw_back(words: Words, recipe: WeightRecipe) -> Codes:
    return stream_unpack(words, recipe.bits, recipe.k + recipe.pad_k)


def flat(codes: Codes, recipe: WeightRecipe) -> Words:
    """Chunks of four words of each row are the outer axis: word ((h * N') + n) * 4 + i is word 4h + i of row n (layouts.md 5.6)."""
    rows = stream_pack(codes, recipe.bits)
    return np.ascontiguousarray(rows.reshape(rows.shape[0], -1, 4).swapaxes(0, 1)).reshape(recipe.shape)


def flat_back(words: Words, recipe: WeightRecipe) -> Codes:
    n = recipe.shape[0]
    rows = np.ascontiguousarray(words.reshape(-1, n, 4).swapaxes(0, 1)).reshape(n, -1)
    return stream_unpack(rows, recipe.bits, recipe.k + recipe.pad_k)


PLACES: dict[str, tuple[Any, Any]] = {
    "standard": (standard, standard_back),
    "packed_k": (packed_k, packed_k_back),
    "raw": (raw, raw_back),
    "flat": (flat, flat_back),
}


# --- One expert


def pack_weight(recipe: WeightRecipe, codes: Codes, aux: WeightAux) -> Words:
    """Standard codes [n, k] of one expert -> packed words int32 of `recipe.shape`. `aux`: of that expert."""
    out = map_codes(recipe, codes, aux)
    if recipe.ppu:
        out = np.ascontiguousarray(ppu_order(out.T).T)
    words: Words = np.ascontiguousarray(PLACES[recipe.place][0](out, recipe), "<i4")
    assert words.shape == recipe.shape, (words.shape, recipe)
    return words


def unpack_weight(recipe: WeightRecipe, words: Words, aux: WeightAux) -> Codes:
    """The inverse: standard codes [n, k]. Exact, except that -0 of e0m_to_int is 0 and codes of fused_e8m0 stay as rewritten."""
    assert words.shape == recipe.shape, (words.shape, recipe)
    out: Codes = PLACES[recipe.place][1](np.ascontiguousarray(words), recipe)
    if recipe.ppu:
        out = np.ascontiguousarray(ppu_restore(out.T).T)
    return unmap_codes(recipe, out, aux)
