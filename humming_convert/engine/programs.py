"""An expert's windows as a program (`passes.calls`): which calls there are, and what each does.

In: one expert of a sort.  Out: a Listed, good for every expert of that sort: files, offsets, memory and digests are bases.
Facts: passes_cpu.md 3 (windows that fit the second-level cache).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.engine.digest import update_call
from humming_convert.engine.worker import PHASES
from humming_convert.passes import BLOCK, STRIP, At, Listing, Program
from humming_convert.passes.calls import NUMBER
from humming_convert.proof.stream import ExpertStream, Turned

LIST = 1 << 23  # packed bytes in a list: a stop is noticed after every one
WINDOW = 1 << 16  # packed words (256 KB) at a time: these, the source's and both files' pages are half of a second-level cache
KEPT = 64  # programs; of a model's layers some dozen differ, and one takes up to a megabyte
Made = TypeVar("Made")

# bases after the program's own: the output's descriptor, the byte of it where the expert begins, the window's words, times, what proofs
# count, the digests of file and tensor, rows that are to be turned, aux values by arrangement; then three for each slot
OUT, EXPERT, WORDS, TIMES, RESULT, FILE_DIGEST, TENSOR_DIGEST, BAND, AUX = range(2, 11)
SLOTS = AUX + len(passes.AUX_KINDS)
DESCRIPTOR, MEMORY, OFFSET = range(3)  # of a slot: the source's descriptor, where it is read to, the byte of it where the block begins
TOLD = passes.Bases(WORDS, RESULT, tuple(AUX + i for i in range(len(passes.AUX_KINDS))))

READ, WRITE, BACK, PROVE, TURN, OTHER = range(6)  # what a call does; TURN: reads rows that are turned
MARKS = len(PHASES) + 1  # times noted in a window


def slot_base(slot: int, which: int) -> int:
    return SLOTS + 3 * slot + which


class List(Struct, frozen=True):
    """Windows number .. last, the last not among them. first, end: their calls; nbytes: of their words; listed: False for one window that
    needs Python; sampled: the last one is to be proved once more."""

    number: int
    last: int
    first: int
    end: int
    nbytes: int
    codes: int
    listed: bool
    sampled: bool


class Listed(Struct, frozen=True):
    """windows: of one expert, in order.  starts: first call of each, and the end; equal where a window needs Python.
    doing: [calls, 3]: what a call does, the number of its window and of its piece.  codes: of each window.
    bands: (slot, first row, last) of rows that are turned, before the first window."""

    windows: list[passes.Window]
    program: Program
    starts: NDArray[np.int64]
    doing: NDArray[np.int64]
    codes: NDArray[np.int64]
    reads: dict[int, int]
    """slot -> bytes of the largest window's; slots that are read once are not here"""
    turned: dict[int, Turned]
    bands: list[tuple[int, int, int]]
    _lists: dict[frozenset[int], list[List]] = field(default_factory=dict)

    def lists(self, sampled: frozenset[int]) -> list[List]:
        """All windows as lists of some megabytes, made once. A sampled window is the last of its list: its words are still there."""
        found = self._lists.get(sampled)
        if found is None:
            found = self._lists[sampled] = self._divided(sampled)
        return found

    def _divided(self, sampled: frozenset[int]) -> list[List]:
        out: list[List] = []
        starts, number = self.starts.tolist(), 0
        while number < len(self.windows):
            last, nbytes = number, 0
            while last < len(self.windows) and starts[last] < starts[last + 1] and nbytes < LIST:
                nbytes += 4 * self.windows[last].words
                last += 1
                if last - 1 in sampled:
                    break
            listed = last > number
            last = max(last, number + 1)
            codes = int(self.codes[number:last].sum())
            out.append(List(number, last, starts[number], starts[last], nbytes, codes, listed, last - 1 in sampled))
            number = last
        return out

    @property
    def band_bytes(self) -> int:
        return max(((r1 - r0) * self.turned[slot].row_bytes for slot, r0, r1 in self.bands), default=0)


_kept: dict[Hashable, Any] = {}
_lock = threading.Lock()  # two workers that list at a time would make tables of their own, whose addresses differ


def kept(sort: Hashable, make: Callable[[], Made]) -> Made:
    """What is made for all of one sort, made once."""
    with _lock:
        found: Made | None = _kept.get(sort)
        if found is None:
            if len(_kept) >= KEPT:
                del _kept[next(iter(_kept))]  # the oldest
            found = _kept[sort] = make()
        return found


def program_of(expert: ExpertStream) -> Listed:
    """The program of the expert's sort."""
    return kept(expert.sort, lambda: listed(expert))


def listed(expert: ExpertStream) -> Listed:
    """Looks at no file; an expert's sort decides all of it."""
    try:
        return _Lister(expert, expert.turned()).all()
    except _NeedsRows:
        return _Lister(expert, {}).all()


