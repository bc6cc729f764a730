"""Microseconds of a call, from replays of a CUDA graph that rotates over copies of what is read.

In: calls, one for each copy.  Out: Times: median and quartiles over the replays.  A graph leaves the host out; copies that together are larger
than the L2 cache make every call read from memory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from humming_convert.gemm.device import Device

Call = Callable[[], None]
REPLAYS = 15
REPLAY_MS = 3.0  # a replay takes about so long: events count in half microseconds
MOST_CALLS = 512  # of a graph
CACHES = 4  # copies fill the L2 cache so many times
MOST_COPIES = 64


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of a call. low, high: quartiles over the replays."""

    us: float
    low: float
    high: float


class Graphs(Protocol):
    """What makes CUDA graphs, of CuPy or of torch."""

    def run(self, calls: Sequence[Call]) -> None:
        """Each once, without a graph, to the end."""

    def captured(self, calls: Sequence[Call]) -> Call:
        """A graph of the calls in their order; calling it replays it."""

    def elapsed(self, replay: Call, count: int) -> list[float]:
        """Milliseconds of each of so many replays, one after the other."""


def copies_for(nbytes: int, cache_bytes: int) -> int:
    """Copies of what a call reads: at least two, so that none is read twice in a row."""
    return max(2, min(MOST_COPIES, math.ceil(CACHES * cache_bytes / max(1, nbytes))))


def rounds_for(milliseconds: float, calls: int) -> int:
    """How often all calls stand in a graph. milliseconds: of one round."""
    wanted = math.ceil(REPLAY_MS / max(milliseconds, 1e-3))
    return max(1, min(wanted, MOST_CALLS // calls))


def times_of(milliseconds: Sequence[float], calls: int) -> Times:
    """Of replays of a graph of so many calls."""
    us = sorted(1000 * ms / calls for ms in milliseconds)
    quarter = len(us) // 4
    return Times(statistics.median(us), us[quarter], us[-1 - quarter])


def timed(graphs: Graphs, calls: Sequence[Call]) -> Times:
    """Runs the calls once before, which loads kernels and makes room."""
    graphs.run(calls)
    once = graphs.captured(calls)
    rounds = rounds_for(min(graphs.elapsed(once, 3)), len(calls))
    replay = graphs.captured([*calls] * rounds) if rounds > 1 else once
    graphs.elapsed(replay, 1)
    return times_of(graphs.elapsed(replay, REPLAYS), rounds * len(calls))


class CupyGraphs:
    """Graphs of CuPy, on a stream of their own."""

    def __init__(self, device: Device) -> None:
        self.cuda = device.cupy.cuda
        self.stream = self.cuda.Stream(non_blocking=True)

    def run(self, calls: Sequence[Call]) -> None:
        self.cuda.Device().synchronize()  # what was put there by other streams
        with self.stream:
            for call in calls:
                call()
            self.stream.synchronize()

    def captured(self, calls: Sequence[Call]) -> Call:
        with self.stream:
            self.stream.begin_capture()
            for call in calls:
                call()
            graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)

    def elapsed(self, replay: Call, count: int) -> list[float]:
        marks = [self.cuda.Event() for _ in range(count + 1)]
        marks[0].record(self.stream)
        for mark in marks[1:]:
            replay()
            mark.record(self.stream)
        self.stream.synchronize()
        return [float(self.cuda.get_elapsed_time(a, b)) for a, b in pairwise(marks)]
