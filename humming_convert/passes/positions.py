"""Positions: at which bit of which word each bit of a code lies, in packed words and in source words.

In: a WeightRecipe, or a packing and the pitch of a stored block.  Out: bit numbers as sums of a row part and a column part.
The one copy of the address formulas in this room: `orders` reads the compiled networks off them and `general` walks them.
Facts: layouts.md 5.0 c and 5.1 to 5.6; formats.md 0, 2.2, 3.2.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.layouts.recipe import WeightRecipe

Ints = NDArray[np.int64]

BLOCK = 64  # rows of one block of the repack layouts; all of them are linear in n div 64
CHUNK_WORDS = 4  # flat: 128-bit chunks
STRIP = 8  # bytes of a row that lie together in a turned matrix (`strips`)


def padded_width(bits: int) -> int:
    """W: the smallest power of two that holds a code."""
    return 1 << (bits - 1).bit_length()


class Bits(Struct, frozen=True, kw_only=True):
    """Where things lie. Bit i of code (n, k) is bit  rows(n)[i] + columns(k)[i] + jump[row_slot(n) + column_slot(k), i].

    rows, columns: [length, B] bit numbers (32 * word + bit).  slots: [length]; jump: [slots, B], the padded words of a sub-block
    (layouts.md 5.3), which for codes that fill their field is just the next word.
    """

    rows: Ints
    columns: Ints
    row_slot: Ints
    column_slot: Ints
    jump: Ints


def place_rows(recipe: WeightRecipe) -> int:
    """N': rows of one expert's packed words."""
    return recipe.n + recipe.pad_n


def place_columns(recipe: WeightRecipe) -> int:
    """K': columns, before raw's own extension."""
    return recipe.k + recipe.pad_k


def tile_columns(recipe: WeightRecipe) -> int:
    """Columns from which on a packed position is linear in k: TK, a packed-K block, a chunk, or a 32-code run."""
    if recipe.place == "standard":
        return 256 // recipe.act_bits
    if recipe.place == "packed_k":
        return BLOCK
    return 128 // recipe.bits if recipe.place == "flat" and 128 % recipe.bits == 0 else 128


def ppu_row(n: Ints) -> Ints:
    """New row of old row n: each run of 8 new rows is the old rows 0 2 4 6 1 3 5 7 (layouts.md 5.0 c)."""
    return np.asarray((n & ~7) | (n & 1) << 2 | (n & 7) >> 1)


def packed_bits(recipe: WeightRecipe, n: Ints, k: Ints) -> Bits:
    """Positions of rows n and columns k in one expert's packed words (layouts.md 5.2 to 5.6)."""
    if recipe.ppu:
        n = ppu_row(n)
    if recipe.place in ("raw", "flat"):
        return _stream_bits(recipe, n, k)
    return _repack_bits(recipe, n, k)


