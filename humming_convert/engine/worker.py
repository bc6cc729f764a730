"""What one worker has: a way to read, buffers, a clock, and the signal to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from humming_convert.checkpoint.arrivals import Arrivals
from humming_convert.checkpoint.reading import Pread, reader
from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.engine.output import Arena
from humming_convert.proof.stream import Packer, Packers


class Stopped(Exception):
    """The run is being stopped; this worker's tensor is unfinished."""


Phase = Literal["read", "pack", "write", "prove"]
PHASES: tuple[Phase, ...] = ("read", "pack", "write", "prove")  # of a window, in order


class Clock:
    """Seconds of one worker by phase. Phases are not nested."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def start(self) -> None:
        """What passed since the last call is nobody's."""
        self._last = time.perf_counter()

    def add(self, phase: Phase) -> None:
        """What passed since the last call was this phase."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    def noted(self, times: NDArray[np.int64], phases: tuple[Phase, ...] = PHASES) -> None:
        """Adds up what calls noted, as clock_gettime gives it: times [windows, phases + 1, (seconds, nanoseconds)]."""
        total = times.sum(0)  # of differences: seconds since the machine's start, times some thousand windows
        for phase, (seconds, nanoseconds) in zip(phases, (total[1:] - total[:-1]).tolist(), strict=True):
            self.seconds[phase] += seconds + nanoseconds / 1e9

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.start()
        yield
        self.add(phase)


class Worker(Struct):
    """What one worker owns: a way to read, buffers, and the signal to stop. `mapped`: source files are mapped, not read.

    packer: packs and proves in place of this processor; it is given words that were read into its own kind of memory.
    arrivals: where source files may have to be waited for."""

    read: Read
    files: Pread
    arena: Arena
    stop: threading.Event
    mapped: bool = False
    packer: Packer | None = None
    arrivals: Arrivals | None = None
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def make(
        cls, io: Literal["mmap", "read"], stop: threading.Event, packers: Packers | None = None, arrivals: Arrivals | None = None
    ) -> Worker:
        files, packer = Pread(), packers.packer() if packers is not None else None
        read = reader("mmap") if io == "mmap" else files
        arena = Arena(packer.empty) if packer is not None else Arena()
        return cls(read=read, files=files, arena=arena, stop=stop, mapped=io == "mmap" and packer is None, packer=packer, arrivals=arrivals)

    def fetch(self, slot: int, view: TensorView) -> NDArray[Any]:
        """A stored tensor, or part of one, in this worker's own memory (the slot's last one is overwritten) or in the mapped file."""
        if self.mapped:
            return self.read(view)
        raw = self.source(slot, view.nbytes)
        self.files.fill(view, raw.data)
        return raw.view(view.numpy).reshape(view.shape)

    def source(self, slot: int, nbytes: int) -> NDArray[Any]:
        """The slot's memory."""
        return self.arena.take(f"source {slot}", nbytes)

    def check(self) -> None:
        if self.stop.is_set():
            raise Stopped
