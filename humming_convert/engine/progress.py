"""What a run tells while it goes on: events as values; the CLI draws them or prints them as JSON lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

Kind = Literal["start", "resume", "tensor", "file", "finish", "fetch"]


class Event(Struct, frozen=True, kw_only=True):
    """`done`, `total`: output bytes, those of earlier runs included; of `fetch` the bytes of weight files that had to come from the Hub.
    `name`: the layer or file that `kind` is about; of `fetch` the files on their way, separated by commas.

    `rate`: bytes a second of this run.  `eta`: seconds to the end at this rate, None as long as there is none."""

    kind: Kind
    name: str
    done: int
    total: int
    rate: float = 0.0
    eta: float | None = None


Progress = Callable[[Event], None]


class Counter:
    """Sums the bytes of several workers and passes events on, one at a time."""

    def __init__(self, total: int, progress: Progress | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done, self.resumed = total, 0, 0
        self._progress, self._lock, self._clock = progress, threading.Lock(), clock
        self._begin = clock()
        self._came: tuple[float, int] | None = None

    def tell(self, kind: Kind, name: str, nbytes: int = 0) -> None:
        with self._lock:
            self.done += nbytes
            self.resumed += nbytes if kind == "resume" else 0
            if self._progress is not None:
                rate = (self.done - self.resumed) / max(self._clock() - self._begin, 1e-9)
                eta = (self.total - self.done) / rate if rate else None
                self._progress(Event(kind=kind, name=name, done=self.done, total=self.total, rate=rate, eta=eta))

    def fetched(self, name: str, done: int, total: int) -> None:
        """Bytes of the source that came; the rate leaves out what an earlier run had fetched."""
        with self._lock:
            now = self._clock()
            since, before = self._came = self._came or (now, done)
            if self._progress is not None:
                rate = (done - before) / max(now - since, 1e-9)
                eta = (total - done) / rate if rate else None
                self._progress(Event(kind="fetch", name=name, done=done, total=total, rate=rate, eta=eta))
