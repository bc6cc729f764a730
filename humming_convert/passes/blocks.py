"""Blocks: packing, padding and proving one block of codes of one expert, from source words to packed words and back.

In: a WeightRecipe, a stored block (raw bytes, any alignment) and where it belongs.  Out: words written, or the first difference.
Most of a block goes through a compiled tile kernel; edges that fill no tile, and what has no kernel, go code by code.
Everything runs without the interpreter's lock. Facts: layouts.md 2 (what comes before and after padding), 5.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.aux_values import Aux, address, aux_column, aux_group, aux_row_offset, aux_stride, wanted
from humming_convert.passes.known import general, tiles
from humming_convert.passes.machine import Kernel
from humming_convert.passes.maps import GARBAGE
from humming_convert.passes.plans import (
    EDGE_TABLES,
    GENERAL_SLOTS,
    TILE_SLOTS,
    Box,
    EdgePlan,
    Plan,
    Shape,
    TilePlan,
    edge_of,
    edge_plan,
    plan_of,
)
from humming_convert.passes.positions import BLOCK, STRIP, Ints, packed_bits, padded_width, place_columns, place_rows, tile_columns
from humming_convert.passes.route import Purpose
from humming_convert.passes.routes import way

Raw = NDArray[Any]
AuxValues = Aux | NDArray[np.uint8] | None
Words = NDArray[np.uint32]

PACKINGS = ("rows", "signed_rows", "gptq", "awq")
NOTHING = np.zeros(64, np.uint8)
NOWHERE = address(NOTHING)


class Mismatch(Struct, frozen=True):
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
    (or the block's end), of `rows` in multiples of 8, of `strips` in multiples of a strip's."""
    raw = stored_rows(packing, stored, n)
    (n0, n1), (k0, k1) = rows, columns
    if packing == "signed_rows":
        return raw[n0:n1, k0:k1]
    if packing == "rows":
        return raw[n0:n1, k0 * bits // 8 : -(-k1 * bits // 8)]
    if packing == "strips":
        return raw[k0 * bits // (8 * STRIP) : -(-k1 * bits // (8 * STRIP)), n0 * STRIP : n1 * STRIP]
    if packing == "gptq":
        return raw[k0 * bits // 32 : -(-k1 * bits // 32), n0 * 4 : n1 * 4]
    return raw[k0:k1, n0 // 2 : n1 // 2]


# ---- running them


class Fit(Struct, frozen=True, kw_only=True):
    """What is the same for every block of one shape at one place of a layer. start: word of the layer at which the plan's word 0 lies;
    low, high: first and last word of the block from there; last_aux: last column of aux values that it reads."""

    shape: Shape
    start: int
    low: int
    high: int
    aux_column: int
    last_aux: int
    kernels: dict[Purpose, Kernel] = field(default_factory=dict)

    def kernel(self, purpose: Purpose, tile: TilePlan) -> Kernel:
        held = self.kernels.get(purpose)
        if held is None:
            held = self.kernels[purpose] = tiles(tile.way.route, purpose)
        return held


@lru_cache(maxsize=2048)
def _fit(
    recipe: WeightRecipe,
    packing: str,
    pitch: int,
    n: int,
    k: int,
    row: int,
    column: int,
    aux_shape: tuple[int, int] | None,
    exact: bool,
    still: bool,
) -> Fit:
    """Takes row and column to their first multiples; calls are many, shapes are few."""
    assert row >= 0 and column >= 0, (row, column)
    assert row + n <= place_rows(recipe) and column + k <= place_columns(recipe), (n, k, row, column, recipe)
    group = aux_group(recipe)
    unit = column_unit(recipe)
    first_row, first_column = row % BLOCK, column % unit
    by_block, by_unit = _steps(recipe, unit)
    start = ((row - first_row) // BLOCK * by_block + (column - first_column) // unit * by_unit) // 4
    low, high = _word_range(recipe, first_row, n, first_column, k)
    shape = Shape(
        recipe=recipe,
        packing=packing,
        pitch=pitch,
        n=n,
        k=k,
        row=first_row,
        column=first_column,
        aux_shape=aux_shape or (0, 0),
        exact=exact,
        still=still,
    )
    first_aux, last_aux = (int(aux_column(group, np.array(x))) for x in (column, column + k - 1)) if aux_shape else (0, 0)
    return Fit(shape=shape, start=start, low=low, high=high, aux_column=first_aux, last_aux=last_aux)


class Run(Struct, frozen=True):
    """A block with its addresses. base: address that the plan's word 0 would have in the packed words."""

    fit: Fit
    source: Raw
    aux: Aux | None
    row: int
    base: int

    @property
    def shape(self) -> Shape:
        return self.fit.shape

    @property
    def plan(self) -> Plan:
        return plan_of(self.fit.shape)

    def tile_aux(self, plan: TilePlan) -> tuple[str | None, int]:
        """Where the aux values of a tile kernel begin: (one of AUX_KINDS, bytes from the start of these), or (None, an address)."""
        kind = plan.way.route.aux
        if not kind:
            return None, NOWHERE
        at = aux_row_offset(kind, self.row, plan.aux_pitch) + self.fit.aux_column * aux_stride(kind, "k0", 1, plan.aux_pitch)
        return kind.rstrip("0123456789"), at

    def edge_aux(self, plan: EdgePlan) -> tuple[str | None, int]:
        """The same for the general kernel."""
        if not plan.with_aux:
            return None, NOWHERE
        return "spread", (self.row + plan.box.n0) * self.shape.aux_shape[1] + self.fit.aux_column

    def _aux(self, kind: str | None, at: int) -> int:
        if kind is None:
            return at
        assert self.aux is not None
        return address(self.aux.arranged(kind)) + at

    def tile(self, purpose: Purpose, plan: TilePlan) -> tuple[int, Ints]:
        result = np.zeros(8, np.int64)
        filled = self._filled(plan.parameters, TILE_SLOTS, self._aux(*self.tile_aux(plan)), result)
        return self.fit.kernel(purpose, plan)(filled), result

    def edge(self, purpose: Purpose, plan: EdgePlan) -> Ints:
        result = np.zeros(8, np.int64)
        general(self.shape.recipe.bits, purpose)(self._filled(plan.parameters, GENERAL_SLOTS, self._aux(*self.edge_aux(plan)), result))
        return result

    def _filled(self, template: Ints, slots: tuple[int, ...], aux: int, result: Ints) -> Ints:
        out = template.copy()
        for slot, value in zip(slots, (address(self.source), self.base, aux, address(result))):
            out[slot] = value
        return out


class Where(Struct, frozen=True, kw_only=True):
    """A block's place in the layer."""

    n: int
    k: int
    row: int
    column: int


def aux_sort(recipe: WeightRecipe, aux: Aux | None) -> tuple[tuple[int, int] | None, bool, bool]:
    """All that a plan has to know of aux values: (shape, an E8M0 offset is outside the kernels' arithmetic, every one is 0)."""
    offsets = aux.top if aux is not None and "fused_e8m0" in recipe.maps else -1
    return None if aux is None else (aux.values.shape[0], aux.values.shape[1]), offsets >= GARBAGE, offsets == 0


def _placed(
    recipe: WeightRecipe, packing: str, pitch: int, at: Where, words: int, aux: AuxValues, first: int
) -> tuple[Fit, int, Aux | None]:
    """(fit, the word among `words` many from `first` on at which the plan's word 0 lies, aux). Checks that all that kernels will touch is there."""
    held = None
    if wanted(recipe):
        assert aux is not None, f"{recipe.maps} want aux values"
        held = aux if isinstance(aux, Aux) else Aux(aux)
    shape, exact, still = aux_sort(recipe, held)
    fit = _fit(recipe, packing, pitch, at.n, at.k, at.row, at.column, shape, exact, still)
    start = fit.start - first
    assert start + fit.low >= 0 and start + fit.high < words, "a word of the block lies outside of the array"
    assert shape is None or (shape[0] >= at.row + at.n and shape[1] > fit.last_aux), (shape, recipe)
    return fit, start, held


def _run(recipe: WeightRecipe, packing: str, source: Raw, pitch: int, at: Where, words: Words, aux: AuxValues, first: int) -> Run:
    assert words.dtype == np.uint32 and words.ndim == 1 and words.flags.c_contiguous, (words.dtype, words.shape)
    fit, start, held = _placed(recipe, packing, pitch, at, len(words), aux, first)
    return Run(fit, source, held, at.row, address(words) + 4 * start)


def run_of(recipe: WeightRecipe, packing: str, stored: Raw, at: Where, words: Words, aux: AuxValues, first: int) -> Run:
    """A stored block and the words from `first` on that it belongs in; checks that all that kernels will touch is there."""
    raw = _checked(packing, recipe.bits, stored, at.n, at.k)
    return _run(recipe, packing, raw, raw.strides[0], at, words, aux, first)


def _checked(packing: str, bits: int, stored: Raw, n: int, k: int) -> Raw:
    """The block's bytes, all of them there."""
    raw = stored_rows(packing, stored, n)
    rows, width = {
        "rows": (n, -(-k * bits // 8)),
        "signed_rows": (n, k),
        "gptq": (-(-k * bits // 32), 4 * n),
        "awq": (k, n // 2),
        "strips": (-(-k * bits // (8 * STRIP)), n * STRIP),
    }[packing]
    assert raw.shape[0] >= rows and raw.shape[1] >= width, (packing, raw.shape, n, k)
    return raw


@lru_cache(maxsize=512)
def column_unit(recipe: WeightRecipe) -> int:
    """Columns after which the places of words and of aux values repeat."""
    return math.lcm(tile_columns(recipe), BLOCK, 128, aux_group(recipe) or 1)


@lru_cache(maxsize=512)
def _steps(recipe: WeightRecipe, columns: int) -> tuple[int, int]:
    """Bytes of words from one block of rows to the next, and from one stretch of columns to the next."""
    bits = packed_bits(recipe, np.array([0, BLOCK]), np.array([0, columns]))
    return int(bits.rows[1, 0] - bits.rows[0, 0]) // 8, int(bits.columns[1, 0] - bits.columns[0, 0]) // 8


@lru_cache(maxsize=512)
def _word_range(recipe: WeightRecipe, row: int, n: int, column: int, k: int) -> tuple[int, int]:
    """First and last word of a block."""
    span = max(tile_columns(recipe), BLOCK)
    rows = np.concatenate([np.arange(row, min(row + BLOCK, row + n)), np.arange(max(row, row + n - BLOCK), row + n)])
    columns = np.concatenate([np.arange(column, min(column + span, column + k)), np.arange(max(column, column + k - span), column + k)])
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
    aux: AuxValues = None,
    column: int = 0,
    first: int = 0,
) -> None:
    """Writes the words of rows row..row+n, columns column..column+k of the layer.

    stored: the block [n, k] in its packing; the last axis contiguous, else it is copied.  out: flat packed words of one expert from
    word `first` on.  aux: [N', G] uint8 of the whole layer (or an `Aux` of it, made once): zero points (int_to_float_zp) or E8M0 offsets (fused_e8m0).
    Blocks whose row is a multiple of 64 (and column of `window_columns`) share no word with other blocks and may run at the same time;
    others write into words that they share, one after the other.
    """
    run = run_of(recipe, packing, stored, Where(n=n, k=k, row=row, column=column), out, aux, first)
    plan = run.plan
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
    aux: AuxValues = None,
    column: int = 0,
    first: int = 0,
) -> Mismatch | None:
    """Reads the block's words back to codes and compares each with the source; arguments as in `pack_block`. None: all n * k are equal."""
    run = run_of(recipe, packing, stored, Where(n=n, k=k, row=row, column=column), written, aux, first)
    plan = run.plan
    compared, found = 0, []
    if plan.tile is not None:
        differs, result = run.tile("prove", plan.tile)
        assert result[1] == plan.tile.tiles, "tiles were left out"
        compared += int(result[0])
        if differs:
            found.append((plan.tile.box, run.edge("prove", edge_plan(run.shape, plan.tile.box))))
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


# ---- a block for another processor


class Walk(Struct, frozen=True, kw_only=True):
    """How to go code by code through a block: the tables of the general kernel, for a processor that has its own.

    key: equal for equal tables.  tables: by the names of EDGE_TABLES.  source: the stored bytes, from which `source_*` count.
    word: of the words at which bit 0 of `target_*` lies; may be negative, no code is there.  aux: first byte of the aux values, row by row
    `aux_pitch` bytes apart; None where no map looks at them.
    """

    key: Shape
    tables: dict[str, NDArray[Any]]
    source: Raw
    word: int
    aux: int | None
    aux_pitch: int


def walk(
    recipe: WeightRecipe,
    *,
    packing: str,
    stored: Raw,
    n: int,
    k: int,
    row: int,
    words: int,
    aux: AuxValues = None,
    column: int = 0,
    first: int = 0,
) -> Walk:
    """Arguments as in `pack_block`; words: how many there are from `first` on."""
    raw = _checked(packing, recipe.bits, stored, n, k)
    fit, start, held = _placed(recipe, packing, raw.strides[0], Where(n=n, k=k, row=row, column=column), words, aux, first)
    plan = edge_of(fit.shape, Box(0, n, 0, k))
    pitch = fit.shape.aux_shape[1]
    at = None if held is None else row * pitch + fit.aux_column
    return Walk(key=fit.shape, tables=dict(zip(EDGE_TABLES, plan.tables)), source=raw, word=start, aux=at, aux_pitch=pitch)


# ---- codes that no source holds


def _zeros_run(recipe: WeightRecipe, box: tuple[int, int, int, int], words: Words, aux: AuxValues, first: int) -> tuple[Run, Box]:
    """A block of codes 0: stored nowhere, so its pitch is 0."""
    n0, n1, k0, k1 = box
    run = _run(recipe, "rows", NOTHING, 0, Where(n=n1 - n0, k=k1 - k0, row=n0, column=k0), words, aux, first)
    return run, Box(0, n1 - n0, 0, k1 - k0)


def write_zeros(
    recipe: WeightRecipe, box: tuple[int, int, int, int], out: Words, aux: AuxValues, first: int, codes: NDArray[np.uint8] | None
) -> None:
    """Writes code 0, mapped, at rows and columns box = (n0, n1, k0, k1) of the layer. codes: a table to use instead of the maps'."""
    run, whole = _zeros_run(recipe, box, out, aux, first)
    run.edge("pack", edge_of(run.shape, whole) if codes is None else edge_plan(run.shape, whole, codes))


def compare_zeros(recipe: WeightRecipe, box: tuple[int, int, int, int], written: Words, aux: AuxValues, first: int) -> Mismatch | None:
    run, whole = _zeros_run(recipe, box, written, aux, first)
    result = run.edge("prove", edge_of(run.shape, whole))
    if int(result[0]) != whole.codes:
        raise AssertionError(f"{result[0]} of {whole.codes} padded codes were compared")
    if not result[1]:
        return None
    return Mismatch(box[0] + int(result[2]), box[2] + int(result[3]), int(result[4]), int(result[5]), int(result[1]))
