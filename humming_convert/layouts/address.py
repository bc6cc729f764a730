"""Where the bits of one code are, by the address formula alone; written apart from the functions that pack.

In: a WeightRecipe and rows and columns (unpadded or padded).  Out: word numbers and bit numbers, or the codes found there.
Facts: layouts.md 5.0 c, 5.2 to 5.6. The proof reads samples of every packed weight through it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts import code_maps
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.layouts.weights import WeightAux
from humming_convert.standard.packing import Codes

Ints = NDArray[np.int64]


def addresses(recipe: WeightRecipe, n: NDArray[Any], k: NDArray[Any]) -> tuple[Ints, Ints]:
    """For each of L codes (n, k) and each bit i of it: word number in the packed tensor and bit in the word. Two arrays [L, B]."""
    n, k = np.asarray(n, np.int64)[:, None], np.asarray(k, np.int64)[:, None]
    B, A = recipe.bits, recipe.act_bits
    i = np.arange(B)[None, :]
    if recipe.ppu:
        # new rows of a run are the old rows 0 2 4 6 1 3 5 7: even rows go to their half, odd ones behind them
        n = n // 8 * 8 + np.where(n % 2 == 0, n % 8 // 2, 4 + n % 8 // 2)
    columns = recipe.shape[1]
    if recipe.place in ("raw", "flat"):
        word, bit = (k * B + i) // 32, (k * B + i) % 32
        if recipe.place == "raw":
            return n * columns + word, bit
        return (word // 4 * recipe.shape[0] + n) * 4 + word % 4, bit

    # layouts.md 5.2
    TK, c = 256 // A, 32 // A
    X, o, y, q = n // 64, n % 64 // 8, k // TK, k % TK
    lane = 4 * (n % 8) + q % (TK // 2) // c
    i2, i3, i4, i5, i6 = o // (A // 2), o % (A // 2) // 2, o % 2, q // (TK // 2), q % c
    outer, inner = (i5, i4) if recipe.swapped else (i4, i5)
    t = ((i3 * 2 + outer) * 2 + inner) * c + i6
    W = next(w for w in (1, 2, 4, 8, 16) if w >= B)
    L = 32 // W
    j, p0 = t // L, t % L
    pm = p0 % c * (A // W) + p0 // c
    low, top = {"mode3": (pm, pm), "mode2": (p0, pm), "native": (p0, p0)}[recipe.interleave]
    f = np.where(i == B - 1, top, low)

    # layouts.md 5.3; a field of B = W starts at the word's own bit 0 and never splits
    s = j * B
    w, u = s // W, s % W
    rest = B - (W - u)
    split = rest > 0
    w = w + (split & (i < rest))
    at = np.where(split, np.where(i >= rest, u + i - rest, i), u + i)
    bit = f * W + at

    # layouts.md 5.4
    if recipe.place == "standard":
        return y * columns + X * (512 * B // A) + i2 * 32 * B + lane * B + w, bit
    row, i1, h = k // 64, k % 64 // 32, w // (B // 2)
    return row * columns + X * 128 * B + (2 * i2 + h) * 32 * B + lane * B + i1 * (B // 2) + w % (B // 2), bit


def address(recipe: WeightRecipe, n: int, k: int) -> list[tuple[int, int]]:
    """(word number, bit) of each bit of one code, lowest first."""
    words, bits = addresses(recipe, np.array([n]), np.array([k]))
    return list(zip(words[0].tolist(), bits[0].tolist(), strict=True))


def sample_codes(recipe: WeightRecipe, words: NDArray[Any], n: NDArray[Any], k: NDArray[Any]) -> Codes:
    """The placed codes of (n, k), read from one expert's packed words."""
    at, bit = addresses(recipe, n, k)
    found = words.reshape(-1).view(np.uint32)[at] >> bit.astype(np.uint32) & 1
    return np.asarray((found << np.arange(recipe.bits, dtype=np.uint32)).sum(axis=1), np.uint8)


def standard_codes(recipe: WeightRecipe, placed: Codes, n: NDArray[Any], k: NDArray[Any], aux: WeightAux) -> Codes:
    """Placed codes of (n, k) back to standard codes; codes of fused_e8m0 stay as rewritten. aux: of the expert."""
    out = placed
    top = np.uint8((1 << recipe.bits) - 1)
    for name in reversed(recipe.maps):
        if name == "int_to_float_zp":
            assert aux.zero is not None
            z = aux.zero[n, code_maps.zero_column(np.asarray(k), recipe.group)]
            out = np.where(out <= top - z, out + z, top - out)
        elif name != "fused_e8m0":
            out = code_maps.inverse(name, recipe.bits)[out]
    return out
