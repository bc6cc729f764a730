"""An expert's weight in windows: the stored words that a window needs, packed by compiled passes, and proven from what the file holds.

The engine packs, writes, reads back and proves window by window while it is in the cache; `verify` only proves.
In: a WeightRecipe and the weight's blocks.  Out: words; the first difference as a ProofFailed.
Facts: architecture.md 5, 6; passes_cpu.md 3 (windows of 256 KB to 4 MB are equally fast).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.layouts import WeightAux
from humming_convert.layouts.address import addresses
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.layouts.small import REFERENCE, SmallPasses
from humming_convert.layouts.weights import map_codes
from humming_convert.plan.types import PlannedLayer
from humming_convert.proof.failed import ProofFailed
from humming_convert.standard.expr import CodeBlock, LookUp, Weight, look_up
from humming_convert.standard.packing import PACKINGS

WINDOW = 1 << 20  # packed words (4 MB) at a time: fewer calls, and rows formats read longer stretches (measured)
SAMPLED = 4  # experts of a tensor in which a window's places are also read by the address formula
RAGGED = 128  # columns that whole tiles of every packing and layout have
SAMPLES = 16  # rows and columns of each part in such a window
SMALL = 1 << 22  # codes of a layer; below it the numpy reference is faster than loading compiled code
SEED = 0x48554D  # of the sampled places: the same run reads the same places

Words = NDArray[np.uint32]
Fetch = Callable[[int, TensorView], NDArray[Any]]
"""(slot, view) -> the view's array. What a slot held before may be overwritten."""
Take = Callable[[str, int], NDArray[np.uint8]]
"""(slot, bytes) -> memory. What the slot held is gone."""


def streams(recipe: LayerRecipe, weight: Weight) -> bool:
    """Whether every block has a compiled pass, and the layer is worth loading it."""
    return large(weight) and all(b.straight and passes.supported(recipe.weight, b.packing, b.bits, b.n, b.k) for b in weight.blocks)


def large(weight: Weight) -> bool:
    """Whether the layer is worth loading compiled code."""
    return weight.n * weight.k * (weight.experts or 1) >= SMALL


def held_whole(recipe: WeightRecipe, block: CodeBlock) -> int:
    """Bytes of a block's stored part if windows need all of it at once, 0 if each window reads its own (`_piece`)."""
    part, shape = block.whole, block.view.at(block.index).shape
    by_columns = block.packing in ("gptq", "awq") and len(shape) == 2 and recipe.place != "raw"
    by_rows = block.packing in ("rows", "signed_rows") and recipe.place == "raw" and (part.k, shape[0]) == (block.k, part.n)
    return 0 if by_columns or by_rows else part.n * part.k * block.bits // 8


def small_passes(weight: Weight) -> SmallPasses:
    """What goes over a layer's scales: compiled passes, or for small layers the references."""
    return passes.SMALL_PASSES if large(weight) else REFERENCE


def look_up_pass(weight: Weight) -> LookUp:
    """What rounds 16-bit scales."""
    return passes.look_up if large(weight) else look_up


class Part(Struct, frozen=True):
    """A piece of a block in a window. row, column: of its first code in the layer; stored: its words."""

    block: CodeBlock
    packing: str
    stored: NDArray[Any]
    n: int
    k: int
    row: int
    column: int


class Piece(Struct, frozen=True):
    """A Part before it is read. view: what is read into memory `slot`; once: for all windows together; cut: rows and columns of it.
    packing: the block's, or `strips` where what was read is turned."""

    block: CodeBlock
    packing: str
    slot: int
    view: TensorView
    once: bool
    cut: tuple[tuple[int, int], tuple[int, int]] | None
    n: int
    k: int
    row: int
    column: int

    def stored(self, memory: NDArray[Any]) -> NDArray[Any]:
        """The piece's words in the memory of its slot."""
        if self.cut is None:
            return memory
        rows = self.block.whole.n if self.once else self.view.shape[0]
        return passes.slice_block(self.packing, self.block.bits, memory, rows, *self.cut)

    def part(self, memory: NDArray[Any]) -> Part:
        return Part(self.block, self.packing, self.stored(memory), self.n, self.k, self.row, self.column)


class Ahead(Struct, frozen=True):
    """A window to come. `sampled`: its places are to be read by address too."""

    window: passes.Window
    pieces: tuple[Piece, ...]
    sampled: bool

    def few_rows(self, slots: Container[int], seed: int) -> Ahead:
        """The same window with some rows only of these slots, which are read once for all windows, so that they can be read for one."""
        return replace(self, pieces=tuple(_few_rows(p, seed) if p.slot in slots else p for p in self.pieces))

    def step(self, memory: Mapping[int, NDArray[Any]]) -> Step:
        """The window with what was read into the memory of each slot."""
        return Step(self.window, tuple(p.part(memory[p.slot]) for p in self.pieces), self.sampled)


