"""A model at a commit as a folder to plan from: small files whole, of large weight files the header and what else was asked for.

In: a Listing.  Out: a folder that `open_checkpoint` opens, and a Read of tensors. The folder is this object's own and goes with it: a weight
file in it has the size of the whole and holes for what was not read, so nobody else may ever take it for one.
Facts: architecture.md 1; formats.md 1.2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.files import LIMIT
from humming_convert.checkpoint.opening import READ
from humming_convert.checkpoint.reading import WHOLE, reader
from humming_convert.checkpoint.rules import broken
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.checkpoint.weights import expected_weights
from humming_convert.findings import Finding
from humming_convert.hub import rules
from humming_convert.hub.failures import HubError
from humming_convert.hub.fetch import fetch_files
from humming_convert.hub.listing import Listing, assets, offline
from humming_convert.hub.locks import lock, waited
from humming_convert.hub.ranges import Ranges

FIRST = 1 << 18  # bytes of the first look at a file: most headers are shorter
KEPT = 16 << 20  # bytes of a tensor that is kept to be read again
SHARE = 4  # tensors of one kind are read together if they are at most this part of their file
AT_ONCE = 16


class _Kind(Struct, frozen=True):
    """The tensors of one last name in one file, by their offsets. `together`: those that are read at once, none where they are too much."""

    offsets: list[int]
    views: list[TensorView]
    together: list[TensorView]


class OwnFolder:
    """A folder that goes with this object; those of processes that were killed go when the next one is made.

    One at a time is made: a folder that another process has just made, and not locked yet, would look like one that was left behind.
    """

    def __init__(self, above: Path) -> None:
        with waited(above):
            for old in above.glob("plan-*"):
                with contextlib.suppress(FileNotFoundError):  # its owner takes it away at this moment
                    fd = lock(old)
                    if fd is not None:
                        shutil.rmtree(old, ignore_errors=True)
                        os.close(fd)
            self.path = Path(tempfile.mkdtemp(prefix="plan-", dir=above))
            held = lock(self.path)
        assert held is not None
        weakref.finalize(self, _clear, self.path, held)


def _clear(folder: Path, held: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(held)


class Heads:
    """`folder`: to plan from.  `large`: weight files that are not there as a whole.  `seen`: states of the others.  `aside`: for tensors without their files."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self._home = OwnFolder(assets("heads"))
        self.folder = self._home.path / "model" / listing.name.repo.rpartition("/")[2]  # findings name it
        self.aside = self._home.path / "aside"
        for each in (self.folder, self.aside):
            each.mkdir(parents=True)
        self.large: set[str] = set()
        self.seen: dict[str, tuple[int, int]] = {}
        self._ranges = Ranges(listing)
        self._have: set[tuple[str, int, int]] = set()
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._lock = threading.Lock()
        self._local = reader("read")
        fetch_files(listing, [f for f in READ if f in listing.files])
        for name in READ:
            if name in listing.files:
                (self.folder / name).symlink_to(listing.snapshot / name)
        weights = [f for f in expected_weights(self.folder, list(listing.files)) if f in listing.files]
        self._small_weights(weights)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="heads") as pool:
            for _ in pool.map(self._head, sorted(self.large)):
                pass
        for name in listing.files:
            if not os.path.lexists(self.folder / name):
                (self.folder / name).touch()
        for name in listing.folders:
            (self.folder / name).mkdir(exist_ok=True)

    def _small_weights(self, weights: Iterable[str]) -> None:
        """Files whose whole content the fingerprint is taken of, and those that the cache has."""
        listing = self.listing
        here = {f for f in weights if listing.cached(f) is not None}
        missing = sorted(set(weights) - here)
        if missing and offline():
            raise HubError(*missing_findings(listing, missing))
        small = [f for f in missing if (listing.files[f].nbytes or 0) <= WHOLE]
        fetch_files(listing, small)
        for name in (*here, *small):
            (self.folder / name).symlink_to(listing.snapshot / name)
            self.seen[name] = state_of(self.folder / name)
        self.large = set(missing) - set(small)

    def _head(self, name: str) -> None:
        """The length bytes and the header, in a file of the whole's size. What is wrong with them is `open_checkpoint`'s to say."""
        size = self.listing.files[name].nbytes or 0
        first = self._ranges.read(name, 0, min(FIRST, size))
        length = int.from_bytes(first[:8], "little")
        stop = min(8 + length, size) if length <= LIMIT else len(first)
        raw = first if stop <= len(first) else first + self._ranges.read(name, len(first), stop)
        with open(self.folder / name, "xb") as f:
            f.write(raw)
            f.truncate(size)

    def header(self, name: str, nbytes: int) -> bytes:
        """The first bytes of a weight file as they were planned with."""
        with open(self.folder / name, "rb") as f:
            return f.read(nbytes)

    # ------------------------------------------------------------------ tensors
    def know(self, tensors: Iterable[TensorView]) -> None:
        """Which tensors there are, for `read` to see what belongs together."""
        kinds: dict[tuple[str, str], list[TensorView]] = {}
        for view in tensors:
            kinds.setdefault(_kind(view), []).append(view)
        for kind, views in kinds.items():
            views.sort(key=lambda v: v.offset)
            small = [v for v in views if 0 < v.nbytes <= KEPT]
            size = self.listing.files[kind[0]].nbytes or 0
            together = small if sum(v.nbytes for v in small) * SHARE <= size else []
            self._kinds[kind] = _Kind([v.offset for v in views], views, together)

    def read(self, view: TensorView) -> NDArray[Any]:
        """A tensor, or part of one, of a file that is not there. A read-only array.

        What is asked of one module is asked of the others soon: tensors of the same last name in the file are read at once, where they are
        small beside the file.
        """
        name = view.file.name
        if view.nbytes == 0 or view.nbytes > KEPT:
            raw = self._ranges.read(name, view.offset, view.offset + view.nbytes) if view.nbytes else b""
            return np.frombuffer(raw, np.uint8).view(view.numpy).reshape(view.shape)
        if not self._there(view):
            kind = self._kinds.get(_kind(view))
            self._bring(name, [v for v in (kind.together if kind is not None else ()) if not self._there(v)])
        if not self._there(view):
            self._bring(name, [view])
        return self._local(replace(view, file=self.folder / name))

    def _there(self, view: TensorView) -> bool:
        """A part, such as rows or an expert, lies in its tensor."""
        name = view.file.name
        if (name, view.offset, view.nbytes) in self._have:
            return True
        kind = self._kinds.get(_kind(view))
        at = bisect_right(kind.offsets, view.offset) - 1 if kind is not None else -1
        if kind is None or at < 0:
            return False
        whole = kind.views[at]
        inside = view.offset + view.nbytes <= whole.offset + whole.nbytes
        return inside and (name, whole.offset, whole.nbytes) in self._have

    def _bring(self, name: str, views: list[TensorView]) -> None:
        def one(view: TensorView) -> None:
            raw = self._ranges.read(name, view.offset, view.offset + view.nbytes)
            fd = os.open(self.folder / name, os.O_WRONLY)
            try:
                os.pwrite(fd, raw, view.offset)
            finally:
                os.close(fd)
            with self._lock:
                self._have.add((name, view.offset, view.nbytes))

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ranges") as pool:
            for _ in pool.map(one, views):
                pass


def _kind(view: TensorView) -> tuple[str, str]:
    """File and last name."""
    return view.file.name, view.name.rpartition(".")[2]


def state_of(file: Path) -> tuple[int, int]:
    """Size and time: another content has another of them, unless somebody wants to hide it."""
    state = file.stat()
    return state.st_size, state.st_mtime_ns


def missing_findings(listing: Listing, files: Iterable[str]) -> list[Finding]:
    """Offline: one finding a file."""
    advice = "run once without HF_HUB_OFFLINE, or `hf download` it"
    why = "is not in the cache, and HF_HUB_OFFLINE is set"
    return [broken(rules.OFFLINE, f"{f} of {listing.name} {why}", file=f, advice=advice) for f in files]
