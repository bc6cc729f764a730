"""What a run tells while it goes on: events as values; the CLI draws them or prints them as JSON lines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`done`, `total`: output bytes. `name`: the layer or file that `kind` is about."""

    kind: Literal["start", "tensor", "file", "finish"]
    name: str
    done: int
    total: int


Progress = Callable[[Event], None]


class Counter:
    """Sums the bytes of several workers and passes events on, one at a time."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.done = total, 0
        self._progress, self._lock = progress, threading.Lock()

    def tell(self, kind: Literal["start", "tensor", "file", "finish"], name: str, nbytes: int = 0) -> None:
        with self._lock:
            self.done += nbytes
            if self._progress is not None:
                self._progress(Event(kind=kind, name=name, done=self.done, total=self.total))