class _NeedsRows(Exception):
    """A window goes through Python, which reads rows as they are stored, or one window takes whole rows: turning them would only cost."""


class _Lister:
    def __init__(self, expert: ExpertStream, turned: dict[int, Turned]) -> None:
        packings = {"strips" if i in turned else block.packing for i, (_, block) in enumerate(expert.weight.of_expert(expert.expert))}
        _, _, still = passes.aux_sort(expert.recipe, expert.values)
        windows = list(passes.windows(expert.recipe, WINDOW, passes.window_unit(expert.recipe, packings, still)))
        if turned and len(windows) == 1:
            raise _NeedsRows
        self._expert, self._windows, self._turned = expert, windows, turned
        self._code = passes.padding_code(expert.recipe, expert.values)
        self._words = np.empty(max(w.words for w in windows), np.uint32)
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._read, self._write = passes.function("pread64", "pread"), passes.function("pwrite64", "pwrite")
        self._clock = passes.function("clock_gettime")
        self._codes = np.zeros(len(windows), np.int64)
        self._reads: dict[int, int] = {}

    def all(self) -> Listed:
        period, count = self._periods()
        parts = [x for x in [self._repeated(period, count)] if x is not None]
        for number in range(period * count if parts else 0, len(self._windows)):
            part = self._part([number])
            if part is None and self._turned:
                raise _NeedsRows
            parts.append(part or _Part(Listing().done(), np.zeros((0, 3), np.int64)))
        bands = self._bands()
        if bands:
            parts.insert(0, self._turning(bands))
        doing = np.concatenate([x.doing for x in parts])
        starts = np.searchsorted(doing[:, 1], np.arange(len(self._windows) + 1))
        program = passes.joined([x.program for x in parts])
        self._check_places(program, doing)
        return Listed(self._windows, program, starts, doing, self._codes, self._reads, self._turned, bands)

    def _bands(self) -> list[tuple[int, int, int]]:
        """(slot, first row, last) of rows that are turned: as many as stay in the cache until they are; a short rest goes with those before."""
        out: list[tuple[int, int, int]] = []
        for slot, turned in self._turned.items():
            rows, step = turned.view.shape[0], max(4 * WINDOW // turned.row_bytes // BLOCK, 1) * BLOCK
            first = [*range(0, max(rows - step, 0) + 1, step)]
            out += zip([slot] * len(first), first, [*first[1:], rows], strict=True)
        return out

    def _turning(self, bands: list[tuple[int, int, int]]) -> _Part:
        """Reads all bands and turns them. These calls are the first window's; their time has a row of its own, after the windows'."""
        listing, doing = Listing(), Doing()
        blocks = self._expert.weight.of_expert(self._expert.expert)

        def mark(phase: int) -> None:
            listing.call(self._clock, time.CLOCK_MONOTONIC, At(TIMES, 16 * (MARKS * len(self._windows) + phase)))
            doing.upto(listing, OTHER, 0)

        mark(0)
        for i, (slot, r0, r1) in enumerate(bands):
            turned, (_, block) = self._turned[slot], blocks[slot]
            start = turned.view.offset - block.view.at(block.index).offset + r0 * turned.row_bytes
            nbytes = (r1 - r0) * turned.row_bytes
            listing.call(self._read, At(slot_base(slot, DESCRIPTOR)), At(BAND), nbytes, At(slot_base(slot, OFFSET), start), want=nbytes)
            doing.upto(listing, TURN, 0, i)
            to = At(slot_base(slot, MEMORY), STRIP * r0)
            passes.add_turn(listing, r1 - r0, turned.row_bytes, turned.shape[1], At(BAND), to, RESULT)
            doing.upto(listing, OTHER, 0)
        for phase in range(1, MARKS):
            mark(phase)
        return _Part(listing.done(), np.array(doing.rows, np.int64).reshape(-1, 3))

    def _check_places(self, program: Program, doing: NDArray[np.int64]) -> None:
        """Every listed window is written to and read back from its own place in the file: a proof in memory does not see where that is."""
        first, words = (np.array([getattr(w, x) for w in self._windows], np.int64) for x in ("first", "words"))
        for what in (WRITE, BACK):
            rows = np.flatnonzero(doing[:, 0] == what)
            number, calls, bases = doing[rows, 1], program.calls[rows], program.call_bases[rows]
            assert np.array_equal(number, np.flatnonzero(np.bincount(doing[:, 1]))), what  # numpy's unique imports its masked arrays
            assert np.array_equal(
                calls[:, 1:], np.stack([0 * number, 0 * number, 4 * words[number], 4 * first[number], 4 * words[number]], 1)
            )
            assert (bases == (NUMBER, OUT, WORDS, NUMBER, EXPERT, NUMBER)).all(), what

    def _periods(self) -> tuple[int, int]:
        """(windows after which the calls are the same but for where they read and write, how many such periods the expert begins with)."""
        recipe, first = self._expert.recipe, self._windows[0]
        if recipe.place == "raw":
            return 1, 0
        wide = first.k1 - first.k0
        period = math.lcm(wide, passes.column_unit(recipe)) // wide
        same = sum(w.k1 - w.k0 == wide and w.k1 <= recipe.k for w in self._windows)  # all of them at the start
        return period, same // period

    def _repeated(self, period: int, count: int) -> _Part | None:
        if count < 4:
            return None
        three = [self._part(range(i * period, (i + 1) * period)) for i in (0, 1, count - 1)]
        first, second, last = three
        if first is None or second is None or last is None:
            return None
        program = passes.repeated(first.program, second.program, last.program, count)
        if program is None:
            return None
        self._codes[: period * count] = np.tile(self._codes[:period], count)
        doing = first.doing + np.arange(count)[:, None, None] * np.array((0, period, 0))
        return _Part(program, doing.reshape(-1, 3))

    def _part(self, numbers: Sequence[int]) -> _Part | None:
        """Some windows; None where one of them needs Python."""
        listing, doing = Listing(), Doing()
        for number in numbers:
            if not self._add(listing, doing, number):
                return None
        return _Part(listing.done(), np.array(doing.rows, np.int64).reshape(-1, 3))

    def _add(self, listing: Listing, doing: Doing, number: int) -> bool:
        expert, window = self._expert, self._windows[number]
        ahead, words = expert.ahead(window, turned=self._turned), self._words[: window.words]
        memory = self._memories(ahead.pieces)
        slots = {p.slot: slot_base(p.slot, MEMORY) for p in ahead.pieces}
        blocks = expert.block_calls(ahead, memory, words, slots, TOLD)
        nbytes, at = words.nbytes, At(EXPERT, 4 * window.first)

        def mark(phase: int) -> None:
            listing.call(self._clock, time.CLOCK_MONOTONIC, At(TIMES, 16 * (MARKS * number + phase)))
            doing.upto(listing, OTHER, number)

        self._codes[number] = sum(p.n * p.k for p in ahead.pieces)
        mark(0)
        for i, p in enumerate(ahead.pieces):
            if not p.once:
                self._reads[p.slot] = max(self._reads.get(p.slot, 0), p.view.nbytes)
                start = p.view.offset - p.block.view.at(p.block.index).offset
                descriptor, offset = At(slot_base(p.slot, DESCRIPTOR)), At(slot_base(p.slot, OFFSET), start)
                listing.call(self._read, descriptor, At(slots[p.slot]), p.view.nbytes, offset, want=p.view.nbytes)
                doing.upto(listing, READ, number, i)
        mark(1)
        for block in blocks:
            block.add(listing, "pack")
        if not passes.add_padding(listing, "pack", expert.recipe, window, words, WORDS, self._code):
            return False
        mark(2)
        listing.call(self._write, At(OUT), At(WORDS), nbytes, at, want=nbytes)
        doing.upto(listing, WRITE, number)
        mark(3)
        listing.call(self._read, At(OUT), At(WORDS), nbytes, at, want=nbytes)
        doing.upto(listing, BACK, number)
        for digest in (FILE_DIGEST, TENSOR_DIGEST):
            listing.call(update_call(), At(digest), At(WORDS), nbytes)
        doing.upto(listing, OTHER, number)
        for block in blocks:
            block.add(listing, "prove")
        passes.add_padding(listing, "prove", expert.recipe, window, words, WORDS, self._code)
        doing.upto(listing, PROVE, number)
        mark(4)
        return True

    def _memories(self, pieces: Sequence[Any]) -> dict[int, NDArray[Any]]:
        """Arrays as large as what is read: their addresses are taken off again, their content is not looked at."""
        out: dict[int, NDArray[Any]] = {}
        for p in pieces:
            turned = self._turned.get(p.slot)
            nbytes = p.view.nbytes if turned is None else turned.shape[0] * turned.shape[1]
            held = self._memory.get(p.slot)
            if held is None or held.nbytes < nbytes:
                held = self._memory[p.slot] = np.empty(nbytes, np.uint8)
            out[p.slot] = shaped(held, p.view) if turned is None else held.reshape(turned.shape)
        return out


class _Part(Struct, frozen=True):
    program: Program
    doing: NDArray[np.int64]


class Doing:
    """What each call of a listing does."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []

    def upto(self, listing: Listing, what: int, window: int, piece: int = 0) -> None:
        """The calls since the last time."""
        self.rows += [(what, window, piece)] * (len(listing) - len(self.rows))


def shaped(memory: NDArray[np.uint8], view: TensorView) -> NDArray[Any]:
    return memory[: view.nbytes].view(view.numpy).reshape(view.shape)
