"""CUDA graphs of a device that is none: calls are made, and a replay takes as long as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Call = Callable[[], None]


class FakeGraphs:
    """us: microseconds of every call.  ran: calls that were made; captured: how many each graph has."""

    def __init__(self, us: float = 10.0) -> None:
        self.us, self.ran, self.sizes = us, 0, list[int]()

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call()
        self.ran += len(calls)

    def captured(self, calls: Sequence[Call]) -> Call:
        self.sizes.append(len(calls))
        return lambda: None

    def elapsed(self, replay: Call, count: int) -> list[float]:
        return [self.us * self.sizes[-1] / 1000] * count
