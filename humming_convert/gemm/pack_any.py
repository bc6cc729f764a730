"""Packing and proving on a GPU, for `convert --device cuda`: host side of cuda_templates/pack_any.cuh.

In: an expert's windows, as the CPU packs them.  Out: the same words, and the first difference, if there is one.
While one window is written, read back and proven, the next one is read, sent, packed and brought back: two CUDA streams, two sets of
page-locked buffers, in turn.  Small layers, small tensors and padding stay on the CPU.  Facts: passes/plans.py (the tables), architecture.md 5, 6.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.engine.memory import private_bytes
from humming_convert.engine.output import Arena
from humming_convert.gemm.device import Device, NoDevice, Queue, Room, address, open_device
from humming_convert.gemm.source import KernelSource, kernel_source
from humming_convert.layouts import WeightAux
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.plan.types import PlannedLayer
from humming_convert.proof.stream import ExpertStream, Fetch, Step, Take, Words
from humming_convert.standard.expr import Weight

THREADS = 256
BLOCKS = 8192  # of one launch, about: enough for every GPU, few enough that a thread keeps its place in the tables for many codes
KEPT = 64  # sets of tables on the device; a model has a few shapes, and a set is below 1 MB in all but the widest layers
FOUND = 3  # 64-bit words of pack_any.cuh `Found`
ALONG_N = ("gptq", "awq")  # packings whose neighbouring words are of neighbouring rows
COMMON = 4  # bits of most models: their kernels are loaded as the device is opened, so that what is missing is said at once

Purpose = Literal["pack_any", "prove_any"]


class DeviceFailed(NoDevice):
    """The GPU, or its driver, gave up in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """What is compiled in (`struct Layer`)."""

    bits: int


@lru_cache(maxsize=16)
def source_of(purpose: Purpose, bits: int) -> KernelSource:
    return kernel_source(purpose, Codes(bits=bits))


# ---- one block


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """A block's tables on the device, one behind the other as pack_any.cuh reads them."""

    room: Room
    rows: int
    columns: int
    slots: int


TABLES = ("aux_columns", "source_rows", "source_columns", "target_rows", "target_columns", "row_slot", "column_slot", "jump", "table")


