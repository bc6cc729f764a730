"""Padding and windows: the words of rows and columns that no source holds, and cutting an expert's words into stretches.

In: a WeightRecipe.  Out: padding words written or checked; stretches of words with the codes that they hold.
A padded code is 0 before the maps that come after padding: with `int_to_float` it becomes M, with `sign_flip` the midpoint.
Facts: layouts.md 2, 3, 5.0, 5.5 (words that raw appends stay 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.aux_values import Aux, address, aux_group, wanted
from humming_convert.passes.blocks import AuxValues, Mismatch, Words, compare_zeros, write_zeros
from humming_convert.passes.calls import At, Listing, function
from humming_convert.passes.maps import BEFORE_PADDING, table
from humming_convert.passes.positions import BLOCK, place_columns, place_rows, tile_columns
from humming_convert.passes.route import Purpose
from humming_convert.passes.routes import way


class Window(Struct, frozen=True, kw_only=True):
    """Words first .. first+words of an expert hold exactly the codes of rows n0..n1 and columns k0..k1, padding included."""

    n0: int
    n1: int
    k0: int
    k1: int
    first: int
    words: int


def total_words(recipe: WeightRecipe) -> int:
    return recipe.shape[0] * recipe.shape[1]


def whole(recipe: WeightRecipe) -> Window:
    return Window(n0=0, n1=place_rows(recipe), k0=0, k1=place_columns(recipe), first=0, words=total_words(recipe))


def window_columns(recipe: WeightRecipe) -> int:
    """Columns at whose multiples windows begin: whole tiles of every packing (128), whole stored words."""
    return max(128, tile_columns(recipe), recipe.group if 0 < recipe.group <= 256 else 0)


def window_unit(recipe: WeightRecipe, packings: Iterable[str], still: bool = False) -> int:
    """The same for stored blocks of these packings only: whole tiles, whole stored words; `window_columns` where one has no tiles.
    still: every E8M0 offset is 0."""
    ways = [way(recipe, packing, 0, still) for packing in packings]
    if not ways or recipe.place == "raw":
        return window_columns(recipe)
    found = 1
    for x in ways:
        if x is None:
            return window_columns(recipe)
        found = math.lcm(found, x.tile.columns, x.column_unit, tile_columns(recipe))
    return found


def windows(recipe: WeightRecipe, words: int, unit: int = 0) -> Iterator[Window]:
    """The expert's words in order, in stretches of about `words` (at least one step). Raw is cut along N, all else along K, at multiples
    of `unit` columns (0: `window_columns`)."""
    n, k = place_rows(recipe), place_columns(recipe)
    if recipe.place == "raw":
        step = max(words // recipe.shape[1] // BLOCK, 1) * BLOCK
        for n0, n1 in _cuts(n, step, recipe.n, min(2 * BLOCK, step)):
            yield Window(n0=n0, n1=n1, k0=0, k1=k, first=n0 * recipe.shape[1], words=(n1 - n0) * recipe.shape[1])
        return
    unit = unit or window_columns(recipe)
    step = max(words * 32 // (n * recipe.bits) // unit, 1) * unit
    for k0, k1 in _cuts(k, step, recipe.k, min(2 * unit, step)):
        yield Window(n0=0, n1=n, k0=k0, k1=k1, first=n * k0 * recipe.bits // 32, words=n * (k1 - k0) * recipe.bits // 32)


def _cuts(size: int, step: int, real: int, least: int) -> Iterator[tuple[int, int]]:
    """(start, end) of stretches of `step`. A last one with fewer than `least` rows or columns of the layer is joined to the one before:
    they may fill no tile of a compiled pass, and code by code they would take as long as all the others."""
    starts = list(range(0, size, step))
    if len(starts) > 1 and real - starts[-1] < least:
        starts.pop()
    yield from zip(starts, [*starts[1:], size], strict=True)


# ---- padding


@lru_cache(maxsize=256)
def after_padding(recipe: WeightRecipe) -> WeightRecipe:
    """The recipe as a padded code sees it."""
    return replace(recipe, maps=tuple(m for m in recipe.maps if m not in BEFORE_PADDING))


def _boxes(recipe: WeightRecipe, w: Window) -> list[tuple[int, int, int, int]]:
    """(n0, n1, k0, k1) of the padding in a window: columns beside the layer's rows, then whole rows."""
    boxes = [(w.n0, min(w.n1, recipe.n), max(w.k0, recipe.k), w.k1), (max(w.n0, recipe.n), w.n1, w.k0, w.k1)]
    return [x for x in boxes if x[0] < x[1] and x[2] < x[3]]


