"""Plans: all tables of one block shape, made once and used for every block of that shape.

In: a `Shape` (recipe, packing, how the block lies).  Out: the box that tiles cover with its kernel's parameters, and the edges.
Facts: layouts.md 5 by way of `positions` and `orders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.aux_values import address, aux_column, aux_group, aux_row_offset, aux_stride, wanted
from humming_convert.passes.maps import table
from humming_convert.passes.positions import Ints, packed_bits, source_bits
from humming_convert.passes.route import GENERAL, HEAD
from humming_convert.passes.routes import Way, way


class Shape(Struct, frozen=True, kw_only=True):
    """Key of a plan. row, column: of the block in the layer, taken to their first multiples (positions are linear beyond)."""

    recipe: WeightRecipe
    packing: str
    pitch: int
    n: int
    k: int
    row: int
    column: int
    aux_shape: tuple[int, int]  # (N', G) of the aux values
    exact: bool  # an E8M0 offset outside the kernels' arithmetic: code by code
    still: bool  # every E8M0 offset is 0


class Box(Struct, frozen=True):
    """Rows n0..n1 and columns k0..k1, counted in the block."""

    n0: int
    n1: int
    k0: int
    k1: int

    @property
    def codes(self) -> int:
        return max(self.n1 - self.n0, 0) * max(self.k1 - self.k0, 0)


class TilePlan(Struct, frozen=True, kw_only=True):
    """Parameters of a tile kernel (addresses still 0), and the tables they point at. aux_pitch: of the arranged aux values."""

    way: Way
    parameters: Ints
    tables: tuple[Ints, ...]
    box: Box
    tiles: int
    aux_pitch: int


class EdgePlan(Struct, frozen=True, kw_only=True):
    """The same for the general kernel. tables: of EDGE_TABLES."""

    parameters: Ints
    tables: tuple[NDArray[Any], ...]
    with_aux: bool
    box: Box


class Plan(Struct, frozen=True, kw_only=True):
    tile: TilePlan | None
    edges: tuple[EdgePlan, ...]


EDGE_TABLES = (
    *("table", "aux_columns", "source_rows", "source_columns"),
    *("target_rows", "target_columns", "row_slot", "column_slot", "jump"),
)
"""Names of an EdgePlan's tables, in order."""
PLANS = 512  # kept; of a model's layers some dozen differ
ADDRESSES = ("source", "target", "aux", "result")  # parameters that differ from call to call
TILE_SLOTS = tuple(HEAD.index(x) for x in ADDRESSES)
GENERAL_SLOTS = tuple(GENERAL.index(x) for x in ADDRESSES)


def _template(names: Sequence[str], values: dict[str, int]) -> Ints:
    return np.array([0 if x in ADDRESSES else values[x] for x in names], np.int64)