class Step(Struct, frozen=True):
    """A window and the parts that fill it."""

    window: passes.Window
    parts: tuple[Part, ...]
    sampled: bool


def sampled_expert(expert: int, experts: int) -> bool:
    """Whether it is one of the about SAMPLED experts of a tensor that Python looks at again; the last one is."""
    return expert % max(experts // SAMPLED, 1) == 0 or expert == experts - 1


@dataclass(slots=True)
class ExpertStream:
    """One expert of a layer. aux: of this expert."""

    planned: PlannedLayer
    recipe: WeightRecipe
    weight: Weight
    expert: int
    aux: WeightAux
    fetch: Fetch
    compared: int = 0
    values: passes.Aux | None = field(init=False)
    _whole: dict[int, NDArray[Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.values = None if self.aux.array is None else passes.Aux(self.aux.array)  # arranged once for all windows

    def steps(self) -> Generator[Step, None, None]:
        """The windows in the order of the output's bytes; each step's stored words are valid until the next."""
        windows = list(passes.windows(self.recipe, WINDOW))
        sampled = self.sampled(len(windows))
        for number, window in enumerate(windows):
            yield self.step(self.ahead(window, number in sampled))

    def ahead(self, window: passes.Window, sampled: bool = False, turned: Mapping[int, Turned] | None = None) -> Ahead:
        """What a window needs, nothing read yet. turned: of these slots, strips."""
        blocks = self.weight.of_expert(self.expert)
        pieces = (_piece(slot, row, block, window) for slot, (row, block) in enumerate(blocks))
        strips = turned or {}
        return Ahead(window, tuple(_of_strips(p) if p.slot in strips else p for p in pieces if p is not None), sampled)

    def turned(self) -> dict[int, Turned]:
        """Slots of blocks that windows read sooner if their stored rows are turned first."""
        _, exact, still = passes.aux_sort(self.recipe, self.values)
        found = {slot: _turned(self.recipe, block, still) for slot, (_, block) in enumerate(self.weight.of_expert(self.expert))}
        return {} if exact else {slot: x for slot, x in found.items() if x is not None}

    def step(self, ahead: Ahead) -> Step:
        """Reads a window's parts."""
        return Step(ahead.window, tuple(self._part(p) for p in ahead.pieces), ahead.sampled)

    def _part(self, p: Piece) -> Part:
        return p.part(self.once(p.slot) if p.once else self.fetch(p.slot, p.view))

    def once(self, slot: int) -> NDArray[Any]:
        """All of a block's words, read once for all windows, in the memory of its slot."""
        held = self._whole.get(slot)
        if held is None:
            _, block = self.weight.of_expert(self.expert)[slot]
            held = self._whole[slot] = self.fetch(slot, block.view.at(block.index))
        return held

    def sampled(self, windows: int) -> set[int]:
        """Which windows of this expert are sampled: one, of about SAMPLED experts; the last too where rows or columns are ragged."""
        if not sampled_expert(self.expert, self.weight.experts or 1):
            return set()
        ragged = self.recipe.k % RAGGED != 0 or self.recipe.pad_k > 0
        return {*some_places(windows, 1, self.expert), *((windows - 1,) if ragged else ())}

    def words(self, step: Step, take: Take) -> Words:
        """Memory for the window's words."""
        return take("packed", 4 * step.window.words).view(np.uint32)

    def place(self, step: Step, p: Part) -> dict[str, Any]:
        """A part as the passes are told of it: where it lies, in its window and in the layer."""
        return self._told(p, p.stored, step.window.first)

    def _told(self, p: Part | Piece, stored: NDArray[Any], first: int) -> dict[str, Any]:
        return {
            "packing": p.packing,
            "stored": stored,
            "n": p.n,
            "k": p.k,
            "row": p.row,
            "column": p.column,
            "aux": self.values,
            "first": first,
        }

    def pack(self, step: Step, words: Words) -> None:
        """Fills the window's words."""
        for p in step.parts:
            passes.pack_block(self.recipe, out=words, **self.place(step, p))
        passes.fill_padding(self.recipe, words, self.values, step.window)

    def prove(self, step: Step, words: Words) -> None:
        """The window's words, as the file holds them, against the source. Raises ProofFailed."""
        for p, bad in zip(step.parts, self.differences(step, words), strict=True):
            if bad is not None:
                raise ProofFailed(self.planned, "weight", f"{p.block.part}: {bad}")
            self.compared += p.n * p.k
        bad = passes.prove_padding(self.recipe, words, self.values, step.window)
        if bad is not None:
            raise ProofFailed(self.planned, "weight", f"padding: {bad}")
        if step.sampled:
            for p in step.parts:
                self._prove_places(p, step.window, words)

    def differences(self, step: Step, words: Words) -> Sequence[passes.Mismatch | None]:
        """For each part of the window, its first code that differs from the source's."""
        return [passes.prove_block(self.recipe, written=words, **self.place(step, p)) for p in step.parts]

    @property
    def sort(self) -> Hashable:
        """Experts of one sort have equal calls (`block_calls`), whatever their files, offsets, codes and scales."""
        blocks = tuple(
            (row, b.packing, b.bits, b.n, b.k, b.whole, b.view.at(b.index).shape, b.view.dtype)
            for row, b in self.weight.of_expert(self.expert)
        )
        return self.recipe, blocks, passes.aux_sort(self.recipe, self.values), passes.padding_code(self.recipe, self.values)

    def block_calls(
        self, ahead: Ahead, memory: Mapping[int, NDArray[Any]], words: Words, slots: Mapping[int, int], bases: passes.Bases
    ) -> list[passes.BlockCalls]:
        """A window's parts as calls. memory: by slot, the array that a piece's view is read into, of any content; slots: its base."""
        out = []
        for p in ahead.pieces:
            stored = p.stored(memory[p.slot])
            source = passes.At(slots[p.slot], passes.address(stored) - passes.address(memory[p.slot]))
            out.append(
                passes.block_calls(self.recipe, words=words, source=source, bases=bases, **self._told(p, stored, ahead.window.first))
            )
        return out

    def finish(self) -> None:
        """Every code was compared: a pass and its proof that skip the same codes must not agree about it (passes_cpu.md 4.7)."""
        if self.compared != self.recipe.n * self.recipe.k:
            raise ProofFailed(self.planned, "weight", f"{self.compared} of {self.recipe.n * self.recipe.k} codes were compared")

    def _prove_places(self, p: Part, w: passes.Window, words: Words) -> None:
        """Some codes of a part, by the address formula of layouts.md 5.2, against the numpy reader of its packing."""
        rows, columns, at, bit = _sample(self.recipe, p.n, p.k, p.row, p.column)
        wanted = self._mapped(_some_codes(p, rows), rows + p.row, p.column)[:, columns]
        taken = words[at - w.first] >> bit & 1
        placed = (taken << np.arange(self.recipe.bits, dtype=np.uint32)).sum(axis=1).astype(np.uint8).reshape(wanted.shape)
        if not np.array_equal(placed, wanted):
            i, j = (int(x[0]) for x in np.nonzero(placed != wanted))
            where = f"{p.block.part}: by address, the code at n={rows[i]} k={columns[j] + p.column}"
            raise ProofFailed(self.planned, "weight", f"{where} is {placed[i, j]}, want {wanted[i, j]}")

    def _mapped(self, codes: NDArray[np.uint8], rows: NDArray[np.intp], column: int) -> NDArray[np.uint8]:
        """Codes of some rows [m, k] from `column` on, as they are placed."""
        group = self.recipe.group
        lead = column % group if group else 0  # columns of the first group before `column`
        if lead:
            codes = np.pad(codes, ((0, 0), (lead, 0)))
        some = replace(self.recipe, n=codes.shape[0], k=codes.shape[1], pad_n=0, pad_k=0)

        def cut(x: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
            return None if x is None else x[rows][:, column // group if group else 0 :]

        return map_codes(some, codes, WeightAux(zero=cut(self.aux.zero), offsets=cut(self.aux.offsets)))[:, lead:]


def _piece(slot: int, row: int, block: CodeBlock, w: passes.Window) -> Piece | None:
    """What of a block lies in a window, and the fewest stored rows that hold it."""
    r0, r1 = max(w.n0 - row, 0), min(w.n1 - row, block.n)
    c0, c1 = w.k0, min(w.k1, block.k)
    if r0 >= r1 or c0 >= c1:
        return None
    view, part = block.view.at(block.index), block.whole
    rows, columns = block.place((r0, r1), (c0, c1))
    once, cut = False, None
    if block.packing in ("gptq", "awq") and (r0, r1) == (0, block.n) and len(view.shape) == 2:
        words = 32 // block.bits if block.packing == "gptq" and 32 % block.bits == 0 else None
        first, last = columns if block.packing == "awq" else (columns[0] * block.bits // 32, -(-columns[1] * block.bits // 32))
        assert words is None or columns[0] % words == 0
        view = view.rows(first, last)
        if rows != (0, part.n):
            cut = rows, (0, c1 - c0)
    elif block.packing in ("rows", "signed_rows") and columns == (0, part.k) and view.shape[0] == part.n:
        view = view.rows(*rows)
    else:
        once, cut = True, (rows, columns)
    return Piece(block, block.packing, slot, view, once, cut, r1 - r0, c1 - c0, row + r0, c0)


class Turned(Struct, frozen=True):
    """A block's stored rows, to be turned into strips. view: the rows; shape: strips, and bytes from one to the next."""

    view: TensorView
    shape: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        return self.view.nbytes // self.view.shape[0]


def _turned(recipe: WeightRecipe, block: CodeBlock, still: bool) -> Turned | None:
    view, part = block.view.at(block.index), block.whole
    rows, columns = block.place((0, block.n), (0, block.k))
    if columns != (0, part.k) or view.shape[0] != part.n or not passes.turns(recipe, block.packing, block.n, block.k, still):
        return None
    view = view.rows(*rows)
    return Turned(view, passes.strip_shape(block.n, view.nbytes // block.n))


def _of_strips(p: Piece) -> Piece:
    """The piece in its block's turned rows."""
    first = p.block.whole.row
    assert p.cut is not None, p
    (r0, r1), columns = p.cut
    return replace(p, packing="strips", cut=((r0 - first, r1 - first), columns))


def _few_rows(p: Piece, seed: int) -> Piece:
    """passes.BLOCK rows of a piece, or as many as it has."""
    assert p.cut is not None, p
    (r0, r1), columns = p.cut
    lead = -p.row % passes.BLOCK  # rows before the layer's first multiple
    blocks = (r1 - r0 - lead) // passes.BLOCK
    start, n = (lead + passes.BLOCK * int(some_places(blocks, 1, seed)[0]), passes.BLOCK) if blocks > 0 else (0, r1 - r0)
    view = p.view.rows(r0 + start, r0 + start + n)
    return replace(p, view=view, once=False, cut=((0, n), columns), n=n, row=p.row + start)


class Packer(Protocol):
    """Another processor, for one worker: streams that it packs and proves, and memory of this machine that it reads best."""

    def empty(self, nbytes: int) -> NDArray[np.uint8]: ...

    def stream(
        self, planned: PlannedLayer, recipe: WeightRecipe, weight: Weight, expert: int, aux: WeightAux, fetch: Fetch
    ) -> ExpertStream: ...


class Packers(Protocol):
    """The processor that the workers of a run share. held: private bytes of this process that its driver took."""

    @property
    def held(self) -> int: ...

    def packer(self) -> Packer:
        """Called in the thread that will use it."""


@lru_cache(maxsize=1024)
def some_places(size: int, count: int, seed: int) -> NDArray[np.intp]:
    """Up to `count` different numbers below `size`, ascending, the same for the same seed. (numpy's random and unique cost 0.1 s to import.)"""
    dice = random.Random(SEED + seed)  # noqa: S311 nothing secret
    out = np.array(sorted({dice.randrange(size) for _ in range(count)}), np.intp)
    out.flags.writeable = False
    return out


@lru_cache(maxsize=64)
def _sample(recipe: WeightRecipe, n: int, k: int, row: int, column: int) -> tuple[NDArray[Any], ...]:
    """Places of a part that are looked at: rows and columns of the part, word and bit (uint32) of each code of rows x columns. Of a model's
    layers many have one shape."""
    rows, columns = some_places(n, SAMPLES, row), some_places(k, SAMPLES, column)
    at, bit = addresses(recipe, *(x.reshape(-1) for x in np.meshgrid(rows + row, columns + column, indexing="ij")))
    return rows, columns, at, bit.astype(np.uint32)


def _some_codes(p: Part, rows: NDArray[np.intp]) -> NDArray[np.uint8]:
    """[len(rows), k]: codes of some rows of a part, by the numpy reader of its packing."""
    unpack, bits = PACKINGS[p.block.packing], p.block.bits
    if p.block.packing == "gptq":
        return unpack(np.ascontiguousarray(p.stored.view("<i4")[:, rows]), bits, len(rows), p.k)
    if p.block.packing == "awq":
        words = np.ascontiguousarray(p.stored.view("<i4")[:, rows // 8])
        return np.ascontiguousarray(unpack(words, bits, 8 * len(rows), p.k).reshape(len(rows), 8, p.k)[np.arange(len(rows)), rows % 8])
    return unpack(np.ascontiguousarray(p.stored.reshape(p.n, -1)[rows]), bits, len(rows), p.k)
