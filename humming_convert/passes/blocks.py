"""Blocks: packing, padding and proving one block of codes of one expert, from source words to packed words and back.

In: a WeightRecipe, a stored block (raw bytes, any alignment) and where it belongs.  Out: words written, or the first difference.
Most of a block goes through a compiled tile kernel; edges that fill no tile, and what has no kernel, go code by code.
Everything runs without the interpreter's lock. Facts: layouts.md 2 (what comes before and after padding), 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.kernels import GENERAL, HEAD, Purpose
from humming_convert.passes.known import general, tiles
from humming_convert.passes.maps import GARBAGE, WITH_AUX, table
from humming_convert.passes.positions import BLOCK, Ints, packed_bits, padded_width, place_columns, place_rows, source_bits, tile_columns
from humming_convert.passes.routes import Way, aux_group, aux_stride, way

Raw = NDArray[Any]
Aux = NDArray[np.uint8]
Words = NDArray[np.uint32]

PACKINGS = ("rows", "signed_rows", "gptq", "awq")
NOTHING = np.zeros(64, np.uint8)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first code that differs (row and column of the layer, packed codes that were found and expected) and how many do."""

    n: int
    k: int
    got: int
    want: int
    count: int


def supported(recipe: WeightRecipe, packing: str, bits: int, n: int, k: int) -> bool:
    """Whether `pack_block` can do it, fast or not."""
    if packing not in PACKINGS or bits != recipe.bits or not 1 <= bits <= 8 or n <= 0 or k <= 0:
        return False
    if packing == "awq" and (bits != 4 or n % 8):
        return False
    if recipe.place in ("standard", "packed_k"):
        return padded_width(bits) <= recipe.act_bits and (recipe.place == "standard" or (recipe.act_bits == 8 and bits % 2 == 0))
    return recipe.place == "raw" or place_columns(recipe) * bits % 128 == 0


def is_fast(recipe: WeightRecipe, packing: str) -> bool:
    """Whether whole tiles go through a compiled kernel."""
    return way(recipe, packing, 0) is not None


# ---- the stored block as bytes


def stored_rows(packing: str, stored: Raw, n: int) -> Raw:
    """The block as rows of contiguous bytes: uint8 [rows, bytes], a view where the last axis is contiguous."""
    if packing in ("rows", "signed_rows"):
        stored = stored if stored.ndim == 2 else stored.reshape(n, -1)
    assert stored.ndim == 2, stored.shape
    if stored.strides[-1] != stored.itemsize or stored.strides[0] < 0:
        stored = np.ascontiguousarray(stored)
    return stored.view(np.uint8)