def _constant(recipe: WeightRecipe, aux: AuxValues, box: tuple[int, int, int, int]) -> int | None:
    """The code that all padding of a box becomes, if it is one."""
    codes = table(recipe.maps, recipe.bits)[:, 0]
    if not wanted(recipe):
        return int(codes[0])
    assert aux is not None
    values = aux.values if isinstance(aux, Aux) else aux
    top = aux.top if isinstance(aux, Aux) else len(codes)  # no value is larger
    if (codes[: top + 1] == codes[0]).all():
        return int(codes[0])
    g = aux_group(recipe)
    taken = values[box[0] : box[1], box[2] // g : -(-box[3] // g)] if g else values[box[0] : box[1]]
    return int(codes[0]) if not taken.any() else None


@lru_cache(maxsize=64)
def _pattern(recipe: WeightRecipe, code: int, rows: int, columns: int) -> NDArray[np.uint32]:
    """Words of rows x columns (whole blocks) of one code in every place."""
    small = replace(recipe, n=rows, k=columns, pad_n=0, pad_k=0, maps=(), shape=_small_shape(recipe, rows, columns))
    out = np.zeros(small.shape[0] * small.shape[1], np.uint32)
    write_zeros(small, (0, rows, 0, columns), out, None, 0, np.full((1, 1 << recipe.bits), code, np.uint8))
    return out


def _small_shape(recipe: WeightRecipe, rows: int, columns: int) -> tuple[int, int]:
    if recipe.place in ("raw", "flat"):
        return rows, columns * recipe.bits // 32
    tall = tile_columns(recipe)
    return columns // tall, rows * tall * recipe.bits // 32


def _grid(recipe: WeightRecipe, w: Window, out: Words) -> tuple[NDArray[np.uint32], int, int]:
    """(words as [steps of K, blocks of N, words], columns of a step, rows of a block); of raw [1, rows, words]."""
    n = place_rows(recipe)
    if recipe.place == "raw":
        return out.reshape(1, w.n1 - w.n0, recipe.shape[1])[:, :, : place_columns(recipe) * recipe.bits // 32], place_columns(recipe), 8
    if recipe.place == "flat":
        tall = tile_columns(recipe)
        return out.reshape((w.k1 - w.k0) // tall, n // 8, -1), tall, 8
    tall = tile_columns(recipe)
    return out.reshape((w.k1 - w.k0) // tall, n // BLOCK, -1), tall, BLOCK


def fill_padding(recipe: WeightRecipe, out: Words, aux: AuxValues = None, window: Window | None = None) -> None:
    """Writes the codes of padded rows and columns of a window (default: the whole expert); `out` holds the window's words.

    Words that hold codes of the layer too keep these. Raw's appended words become 0.
    """
    w = window or whole(recipe)
    assert len(out) == w.words
    recipe = after_padding(recipe)
    if recipe.place == "raw":
        out.reshape(w.n1 - w.n0, -1)[:, place_columns(recipe) * recipe.bits // 32 :] = 0
    for box in _boxes(recipe, w):
        code = _constant(recipe, aux, box)
        rest = [box]
        if code is not None:
            rest = _fill_blocks(recipe, w, out, code, box)
        for part in rest:
            write_zeros(recipe, part, out, aux, w.first, None)


def _fill_blocks(recipe: WeightRecipe, w: Window, out: Words, code: int, box: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Fills the whole blocks of a box and gives what is left."""
    if recipe.place == "raw":
        return [box] if code else _clear_raw(recipe, w, out, box)
    blocks = _whole_blocks(recipe, w, out, code, box)
    if blocks is None:
        return [box]
    part, pattern, left = blocks
    part[...] = pattern
    return left


def _other_blocks(
    recipe: WeightRecipe, w: Window, written: Words, code: int | None, box: tuple[int, int, int, int]
) -> list[tuple[int, int, int, int]]:
    """The boxes that are to be looked at code by code: all of a box, unless its whole blocks hold the code everywhere."""
    blocks = _whole_blocks(recipe, w, written, code, box) if code is not None and recipe.place != "raw" else None
    if blocks is None:
        return [box]
    part, pattern, left = blocks
    return left if (part == pattern).all() else [box]


Blocks = tuple[NDArray[np.uint32], NDArray[np.uint32], list[tuple[int, int, int, int]]]


def _whole_blocks(recipe: WeightRecipe, w: Window, words: Words, code: int, box: tuple[int, int, int, int]) -> Blocks | None:
    """(words of the whole blocks in a box as a view, the words of one block that holds `code` everywhere, boxes left); None if it has none."""
    n0, n1, k0, k1 = box
    grid, tall, wide = _grid(recipe, w, words)
    a, b = -(-n0 // wide) * wide, n1 // wide * wide
    c, d = -(-k0 // tall) * tall, k1 // tall * tall
    if a >= b or c >= d:
        return None
    part = grid[(c - w.k0) // tall : (d - w.k0) // tall, a // wide : b // wide]
    left = [(n0, a, k0, k1), (b, n1, k0, k1), (a, b, k0, c), (a, b, d, k1)]
    return part, _pattern(recipe, code, wide, tall), [x for x in left if x[0] < x[1] and x[2] < x[3]]


def _clear_raw(recipe: WeightRecipe, w: Window, out: Words, box: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    n0, n1, k0, k1 = box
    first = -(-k0 * recipe.bits // 32)
    if (recipe.ppu and (n0 % 8 or n1 % 8)) or k1 != place_columns(recipe):
        return [box]
    out.reshape(w.n1 - w.n0, -1)[n0 - w.n0 : n1 - w.n0, first:] = 0
    last = min(k1, -(-first * 32 // recipe.bits))
    return [(n0, n1, k0, last)] if k0 < last else []


def prove_padding(recipe: WeightRecipe, written: Words, aux: AuxValues = None, window: Window | None = None) -> Mismatch | None:
    """Whether padding holds what it should; as `prove_block`."""
    w = window or whole(recipe)
    assert len(written) == w.words
    recipe = after_padding(recipe)
    if recipe.place == "raw":
        extra = written.reshape(w.n1 - w.n0, -1)[:, place_columns(recipe) * recipe.bits // 32 :]
        if extra.any():
            n, word = (int(x[0]) for x in np.nonzero(extra))
            return Mismatch(
                w.n0 + n, place_columns(recipe) + word * 32 // recipe.bits, int(extra[n, word] != 0), 0, int(np.count_nonzero(extra))
            )
    rest = (x for box in _boxes(recipe, w) for x in _other_blocks(recipe, w, written, _constant(recipe, aux, box), box))
    found = [x for box in rest if (x := compare_zeros(recipe, box, written, aux, w.first)) is not None]
    return replace(found[0], count=sum(x.count for x in found)) if found else None


# ---- padding as calls


def padding_code(recipe: WeightRecipe, aux: AuxValues) -> int | None:
    """What every padded code of the layer becomes, if it is one."""
    recipe = after_padding(recipe)
    codes = {_constant(recipe, aux, box) for box in _boxes(recipe, whole(recipe))} or {0}
    return codes.pop() if len(codes) == 1 else None


def add_padding(
    listing: Listing, purpose: Purpose, recipe: WeightRecipe, window: Window, words: Words, base: int, code: int | None
) -> bool:
    """`fill_padding` ("pack") or `prove_padding` of a window as copies or comparisons of whole blocks, the window's words at base `base`.

    words: an array of their size.  code: as of `padding_code`. False, and nothing added, where codes are to be looked at one by one.
    """
    assert len(words) == window.words
    boxes = _boxes(recipe, window)
    if recipe.place == "raw":
        return not boxes and recipe.shape[1] == place_columns(recipe) * recipe.bits // 32
    recipe = after_padding(recipe)
    calls = []
    for box in boxes:
        blocks = None if code is None else _whole_blocks(recipe, window, words, code, box)
        if blocks is None or blocks[2]:
            return False
        part, pattern, _ = blocks
        run = _repeated(pattern.tobytes(), part.shape[1])
        calls += [(At(base, address(step) - address(words)), run) for step in part]
    for to, run in calls:
        if purpose == "pack":
            listing.call(function("memcpy"), to, address(run), run.nbytes, want=to)
        else:
            listing.call(function("memcmp"), to, address(run), run.nbytes)
        listing.held.append(run)
    return True


@lru_cache(maxsize=64)
def _repeated(pattern: bytes, times: int) -> NDArray[np.uint32]:
    return np.tile(np.frombuffer(pattern, np.uint32), times)