def joined(tables: dict[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """The bytes of all tables."""
    assert all(tables[x].dtype == np.int64 for x in TABLES[:-1]) and tables["table"].dtype == np.uint8
    return np.concatenate([np.ascontiguousarray(tables[x]).reshape(-1).view(np.uint8) for x in TABLES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block where the kernels find it. Addresses on the device; aux: 0 where no map looks at one."""

    source: int
    words: int
    aux: int
    aux_pitch: int
    tables: Tables
    along_n: bool

    def start(self, queue: Queue, purpose: Purpose, bits: int, result: int | None = None) -> None:
        t = self.tables
        fast, slow = (t.rows, t.columns) if self.along_n else (t.columns, t.rows)
        across = -(-fast // THREADS)
        grid = (across, max(min(slow, BLOCKS // across), 1))
        arguments: list[Any] = [np.uintp(self.source), np.uintp(self.words), np.uintp(self.aux), np.int64(self.aux_pitch)]
        arguments += [np.uintp(t.room.address), np.int64(t.rows), np.int64(t.columns), np.int64(t.slots), np.int32(self.along_n)]
        if result is not None:
            arguments.append(np.uintp(result))
        queue.launch(source_of(purpose, bits), grid, THREADS, arguments)


def mismatch(found: NDArray[np.uint64], n: int, k: int, row: int, column: int) -> passes.Mismatch | None:
    """What `prove_any` found in a block of n x k codes that begins at (row, column) of the layer."""
    compared, wrong, first = (int(x) for x in found)
    if compared != n * k:
        raise AssertionError(f"{compared} of {n * k} codes were compared")
    if not wrong:
        return None
    key = ~first & 0xFFFFFFFFFFFFFFFF
    number = key >> 16
    return passes.Mismatch(row + number // k, column + number % k, key >> 8 & 255, key & 255, wrong)


# ---- the device that workers share


@dataclass(slots=True)
class GpuPackers:
    """The GPU of a run. held: private bytes of this process that its driver took."""

    device: Device
    held: int = 0
    _tables: OrderedDict[Hashable, Tables] = field(default_factory=OrderedDict)
    _checked: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def packer(self) -> GpuPacker:
        self.device.use()
        return GpuPacker(self, (self.device.queue(), self.device.queue()), Arena(self.device.pinned))

    def tables(self, walk: passes.Walk, queue: Queue) -> Tables:
        """A set that is let go is free when the last window that uses it is."""
        with self._lock:
            if walk.key in self._tables:
                self._tables.move_to_end(walk.key)
                return self._tables[walk.key]
            held = self._tables[walk.key] = self.send_tables(walk.tables, queue)
            if len(self._tables) > KEPT:
                self._tables.popitem(last=False)
            return held

    def send_tables(self, tables: dict[str, NDArray[Any]], queue: Queue) -> Tables:
        together = joined(tables)
        room = self.device.room(together.nbytes)
        queue.send(room.address, together)
        queue.wait()  # another stream may be the first to read them
        return Tables(room=room, rows=len(tables["row_slot"]), columns=len(tables["column_slot"]), slots=len(tables["jump"]))

    def ready(self, bits: int, queue: Queue) -> None:
        """Once for each width: the kernels must do to a known box what they should. KernelCheckFailed if they do not."""
        with self._lock:
            if bits not in self._checked:
                for along_n in (False, True):
                    if not self._holds(bits, along_n, queue):
                        raise passes.KernelCheckFailed(f"pack_any, {bits} bits, on {self.device.name}")
                self._checked.add(bits)

    def _holds(self, bits: int, along_n: bool, queue: Queue) -> bool:
        box = passes.known_box(bits)
        n, k = box.codes.shape
        tables = self.send_tables({x: box.arrays[x] for x in TABLES}, queue)
        rooms = {x: self.device.room(y.nbytes) for x, y in (("source", box.arrays["source"]), ("aux", box.arrays["aux"]))}
        words, result = self.device.room(box.expected.nbytes), self.device.room(8 * FOUND)
        for name, room in rooms.items():
            queue.send(room.address, np.ascontiguousarray(box.arrays[name]))
        block = Block(
            source=rooms["source"].address,
            words=words.address,
            aux=rooms["aux"].address,
            aux_pitch=box.aux_pitch,
            tables=tables,
            along_n=along_n,
        )
        written, found = np.zeros_like(box.expected), np.zeros(FOUND, np.uint64)

        def proven(target: NDArray[np.uint8]) -> passes.Mismatch | None:
            queue.send(words.address, target)
            queue.clear(result.address, 8 * FOUND)
            block.start(queue, "prove_any", bits, result.address)
            queue.bring(found, result.address)
            queue.wait()
            return mismatch(found, n, k, 0, 0)

        queue.clear(words.address, words.nbytes)
        block.start(queue, "pack_any", bits)
        queue.bring(written, words.address)
        queue.wait()
        broken, bit, want = box.expected.copy(), int(box.at[3, 5, 0]), int(box.codes[3, 5])
        broken[bit >> 3] ^= 1 << (bit & 7)
        return (
            bool((written == box.expected).all())
            and proven(box.expected) is None
            and proven(broken) == passes.Mismatch(3, 5, want ^ 1, want, 1)
        )


@lru_cache(maxsize=8)
def open_packers(index: int | None) -> GpuPackers:
    """The GPU of that number, None for the current one. NoDevice, or CompileError, says what is missing and how to mend it."""
    before = private_bytes()
    device = open_device(index=index)
    packers = GpuPackers(device)
    with told(device):
        packers.packer().prepare(COMMON)
    packers.held = max(private_bytes() - before, 0)
    return packers


@contextmanager
def told(device: Device) -> Iterator[None]:
    """What the driver raises, as what a user can do about it."""
    try:
        yield
    except device.errors as error:
        advice = "the same command goes on where it stopped; without --device it does so on the CPU"
        raise DeviceFailed(f"{device.name}: {error}", advice) from error


# ---- one worker


@dataclass(slots=True)
class GpuPacker:
    """A worker's streams and buffers."""

    shared: GpuPackers
    queues: tuple[Queue, Queue]
    host: Arena
    _rooms: dict[str, Room] = field(default_factory=dict)

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        return self.shared.device.pinned(nbytes)

    def prepare(self, bits: int) -> None:
        self.shared.ready(bits, self.queues[0])

    def stream(
        self, planned: PlannedLayer, recipe: WeightRecipe, weight: Weight, expert: int, aux: WeightAux, fetch: Fetch
    ) -> ExpertStream:
        return GpuStream(planned, recipe, weight, expert, aux, fetch, packer=self)

    def room(self, slot: str, nbytes: int) -> Room:
        """Memory of the device; whatever the slot held is gone."""
        held = self._rooms.get(slot)
        if held is None or held.nbytes < nbytes:
            self.wait()  # what is let go may be in use
            self._rooms.pop(slot, None)
            held = self._rooms[slot] = self.shared.device.room(max(nbytes, 8))
        return held

    def wait(self) -> None:
        for queue in self.queues:
            queue.wait()


@dataclass(slots=True)
class _Sent:
    """Stored words that lie on the device too. turn: of the stream that brings them; arrived: it has been waited for."""

    first: int
    nbytes: int
    room: Room
    turn: int
    arrived: bool = False


@dataclass(slots=True)
class _Begun:
    """A window under way. room: its words on the device."""

    turn: int
    words: Words
    room: Room
    blocks: list[Block]


@dataclass(slots=True)
class GpuStream(ExpertStream):
    """An ExpertStream one window ahead: a step is yielded when the one after it has been sent off."""

    packer: GpuPacker = field(kw_only=True)
    _read: Fetch = field(init=False)
    _turn: int = field(init=False, default=0)
    _sent: dict[tuple[int, int], _Sent] = field(init=False, default_factory=dict)
    _begun: dict[int, _Begun] = field(init=False, default_factory=dict)
    _aux: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        ExpertStream.__post_init__(self)
        self._read, self.fetch = self.fetch, self._fetch_and_send

    def steps(self) -> Generator[Step, None, None]:
        """A step's stored words are valid until the step after the next."""
        device = self.packer.shared.device
        with told(device):
            self.packer.prepare(self.recipe.bits)
            self._send_aux()
        ahead: Step | None = None
        try:
            for step in ExpertStream.steps(self):
                with told(device):
                    self._begin(step)
                self._turn ^= 1
                if ahead is not None:
                    yield ahead
                ahead = step
            if ahead is not None:
                yield ahead
        finally:
            with told(device):
                self.packer.wait()  # after an error too: buffers that are let go must not be in use
            self.fetch = self._read  # else the stream would hold itself, and all that it holds, until the collector comes

    def _send_aux(self) -> None:
        if self.values is not None:
            room = self.packer.room("aux", self.values.values.nbytes)
            self.packer.queues[0].send(room.address, self.values.values)
            self.packer.queues[0].wait()
            self._aux = room.address

    def _fetch_and_send(self, slot: int, view: TensorView) -> NDArray[Any]:
        """Two slots for one, in turn: the last window's words are still to be proven."""
        stored = self._read(2 * slot + self._turn, view)
        self._send((slot, self._turn), stored)
        return stored

    def _send(self, key: tuple[int, int], stored: NDArray[Any]) -> _Sent:
        with told(self.packer.shared.device):
            room = self.packer.room(f"source {key}", stored.nbytes)
            self.packer.queues[self._turn].send(room.address, stored)
        sent = self._sent[key] = _Sent(address(stored), stored.nbytes, room, self._turn)
        return sent

    def _source(self, number: int, stored: NDArray[Any]) -> int:
        """Where a part's bytes are on the device: within something that was fetched for this window, or for the whole expert."""
        first = int(stored.__array_interface__["data"][0])  # rows may be apart
        last = first + sum((n - 1) * s for n, s in zip(stored.shape, stored.strides)) + stored.itemsize
        for sent in self._sent.values():
            if sent.first <= first and last <= sent.first + sent.nbytes:
                if sent.turn != self._turn and not sent.arrived:
                    self.packer.queues[sent.turn].wait()
                    sent.arrived = True
                return sent.room.address + first - sent.first
        raise AssertionError(f"part {number} of the window lies in nothing that was fetched")

    def _begin(self, step: Step) -> None:
        """Sends a window off: packed on the device, and on its way back."""
        w, turn = step.window, self._turn
        queue, nbytes = self.packer.queues[turn], 4 * w.words
        words = self.packer.host.take(f"packed {turn}", nbytes).view(np.uint32)
        room = self.packer.room(f"packed {turn}", nbytes)
        blocks: list[Block] = []
        queue.clear(room.address, nbytes)
        for number, p in enumerate(step.parts):
            walk = passes.walk(self.recipe, words=w.words, **self.place(step, p))
            block = Block(
                source=self._source(number, walk.source),
                words=room.address + 4 * walk.word,
                aux=0 if walk.aux is None else self._aux + walk.aux,
                aux_pitch=walk.aux_pitch,
                tables=self.packer.shared.tables(walk, queue),
                along_n=p.block.packing in ALONG_N,
            )
            block.start(queue, "pack_any", self.recipe.bits)
            blocks.append(block)
        queue.bring(words, room.address)
        self._begun[w.first] = _Begun(turn, words, room, blocks)

    def words(self, step: Step, take: Take) -> Words:
        return self._begun[step.window.first].words

    def pack(self, step: Step, words: Words) -> None:
        begun = self._begun[step.window.first]
        with told(self.packer.shared.device):
            self.packer.queues[begun.turn].wait()
        passes.fill_padding(self.recipe, words, self.values, step.window)

    def differences(self, step: Step, words: Words) -> Sequence[passes.Mismatch | None]:
        """`words` are what the file holds: they are sent to the device again."""
        begun = self._begun.pop(step.window.first)
        queue, count = self.packer.queues[begun.turn], len(begun.blocks)
        found = self.packer.host.take(f"found {begun.turn}", 8 * FOUND * count).view(np.uint64).reshape(count, FOUND)
        with told(self.packer.shared.device):
            result = self.packer.room(f"found {begun.turn}", 8 * FOUND * max(count, 1))
            queue.send(begun.room.address, words)
            queue.clear(result.address, 8 * FOUND * max(count, 1))
            for number, block in enumerate(begun.blocks):
                block.start(queue, "prove_any", self.recipe.bits, result.address + 8 * FOUND * number)
            queue.bring(found, result.address)
            queue.wait()
        return [mismatch(x, p.n, p.k, p.row, p.column) for x, p in zip(found, step.parts, strict=True)]
