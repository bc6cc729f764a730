"""Strips: a matrix stored row by row, turned so that the same eight bytes of all rows lie together.

    stored   row n: strip 0, strip 1, strip 2, ..          turned   strip s: row 0, row 1, row 2, ..

Layouts that go along K take some columns of every row, a few bytes from each, pages apart: the second-level cache holds neither so many
lines of one set nor, for wide layers, what whole lines of all rows would be packed to. Turned once, while rows come from the file, windows read in sequence.
In: rows in memory.  Out: calls of a program that turn them (`add_turn`); the packing `strips` of `positions` and `orders` reads the result.
Facts: docs/decisions/081.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.aux_values import address
from humming_convert.passes.blocks import NOWHERE
from humming_convert.passes.calls import At, Listing, function
from humming_convert.passes.known import tiles
from humming_convert.passes.machine import Kernel
from humming_convert.passes.orders import LANES
from humming_convert.passes.plans import starts
from humming_convert.passes.positions import STRIP, Ints
from humming_convert.passes.route import ROW, Route
from humming_convert.passes.routes import way

TILE_ROWS, TILE_WORDS = 8, LANES
SPARE = 64  # bytes between strips, so that those of N = 2^i rows do not share sets of a cache

# words of 32 bits: w0..w3 within a line of the source; strips are pairs of words
ROUTE = Route(
    width=32,
    bits=32,
    source=("w0", "w1", "w2", "w3", "n0", "n1", "n2"),
    target=("w0", "n0", "n1", "n2", "w1", "w2", "w3"),
    read="vectors",
    past=True,
)


def turns(recipe: WeightRecipe, packing: str, n: int, k: int, still: bool) -> bool:
    """Whether a stored matrix [n, k] is better turned: rows that a layout along K takes, in whole strips, with a compiled pass for strips.
    still: every E8M0 offset is 0 (`aux_sort`)."""
    row_bytes = k * recipe.bits // 8
    whole = k * recipe.bits % (8 * STRIP) == 0 and n > 0 and n % TILE_ROWS == 0 and row_bytes >= 4 * TILE_WORDS
    return packing == "rows" and recipe.place != "raw" and whole and way(recipe, "strips", 0, still) is not None


def strip_shape(n: int, row_bytes: int) -> tuple[int, int]:
    """(strips, bytes from one to the next) of n turned rows. They begin at a cache line."""
    assert row_bytes % STRIP == 0 and n % TILE_ROWS == 0, (n, row_bytes)
    return row_bytes // STRIP, STRIP * n + SPARE


class _Turn(Struct, frozen=True):
    """parameters: source, target and result still 0.  want: what the kernel counts: words, tiles."""

    kernel: Kernel
    parameters: Ints
    places: tuple[int, int, int]
    want: Ints
    held: tuple[Any, ...]


@lru_cache(maxsize=64)
def _turn(rows: int, row_bytes: int, pitch: int) -> _Turn:
    words = row_bytes // 4
    by_rows, by_words = np.array(starts(0, rows, TILE_ROWS)), np.array(starts(0, words, TILE_WORDS))
    none = 0 * by_rows[:, 0], 0 * by_words[:, 0]
    inner = np.stack([by_rows[:, 0] * row_bytes, by_rows[:, 0] * STRIP, none[0], by_rows[:, 1]], 1)
    outer = np.stack([by_words[:, 0] * 4, by_words[:, 0] * 4 // STRIP * pitch, none[1], by_words[:, 1]], 1)
    rest = np.zeros((1, ROW), np.int64)
    values = {"source": 0, "target": 0, "aux": NOWHERE, "result": 0, "lane": 0, "run": 0}
    held = tuple(np.ascontiguousarray(x, np.int64) for x in (outer, inner, rest))
    for name, table in zip(("outer", "inner", "rest"), held):
        values |= {name: address(table), f"{name}s": len(table)}
    values |= {f"s:n{i}": row_bytes << i for i in range(3)} | {f"d:w{i}": pitch << (i - 1) for i in (1, 2, 3)}
    names = list(ROUTE.parameters)
    want = np.array((rows * words, len(outer) * len(inner)), np.int64)
    places = (names.index("source"), names.index("target"), names.index("result"))
    return _Turn(tiles(ROUTE, "pack"), np.array([values[x] for x in names], np.int64), places, want, held)


def add_turn(listing: Listing, rows: int, row_bytes: int, pitch: int, source: At, target: At, result: int) -> None:
    """Calls that turn `rows` rows at `source` into strips at `target` (the place of the first of these rows in strip 0), and compare how many words they moved.

    A multiple of TILE_ROWS rows of at least TILE_WORDS words. target: at a line's start.  result: base of eight int64.
    """
    turn = _turn(rows, row_bytes, pitch)
    listing.call(function("memset"), At(result), 0, turn.want.nbytes, want=At(result))
    listing.kernel(turn.kernel, turn.parameters, tuple(zip(turn.places, (source, target, At(result)))))
    listing.call(function("memcmp"), At(result), address(turn.want), turn.want.nbytes)
    listing.held.append(turn)