def slice_block(packing: str, bits: int, stored: Raw, n: int, rows: tuple[int, int], columns: tuple[int, int]) -> Raw:
    """The stored bytes of rows x columns of a block, a view. rows: of `awq` in multiples of 8; columns: of `gptq` in multiples of 32
    (or the block's end), of `rows` in multiples of 8."""
    raw = stored_rows(packing, stored, n)
    (n0, n1), (k0, k1) = rows, columns
    if packing == "signed_rows":
        return raw[n0:n1, k0:k1]
    if packing == "rows":
        return raw[n0:n1, k0 * bits // 8 : -(-k1 * bits // 8)]
    if packing == "gptq":
        return raw[k0 * bits // 32 : -(-k1 * bits // 32), n0 * 4 : n1 * 4]
    return raw[k0:k1, n0 // 2 : n1 // 2]


def arranged(kind: str, aux: Aux) -> Raw:
    """aux values [rows, groups] in the order in which a kernel of this kind reads them."""
    if kind.startswith("spread") or not kind:
        return np.ascontiguousarray(aux)
    turned = np.ascontiguousarray(aux.T)
    if kind == "lanes":
        return turned
    by_eight = turned.reshape(turned.shape[0], -1, 4, 2)  # AWQ: byte i of a word holds columns i/2.. (formats.md 3.2)
    low = by_eight[:, :, 0::2] | by_eight[:, :, 1::2] << 4
    return np.ascontiguousarray(low.transpose(0, 1, 3, 2))


# ---- plans: all tables of a block, made once a shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Key of a plan. row, column: of the block in the layer, taken to their first multiples (positions are linear beyond)."""

    recipe: WeightRecipe
    packing: str
    pitch: int
    n: int
    k: int
    row: int
    column: int
    exact: bool  # an E8M0 offset outside the kernels' arithmetic: code by code
    still: bool  # every E8M0 offset is 0


@dataclass(frozen=True, slots=True)
class Box:
    """Rows n0..n1 and columns k0..k1, counted in the block."""

    n0: int
    n1: int
    k0: int
    k1: int

    @property
    def codes(self) -> int:
        return max(self.n1 - self.n0, 0) * max(self.k1 - self.k0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """Parameters of a tile kernel (addresses still 0), and the tables they point at."""

    way: Way
    parameters: Ints
    tables: tuple[Ints, ...]
    box: Box
    tiles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePlan:
    """The same for the general kernel."""

    parameters: Ints
    tables: tuple[Raw, ...]
    with_aux: bool
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    tile: TilePlan | None
    edges: tuple[EdgePlan, ...]


def _address(array: Raw) -> int:
    return int(array.__array_interface__["data"][0])


ADDRESSES = ("source", "target", "aux", "result")  # parameters that differ from call to call
TILE_SLOTS = tuple(HEAD.index(x) for x in ADDRESSES)
GENERAL_SLOTS = tuple(GENERAL.index(x) for x in ADDRESSES)


def _template(names: Sequence[str], values: dict[str, int]) -> Ints:
    return np.array([0 if x in ADDRESSES else values[x] for x in names], np.int64)


def _starts(first: int, last: int, size: int) -> list[tuple[int, int]]:
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
    kind, groups = w.route.aux, _aux_columns(s)
    rows, columns = np.array(_starts(n0, n1, w.tile.rows)), np.array(_starts(k0, k1, w.tile.columns))
    to = packed_bits(s.recipe, rows[:, 0] + s.row, columns[:, 0] + s.column)
    # padded words that are words (W = B) are steps like others: their jump belongs to the offset
    to_rows, to_columns = to.rows[:, 0] + to.jump[to.row_slot, 0], to.columns[:, 0] + to.jump[to.column_slot, 0]
    assert w.route.width == w.route.bits or not (to.row_slot.any() or to.column_slot.any())
    assert not (to_rows % 32).any() and not (to_columns % 32).any()
    from_rows, from_columns = source_bits(s.packing, s.recipe.bits, s.pitch, rows[:, 0], columns[:, 0])
    unit = aux_stride(kind, "n3", 0, s.n, groups) // 8 if kind != "words" else 0
    aux_rows = rows[:, 0] // 8 * 4 if kind == "words" else rows[:, 0] * unit
    aux_columns = _aux_index(s, columns[:, 0]) * (aux_stride(kind, "k0", 1, s.n, groups))
    by_rows = np.stack([from_rows[:, 0] // 8, to_rows // 8, aux_rows if kind else 0 * aux_rows, rows[:, 1]], 1)
    by_columns = np.stack([from_columns[:, 0] // 8, to_columns // 8, aux_columns if kind else 0 * aux_columns, columns[:, 1]], 1)
    rest = np.zeros((1, 4), np.int64)
    for bit in w.tile.rest:
        aux = aux_stride(kind, bit, w.group, s.n, groups) if kind else 0
        rest = np.concatenate([rest, rest + np.array([w.source.strides[bit], w.target.strides[bit], aux, 0])])
    # K outermost where the source runs along N, N outermost where it runs along K: sources are read in sequence
    outer, inner = (by_rows, by_columns) if s.packing in ("rows", "signed_rows") else (by_columns, by_rows)
    outer, inner, rest = (np.ascontiguousarray(x, np.int64) for x in (outer, inner, rest))
    values = {"lane": s.pitch, "run": s.pitch}
    for name, array in (("outer", outer), ("inner", inner), ("rest", rest)):
        values |= {name: _address(array), f"{name}s": len(array)}
    for name in w.route.parameters:
        letter, _, bit = name.partition(":")
        if letter == "a":
            values[name] = aux_stride(kind, bit, w.group, s.n, groups)
        elif bit:
            values[name] = (w.source if letter == "s" else w.target).strides[bit]
    count = len(outer) * len(inner) * len(rest)
    return TilePlan(
        way=w, parameters=_template(w.route.parameters, values), tables=(outer, inner, rest), box=Box(n0, n1, k0, k1), tiles=count
    )


def _aux_columns(s: Shape) -> int:
    """Aux columns that a block touches."""
    return int(_aux_index(s, np.array([s.k - 1]))[0]) + 1


def _aux_index(s: Shape, k: Ints) -> Ints:
    """Aux column of columns k of the block, counted from that of its first column (layouts.md 5.0 b for any group size)."""
    g = aux_group(s.recipe)
    if not g:
        return np.zeros_like(k)

    def index(x: Ints) -> Ints:
        return np.asarray((x // 64 * 64 + x % 64 // g * g) // g)

    return index(k + s.column) - index(np.array(s.column))


def _edge_plan(s: Shape, box: Box, groups: int, maps_table: NDArray[np.uint8]) -> EdgePlan:
    n, k = np.arange(box.n0, box.n1), np.arange(box.k0, box.k1)
    to = packed_bits(s.recipe, n + s.row, k + s.column)
    if s.pitch:
        from_rows, from_columns = source_bits(s.packing, s.recipe.bits, s.pitch, n, k)
    else:  # padding: every code is 0
        from_rows, from_columns = np.zeros((len(n), s.recipe.bits), np.int64), np.zeros((len(k), s.recipe.bits), np.int64)
    tables = {
        "table": maps_table,
        "aux_columns": _aux_index(s, k),
        "source_rows": from_rows,
        "source_columns": from_columns,
        "target_rows": to.rows,
        "target_columns": to.columns,
        "row_slot": to.row_slot,
        "column_slot": to.column_slot,
        "jump": to.jump,
    }
    held = {x: np.ascontiguousarray(y) for x, y in tables.items()}
    values = {x: _address(y) for x, y in held.items()} | {"rows": len(n), "columns": len(k), "aux_pitch": groups}
    return EdgePlan(parameters=_template(GENERAL, values), tables=tuple(held.values()), box=box, with_aux=groups > 0)


def _signed_table(s: Shape, maps_table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`signed_rows` are stored in two's complement: the code is the stored field with its top bit turned."""
    return (
        maps_table[:, np.arange(maps_table.shape[1]) ^ (1 << (s.recipe.bits - 1))] if s.packing == "signed_rows" and s.pitch else maps_table
    )


@lru_cache(maxsize=512)
def _plan(s: Shape) -> Plan:
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
    return Plan(tile=tile, edges=tuple(_edge(s, x) for x in edges if x.codes))


def _edge(s: Shape, box: Box) -> EdgePlan:
    with_aux = any(m in WITH_AUX for m in s.recipe.maps)
    return _edge_plan(s, box, _aux_columns(s) if with_aux else 0, _signed_table(s, table(s.recipe.maps, s.recipe.bits)))


# ---- running them


@dataclass(slots=True)
class _Run:
    """A block with its addresses. `base`: byte that the plan's word 0 would have in `words`."""

    shape: Shape
    source: Raw
    aux: Aux
    row: int
    column: int
    base: int

    def tile(self, purpose: Purpose, plan: TilePlan) -> tuple[int, Ints]:
        kind = plan.way.route.aux
        aux = arranged(kind, self.aux) if kind else NOTHING
        result = np.zeros(8, np.int64)
        return tiles(plan.way.route, purpose)(self._filled(plan.parameters, TILE_SLOTS, aux, result)), result

    def edge(self, purpose: Purpose, plan: EdgePlan) -> Ints:
        aux = self.aux[plan.box.n0 : plan.box.n1] if plan.with_aux else NOTHING
        result = np.zeros(8, np.int64)
        general(self.shape.recipe.bits, purpose)(self._filled(plan.parameters, GENERAL_SLOTS, aux, result))
        return result

    def _filled(self, template: Ints, slots: tuple[int, ...], aux: Raw, result: Ints) -> Ints:
        out = template.copy()
        for slot, value in zip(slots, (_address(self.source), self.base, _address(aux), _address(result))):
            out[slot] = value
        return out


def _check_words(words: Words) -> None:
    assert words.dtype == np.uint32 and words.ndim == 1 and words.flags.c_contiguous, (words.dtype, words.shape)


def _run(
    recipe: WeightRecipe,
    packing: str,
    source: Raw,
    pitch: int,
    n: int,
    k: int,
    row: int,
    column: int,
    words: Words,
    aux: Aux | None,
    first: int,
) -> _Run:
    """Checks that every word of the block lies in `words`, and takes row and column to their first multiples."""
    _check_words(words)
    assert row >= 0 and column >= 0 and row + n <= place_rows(recipe) and column + k <= place_columns(recipe), (row, n, column, k, recipe)
    group = aux_group(recipe)
    unit = math.lcm(tile_columns(recipe), BLOCK, 128, group or 1)
    row0, column0 = row % BLOCK, column % unit
    by_block, by_unit = _steps(recipe, unit)
    base = (row - row0) // BLOCK * by_block + (column - column0) // unit * by_unit
    low, high = _word_range(recipe, row0, n, column0, k)
    start = base // 4 - first
    assert start + low >= 0 and start + high < len(words), "a word of the block lies outside of `out`"
    taken = NOTHING.reshape(1, -1)
    exact = still = False
    if any(m in WITH_AUX for m in recipe.maps):
        assert aux is not None and aux.dtype == np.uint8 and aux.ndim == 2 and aux.shape[0] >= row + n, "the maps want aux values"
        index = (
            (np.array([column, column + k - 1]) // 64 * 64 + np.array([column, column + k - 1]) % 64 // group * group) // group
            if group
            else np.zeros(2, int)
        )
        taken = np.ascontiguousarray(aux[row : row + n, index[0] : index[1] + 1])
        assert taken.shape == (n, index[1] + 1 - index[0]), (aux.shape, recipe)
        if "fused_e8m0" in recipe.maps:
            top = int(taken.max())
            exact, still = top >= GARBAGE, top == 0
    shape = Shape(recipe=recipe, packing=packing, pitch=pitch, n=n, k=k, row=row0, column=column0, exact=exact, still=still)
    return _Run(shape, source, taken, row, column, _address(words) + 4 * start)


@lru_cache(maxsize=512)
def _steps(recipe: WeightRecipe, columns: int) -> tuple[int, int]:
    """Bytes of words from one block of rows to the next, and from one stretch of columns to the next."""
    bits = packed_bits(recipe, np.array([0, BLOCK]), np.array([0, columns]))
    return int(bits.rows[1, 0] - bits.rows[0, 0]) // 8, int(bits.columns[1, 0] - bits.columns[0, 0]) // 8


@lru_cache(maxsize=512)
def _word_range(recipe: WeightRecipe, row: int, n: int, column: int, k: int) -> tuple[int, int]:
    """First and last word of a block."""
    span = max(tile_columns(recipe), BLOCK)
    rows = np.unique(np.concatenate([np.arange(row, min(row + BLOCK, row + n)), np.arange(max(row, row + n - BLOCK), row + n)]))
    columns = np.unique(
        np.concatenate([np.arange(column, min(column + span, column + k)), np.arange(max(column, column + k - span), column + k)])
    )
    bits = packed_bits(recipe, rows, columns)
    last = (bits.rows.max(0) + bits.columns.max(0) + bits.jump.max(0)).max()
    return int(bits.rows.min() + bits.columns.min()) // 32, int(last) // 32


def pack_block(
    recipe: WeightRecipe,
    *,
    packing: str,
    stored: Raw,
    n: int,
    k: int,
    row: int,
    out: Words,
    aux: Aux | None = None,
    column: int = 0,
    first: int = 0,
) -> None:
    """Writes the words of rows row..row+n, columns column..column+k of the layer.

    stored: the block [n, k] in its packing; the last axis contiguous, else it is copied.  out: flat packed words of one expert from
    word `first` on.  aux: [N', G] uint8 of the whole layer: zero points (int_to_float_zp) or E8M0 offsets (fused_e8m0).
    Blocks whose row is a multiple of 64 (and column of `window_columns`) share no word with other blocks and may run at the same time;
    others write into words that they share, one after the other.
    """
    raw = stored_rows(packing, stored, n)
    run = _run(recipe, packing, raw, raw.strides[0], n, k, row, column, out, aux, first)
    plan = _plan(run.shape)
    if plan.tile is not None:
        run.tile("pack", plan.tile)
    for edge in plan.edges:
        run.edge("pack", edge)


def prove_block(
    recipe: WeightRecipe,
    *,
    packing: str,
    stored: Raw,
    n: int,
    k: int,
    row: int,
    written: Words,
    aux: Aux | None = None,
    column: int = 0,
    first: int = 0,
) -> Mismatch | None:
    """Reads the block's words back to codes and compares each with the source; arguments as in `pack_block`. None: all n * k are equal."""
    raw = stored_rows(packing, stored, n)
    run = _run(recipe, packing, raw, raw.strides[0], n, k, row, column, written, aux, first)
    plan = _plan(run.shape)
    compared, found = 0, []
    if plan.tile is not None:
        differs, result = run.tile("prove", plan.tile)
        assert result[1] == plan.tile.tiles, "tiles were left out"
        compared += int(result[0])
        if differs:
            found.append((plan.tile.box, run.edge("prove", _edge(run.shape, plan.tile.box))))
    for edge in plan.edges:
        result = run.edge("prove", edge)
        compared += int(result[0])
        if result[1]:
            found.append((edge.box, result))
    if compared != n * k:
        raise AssertionError(f"{compared} of {n * k} codes were compared")
    if not found:
        return None
    box, result = min(found, key=lambda x: (x[0].n0 + x[1][2], x[0].k0 + x[1][3]))
    count = sum(int(x[1][1]) for x in found)
    return Mismatch(row + box.n0 + int(result[2]), column + box.k0 + int(result[3]), int(result[4]), int(result[5]), count)


# ---- codes that no source holds


def _zeros_run(recipe: WeightRecipe, box: tuple[int, int, int, int], words: Words, aux: Aux | None, first: int) -> tuple[_Run, Box]:
    """A block of codes 0: stored nowhere, so its pitch is 0."""
    n0, n1, k0, k1 = box
    run = _run(recipe, "rows", NOTHING, 0, n1 - n0, k1 - k0, n0, k0, words, aux, first)
    return run, Box(0, n1 - n0, 0, k1 - k0)


def write_zeros(
    recipe: WeightRecipe, box: tuple[int, int, int, int], out: Words, aux: Aux | None, first: int, codes: NDArray[np.uint8] | None
) -> None:
    """Writes code 0, mapped, at rows and columns box = (n0, n1, k0, k1) of the layer. codes: a table to use instead of the maps'."""
    run, whole = _zeros_run(recipe, box, out, aux, first)
    run.edge("pack", _edge(run.shape, whole) if codes is None else _edge_plan(run.shape, whole, 0, codes))


def compare_zeros(recipe: WeightRecipe, box: tuple[int, int, int, int], written: Words, aux: Aux | None, first: int) -> Mismatch | None:
    run, whole = _zeros_run(recipe, box, written, aux, first)
    result = run.edge("prove", _edge(run.shape, whole))
    if int(result[0]) != whole.codes:
        raise AssertionError(f"{result[0]} of {whole.codes} padded codes were compared")
    if not result[1]:
        return None
    return Mismatch(box[0] + int(result[2]), box[2] + int(result[3]), int(result[4]), int(result[5]), int(result[1]))