def _stream_bits(recipe: WeightRecipe, n: Ints, k: Ints) -> Bits:
    """Raw keeps the bit string of a row; flat makes its 128-bit chunks the outer axis (layouts.md 5.5, 5.6)."""
    bit = k[:, None] * recipe.bits + np.arange(recipe.bits)
    if recipe.place == "raw":
        rows, columns = n * recipe.shape[1] * 32, bit
    else:
        word = bit // 32
        columns = 32 * (word // CHUNK_WORDS * place_rows(recipe) * CHUNK_WORDS + word % CHUNK_WORDS) + bit % 32
        rows = n * CHUNK_WORDS * 32
    return Bits(
        rows=np.repeat(rows[:, None], recipe.bits, 1),
        columns=columns,
        row_slot=np.zeros_like(n),
        column_slot=np.zeros_like(k),
        jump=np.zeros((1, recipe.bits), np.int64),
    )


def _repack_bits(recipe: WeightRecipe, n: Ints, k: Ints) -> Bits:
    """Names as in layouts.md 5.1 and 5.2."""
    a, b, w = recipe.act_bits, recipe.bits, padded_width(recipe.bits)
    tk, c, length, p = 256 // a, 32 // a, 32 // w, a // w
    x, o, q = n // BLOCK, n % BLOCK // 8, k % tk
    i2, i3, i4 = o // (a // 2), o % (a // 2) // 2, o % 2
    i5, i6 = q // (tk // 2), q % c
    row_lane, column_lane = 4 * (n % 8), q % (tk // 2) // c
    # t: the code's number in its sub-block of 32; rows and columns own different bits of it
    row_t = (i3 * 4 + i4) * c if recipe.swapped else (i3 * 2 + i4) * 2 * c
    column_t = (2 * i5 * c if recipe.swapped else i5 * c) + i6

    def fields(t: Ints) -> Ints:
        """[length, B]: the bit at which the field of t starts, for each bit of a code (the top bit may go elsewhere: mode 2)."""
        p0 = t % length
        pm = p0 % c * p + p0 // c
        low = pm if recipe.interleave == "mode3" else p0
        top = p0 if recipe.interleave == "native" else pm
        return np.stack([low] * (b - 1) + [top], axis=1) * w

    place = _packed_k_words if recipe.place == "packed_k" else _standard_words
    row_word, column_word, jump_word = place(recipe, x, i2, row_lane, k, column_lane)
    word, bit = compacted_bits(b, w)
    return Bits(
        rows=32 * row_word[:, None] + fields(row_t),
        columns=32 * column_word[:, None] + fields(column_t),
        row_slot=row_t // length,
        column_slot=column_t // length,
        jump=32 * jump_word[word] + bit,
    )


def _standard_words(recipe: WeightRecipe, x: Ints, i2: Ints, row_lane: Ints, k: Ints, column_lane: Ints) -> tuple[Ints, Ints, Ints]:
    """layouts.md 5.4: words of a row, of a column, and of word w of a sub-block."""
    a, b = recipe.act_bits, recipe.bits
    tk = 256 // a
    row = x * (512 * b // a) + i2 * 32 * b + row_lane * b
    column = k // tk * (place_rows(recipe) * tk * b // 32) + column_lane * b
    return row, column, np.arange(b)


def _packed_k_words(recipe: WeightRecipe, x: Ints, i2: Ints, row_lane: Ints, k: Ints, column_lane: Ints) -> tuple[Ints, Ints, Ints]:
    """layouts.md 5.4: a row of output spans 64 columns; the two half words-groups h of a sub-block lie 32 lanes apart."""
    b, half = recipe.bits, recipe.bits // 2
    row = x * 128 * b + 2 * i2 * 32 * b + row_lane * b
    column = k // 64 * (place_rows(recipe) * 2 * b) + column_lane * b + k % 64 // 32 * half
    w = np.arange(b)
    return row, column, w // half * 32 * b + w % half


@lru_cache(maxsize=16)
def compacted_bits(b: int, w: int) -> tuple[Ints, Ints]:
    """[W, B] word and bit within its field, of bit i of padded word j (layouts.md 5.3)."""
    word, bit = np.zeros((w, b), np.int64), np.zeros((w, b), np.int64)
    for j in range(w):
        first, used = divmod(j * b, w)
        free = w - used
        for i in range(b):
            rest = max(b - free, 0)
            word[j, i], bit[j, i] = (first, used + i - rest) if i >= rest else (first + 1, i)
    return word, bit


def source_bits(packing: str, bits: int, pitch: int, n: Ints, k: Ints) -> tuple[Ints, Ints]:
    """(rows, columns): bit i of code (n, k) of a stored block is bit rows[n, i] + columns[k, i] of its bytes.

    pitch: bytes from one stored row to the next (`rows`: of n; `gptq`: of a word row; `awq`: of k; `strips`: of a strip).
    """
    i = np.arange(bits)
    if packing == "rows":
        return n[:, None] * pitch * 8 + 0 * i, k[:, None] * bits + i
    if packing == "signed_rows":
        return n[:, None] * pitch * 8 + 0 * i, k[:, None] * 8 + i
    if packing == "gptq":
        bit = k[:, None] * bits + i
        return n[:, None] * 32 + 0 * i, bit // 32 * (pitch * 8) + bit % 32
    if packing == "strips":
        bit = k[:, None] * bits + i
        return n[:, None] * 8 * STRIP + 0 * i, bit // (8 * STRIP) * (pitch * 8) + bit % (8 * STRIP)
    assert packing == "awq", packing
    nibble = n % 8 % 2 * 4 + n % 8 // 2  # column 2i -> nibble i, column 2i + 1 -> nibble 4 + i
    return (n // 8 * 32 + nibble * 4)[:, None] + i, k[:, None] * pitch * 8 + 0 * i
