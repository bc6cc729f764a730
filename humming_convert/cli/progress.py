"""Progress: one living line on a terminal, a plain line every few seconds elsewhere, JSON lines on stderr with --json."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from humming_convert.cli.say import size

if TYPE_CHECKING:
    from humming_convert.engine.progress import Event

EVERY_TERMINAL, EVERY_PLAIN, EVERY_JSON = 0.1, 5.0, 1.0  # seconds between lines


@contextlib.contextmanager
def display(total: int, *, as_json: bool, quiet: bool) -> Iterator[Callable[[Event], None] | None]:
    """A callback for engine.progress, or None where nothing is shown."""
    if quiet:
        yield None
        return
    terminal = sys.stderr.isatty() and not as_json
    every = EVERY_JSON if as_json else EVERY_TERMINAL if terminal else EVERY_PLAIN
    begin = last = time.monotonic()
    drawn = False

    def tell(event: Event) -> None:
        nonlocal last, drawn
        now = time.monotonic()
        if now - last < every and event.kind != "finish":
            return
        last = now
        rate = event.done / max(now - begin, 1e-9)
        eta = (total - event.done) / rate if rate else 0.0
        if as_json:
            line = {
                "event": event.kind,
                "name": event.name,
                "done": event.done,
                "total": total,
                "bytes_per_second": round(rate),
                "eta": round(eta, 1),
            }
            print(json.dumps(line), file=sys.stderr, flush=True)
            return
        text = f"{100 * event.done / max(total, 1):3.0f} %  {size(event.done)} of {size(total)}  {size(rate)}/s  {eta:.0f} s left  {event.name}"
        if terminal:
            drawn = True
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
        elif event.kind != "finish":
            print(text, file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if drawn:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