def starts(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """(start, new ones) of tiles that cover first..last; the last one begins early where the rest is no whole tile."""
    out = [(at, size) for at in range(first, last - size + 1, size)]
    rest = (last - first) % size
    return out + ([(last - size, rest)] if rest else [])


def _aligned(first: int, length: int, unit: int, size: int) -> tuple[int, int]:
    """The part of first..first+length between multiples of `unit`, as offsets; empty if smaller than `size`."""
    low, high = -(-first // unit) * unit, (first + length) // unit * unit
    return (low - first, high - first) if high - low >= size else (0, 0)


def _tile_plan(s: Shape) -> TilePlan | None:
    w = None if s.exact else way(s.recipe, s.packing, s.pitch, s.still)
    if w is None:
        return None
    (n0, n1), (k0, k1) = _aligned(s.row, s.n, w.row_unit, w.tile.rows), _aligned(s.column, s.k, w.column_unit, w.tile.columns)
    word = 8 if s.packing == "awq" else 1, 1 if s.packing == "awq" else 32 // w.route.width if w.route.width == w.route.bits else 32
    if not (n1 > n0 and k1 > k0) or n0 % word[0] or k0 % word[1]:
        return None
    kind, pitch = w.route.aux, _aux_pitch(s, w.route.aux)
    rows, columns = np.array(starts(n0, n1, w.tile.rows)), np.array(starts(k0, k1, w.tile.columns))
    to = packed_bits(s.recipe, rows[:, 0] + s.row, columns[:, 0] + s.column)
    # padded words that are words (W = B) are steps like others: their jump belongs to the offset
    to_rows, to_columns = to.rows[:, 0] + to.jump[to.row_slot, 0], to.columns[:, 0] + to.jump[to.column_slot, 0]
    assert w.route.width == w.route.bits or not (to.row_slot.any() or to.column_slot.any())
    assert not (to_rows % 32).any() and not (to_columns % 32).any()
    from_rows, from_columns = source_bits(s.packing, s.recipe.bits, s.pitch, rows[:, 0], columns[:, 0])
    aux_rows, aux_columns = 0 * rows[:, 0], 0 * columns[:, 0]
    if kind:
        aux_rows += [aux_row_offset(kind, int(x), pitch) for x in rows[:, 0]]
        aux_columns += _aux_index(s, columns[:, 0]) * aux_stride(kind, "k0", 1, pitch)
    by_rows = np.stack([from_rows[:, 0] // 8, to_rows // 8, aux_rows, rows[:, 1]], 1)
    by_columns = np.stack([from_columns[:, 0] // 8, to_columns // 8, aux_columns, columns[:, 1]], 1)
    rest = np.zeros((1, 4), np.int64)
    for bit in w.tile.rest:
        aux = aux_stride(kind, bit, w.group, pitch) if kind else 0
        rest = np.concatenate([rest, rest + np.array([w.source.strides[bit], w.target.strides[bit], aux, 0])])
    # K outermost where the source runs along N, N outermost where it runs along K: sources are read in sequence
    outer, inner = (by_rows, by_columns) if s.packing in ("rows", "signed_rows") else (by_columns, by_rows)
    outer, inner, rest = (np.ascontiguousarray(x, np.int64) for x in (outer, inner, rest))
    values = {"lane": s.pitch, "run": s.pitch}
    for name, array in (("outer", outer), ("inner", inner), ("rest", rest)):
        values |= {name: address(array), f"{name}s": len(array)}
    for name in w.route.parameters:
        letter, _, bit = name.partition(":")
        if letter == "a":
            values[name] = aux_stride(kind, bit, w.group, pitch)
        elif bit:
            values[name] = (w.source if letter == "s" else w.target).strides[bit]
    return TilePlan(
        way=w,
        parameters=_template(w.route.parameters, values),
        tables=(outer, inner, rest),
        box=Box(n0, n1, k0, k1),
        tiles=len(outer) * len(inner) * len(rest),
        aux_pitch=pitch,
    )


def _aux_pitch(s: Shape, kind: str) -> int:
    """Bytes from row to row of the arranged aux values."""
    rows, groups = s.aux_shape
    return groups if kind.startswith("spread") else rows // 2 if kind == "words" else rows


def _aux_index(s: Shape, k: Ints) -> Ints:
    """Aux column of columns k of the block, counted from that of its first column."""
    g = aux_group(s.recipe)
    return aux_column(g, k + s.column) - aux_column(g, np.array(s.column))


def edge_plan(s: Shape, box: Box, codes: NDArray[np.uint8] | None = None) -> EdgePlan:
    """codes: a table to use instead of the maps' (no aux)."""
    with_aux = codes is None and wanted(s.recipe)
    n, k = np.arange(box.n0, box.n1), np.arange(box.k0, box.k1)
    to = packed_bits(s.recipe, n + s.row, k + s.column)
    if s.pitch:
        from_rows, from_columns = source_bits(s.packing, s.recipe.bits, s.pitch, n, k)
    else:  # padding: every code is 0
        from_rows, from_columns = np.zeros((len(n), s.recipe.bits), np.int64), np.zeros((len(k), s.recipe.bits), np.int64)
    tables = {
        "table": _signed_table(s, table(s.recipe.maps, s.recipe.bits) if codes is None else codes),
        "aux_columns": _aux_index(s, k),
        "source_rows": from_rows,
        "source_columns": from_columns,
        "target_rows": to.rows,
        "target_columns": to.columns,
        "row_slot": to.row_slot,
        "column_slot": to.column_slot,
        "jump": to.jump,
    }
    held = {x: np.ascontiguousarray(tables[x]) for x in EDGE_TABLES}
    values = {x: address(y) for x, y in held.items()} | {"rows": len(n), "columns": len(k), "aux_pitch": s.aux_shape[1] if with_aux else 0}
    return EdgePlan(parameters=_template(GENERAL, values), tables=tuple(held.values()), box=box, with_aux=with_aux)


@lru_cache(maxsize=64)
def edge_of(s: Shape, box: Box) -> EdgePlan:
    """`edge_plan` with the maps' own table, made once a shape."""
    return edge_plan(s, box)


def _signed_table(s: Shape, maps_table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`signed_rows` are stored in two's complement: the code is the stored field with its top bit turned."""
    return (
        maps_table[:, np.arange(maps_table.shape[1]) ^ (1 << (s.recipe.bits - 1))] if s.packing == "signed_rows" and s.pitch else maps_table
    )


@lru_cache(maxsize=PLANS)
def plan_of(s: Shape) -> Plan:
    tile = _tile_plan(s)
    whole = Box(0, s.n, 0, s.k)
    inner = tile.box if tile is not None else Box(0, 0, 0, 0)
    edges = [
        Box(0, inner.n0, 0, s.k),
        Box(inner.n1, s.n, 0, s.k),
        Box(inner.n0, inner.n1, 0, inner.k0),
        Box(inner.n0, inner.n1, inner.k1, s.k),
    ]
    if tile is None:
        edges = [whole]
    assert sum(x.codes for x in edges) + inner.codes == whole.codes
    return Plan(tile=tile, edges=tuple(edge_plan(s, x) for x in edges if x.codes))
