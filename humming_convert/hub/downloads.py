"""How far the files of a model have come, told while they come.

In: what is there and what is on its way, asked once in a while.  Out: calls of (name, bytes there, bytes in all).
Facts: huggingface_hub 1.0 to 2.4: what has come of a file grows in the cache's blobs, as `<etag>….incomplete`; it tells no one by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from humming_convert.hub.listing import HubFile

EVERY = 0.5  # seconds between two looks
BLOCK = 512  # bytes, the unit of st_blocks

Fetched = Callable[[str, int, int], None]
"""Told the name of a file that is coming, the bytes that are there of all files, and those that there will be."""


class State(Struct, frozen=True):
    """`whole`: bytes of the files that came.  `coming`: files on their way.  `total`: bytes of all files that have to come."""

    whole: int
    coming: tuple[HubFile, ...]
    total: int


class Watch:
    """Tells `fetched` what `look` sees, until it is closed; once more then, if all has come."""

    def __init__(self, look: Callable[[], State], blobs: Path, fetched: Fetched) -> None:
        self._look, self._blobs, self._fetched = look, blobs, fetched
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="downloads", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.wait(EVERY):
            self._tell()
        self._tell(only_at_end=True)

    def _tell(self, *, only_at_end: bool = False) -> None:
        state = self._look()
        if only_at_end and state.whole < state.total:
            return
        if state.total and (state.coming or state.whole == state.total):
            there = state.whole + sum(arrived(self._blobs, f) for f in state.coming)
            self._fetched(", ".join(f.name for f in state.coming), min(there, state.total), state.total)


def arrived(blobs: Path, file: HubFile) -> int:
    """Bytes of a file on its way; 0 where they cannot be seen: they are counted when the file is whole."""
    etag = file.sha256 or file.blob
    return max((_written(p) for p in blobs.glob(f"{etag}*.incomplete")), default=0) if etag else 0


def _written(path: Path) -> int:
    """A file may be given its size before its content: what the disk holds of it counts."""
    try:
        state = path.stat()
    except FileNotFoundError:  # it was renamed in this moment: whole, and counted as such from now on
        return 0
    return min(state.st_size, state.st_blocks * BLOCK)


def blobs_of(snapshot: Path) -> Path:
    """Where the cache keeps contents, from the folder of a commit."""
    return snapshot.parent.parent / "blobs"


def missing(files: Iterable[Path]) -> frozenset[Path]:
    return frozenset(f for f in files if not f.exists())
