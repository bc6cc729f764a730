"""Progress: one living line on a terminal, a plain line every few seconds elsewhere, JSON lines on stderr with --json."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from humming_convert.plan.size import size

if TYPE_CHECKING:
    from humming_convert.engine.progress import Event

EVERY_TERMINAL, EVERY_PLAIN, EVERY_JSON = 0.1, 5.0, 1.0  # seconds between lines


def since_start() -> float:
    """Seconds since this process was started: what the interpreter took before our first line is in it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.process_time()


@contextlib.contextmanager
def display(*, as_json: bool, quiet: bool, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[Event], None] | None]:
    """A callback for engine.progress, or None where nothing is shown."""
    if quiet:
        yield None
        return
    terminal = sys.stderr.isatty() and not as_json
    every = EVERY_JSON if as_json else EVERY_TERMINAL if terminal else EVERY_PLAIN
    begun, drawn = clock(), False
    told: dict[bool, float] = {}  # fetching and writing go on at the same time, at rates of their own
    parts: dict[bool, str] = {}

    def tell(event: Event) -> None:
        nonlocal drawn
        now, fetching = clock(), event.kind == "fetch"
        last = fetching and event.done == event.total
        if now - told.get(fetching, begun) < every and event.kind != "finish" and not last:
            return
        told[fetching] = now
        if as_json:
            print(json.dumps(line(event)), file=sys.stderr, flush=True)
        elif terminal:
            drawn = True
            parts[fetching] = text(event)
            if last:
                del parts[fetching]
            print(f"\r\x1b[2K{'  |  '.join(parts[k] for k in sorted(parts))}", end="", file=sys.stderr, flush=True)
        elif event.kind != "finish":
            print(text(event), file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if drawn:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def line(event: Event) -> dict[str, object]:
    """An event as a JSON line."""
    return {
        "event": event.kind,
        "name": event.name,
        "done": event.done,
        "total": event.total,
        "bytes_per_second": round(event.rate),
        "eta": None if event.eta is None else round(event.eta, 1),
    }


def text(event: Event) -> str:
    left = "" if event.eta is None else f"  {event.eta:.0f} s left"
    share = 100 * event.done / max(event.total, 1)
    what = "fetched " if event.kind == "fetch" else ""
    return f"{what}{share:3.0f} %  {size(event.done)} of {size(event.total)}  {size(event.rate)}/s{left}  {event.name}"
