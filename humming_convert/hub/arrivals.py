"""Weight files that come while others are converted, in the order of their first use.

In: a Listing, and what each piece of work will read.  Out: files that are whole and checked, or an error in the thread that waits.  With
`streaming` a file is removed when its last reader is done, and few are held at a time.
Facts: architecture.md 9.1 (--stream).
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.arrivals import Use
from humming_convert.checkpoint.folder import SourceFile
from humming_convert.checkpoint.reading import SourceChanged, reader
from humming_convert.checkpoint.rules import broken
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding
from humming_convert.hub import rules
from humming_convert.hub.downloads import Fetched, State, Watch, blobs_of, missing
from humming_convert.hub.failures import HubError
from humming_convert.hub.fetch import fetch_file, fetch_files, remove
from humming_convert.hub.heads import KEPT, Heads, state_of
from humming_convert.hub.listing import cache_folder
from humming_convert.hub.ranges import changed
from humming_convert.hub.streaming import StreamCache

AT_ONCE = 3  # downloads
HELD = 4  # large files that a streaming run keeps at a time
PATIENCE = 0.25  # seconds without any change after which a streaming run takes one file more than that, so that nobody waits for ever


class HubArrivals:
    """As checkpoint.arrivals.Arrivals."""

    def __init__(self, heads: Heads, weights: Iterable[SourceFile], rest: Sequence[str], stream: StreamCache | None) -> None:
        """weights: with the paths where they will be.  rest: what is copied beside them.  stream: a cache that is emptied on the way."""
        self.streaming = stream is not None
        self._heads, self._listing, self._stream = heads, heads.listing, stream
        self._cache = stream.folder if stream is not None else None
        self._weights = {f.path: f for f in weights}
        self._rest = tuple(rest)
        self._local = reader("mmap")
        self._changed = threading.Condition()  # its lock can be taken twice
        self._order: list[Path] = []
        self._users: Counter[Path] = Counter()
        self._wanted: Counter[Path] = Counter()
        self._aside: dict[Path, list[TensorView]] = {}
        self._coming: set[Path] = set()
        self._there: dict[Path, tuple[int, int]] = {}
        self._error: BaseException | None = None
        self._open = False
        self._to_come: frozenset[Path] = frozenset()
        self._watch: Watch | None = None

    # ------------------------------------------------------------------ what the engine asks
    def read(self, view: TensorView) -> NDArray[Any]:
        return self._local(view) if view.file.exists() else self._heads.read(view)

    def begin(self, uses: Sequence[Use], fetched: Fetched | None = None) -> None:
        if self._stream is not None:
            self._stream.lock()
        self.fetch_rest()
        self._order = list(dict.fromkeys(file for use in uses for file in sorted(use.files)))
        self._users = Counter(file for use in uses if not self._is_aside(use) for file in use.files)
        self._aside = {}
        for view in dict.fromkeys(use.copied for use in uses if self._is_aside(use)):
            assert view is not None
            self._aside.setdefault(view.file, []).append(view)
        self._users.update(list(self._aside))  # putting its tensors aside is one use of a file
        self._there = {}
        self._check_space()
        self._to_come = missing(self._order)
        self._open, self._error = True, None
        if fetched is not None and self._to_come:
            self._watch = Watch(self._state, blobs_of(self._stream.snapshot if self._stream else self._listing.snapshot), fetched)
        for number in range(AT_ONCE):
            # daemons: an interrupted run does not wait for what it will not read
            threading.Thread(target=self._work, name=f"download {number}", daemon=True).start()

    def wait(self, use: Use, check: Callable[[], None]) -> None:
        wanted = sorted(use.files)
        with self._changed:
            self._wanted.update(wanted)
            self._changed.notify_all()
            try:
                while not all(f in self._there for f in wanted):
                    if self._error is not None:
                        raise self._error
                    check()
                    self._changed.wait(0.2)
            finally:
                self._wanted.subtract(wanted)

    def nearest(self, view: TensorView) -> TensorView:
        aside = self._place_aside(view)
        return replace(view, file=aside, offset=0) if aside.exists() else view

    def done(self, use: Use) -> None:
        if not self._is_aside(use):
            for file in use.files:
                self._leave(file)

    def fetch_rest(self) -> None:
        fetch_files(self._listing, self._rest)

    def end(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        with self._changed:
            self._open = False
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.unlock(clear=not any(self._users.values()))

    def _state(self) -> State:
        """Of the files that were not there at the beginning."""
        with self._changed:
            whole = sum(self._weights[f].nbytes for f in self._to_come if f in self._there)
            coming = tuple(self._listing.files[f.name] for f in sorted(self._coming & self._to_come))
        return State(whole, coming, sum(self._weights[f].nbytes for f in self._to_come))

    # ------------------------------------------------------------------ downloads
    def _work(self) -> None:
        while True:
            with self._changed:
                file = self._next()
                while self._open and self._error is None and file is None:
                    quiet = not self._changed.wait(PATIENCE)
                    file = self._next(beyond=quiet)
                if not self._open or self._error is not None or file is None:
                    return
                self._coming.add(file)
            try:
                self._bring(file)
            except BaseException as error:  # noqa: BLE001 raised again by whoever waits
                with self._changed:
                    self._error = self._error or error
            finally:
                with self._changed:
                    self._coming.discard(file)
                    self._changed.notify_all()

    def _next(self, beyond: bool = False) -> Path | None:
        """What comes next: what somebody waits for before the others. beyond: nothing has moved for a while."""
        left = [f for f in self._order if f not in self._there and f not in self._coming and self._users[f] > 0]
        asked = [f for f in left if self._wanted[f] > 0]
        held = sum(self._large(f) for f in (*self._there, *self._coming) if self._users[f] > 0)
        if not self.streaming or held < HELD:
            return next(iter(asked or left), None)
        return next(iter(asked), None) if beyond and not self._coming else None

    def _large(self, file: Path) -> bool:
        return file.name in self._heads.large

    def _bring(self, file: Path) -> None:
        """One file, whole and checked: its size and checksum by the list, its header by what was planned with."""
        known = self._weights[file]
        if not file.exists():
            if file.name not in self._heads.large:  # it was there when the plan was made
                raise changed(file.name, f"{file.name} is no longer where it was when the plan was made")
            fetch_file(self._listing, file.name, self._cache)
        state, seen = state_of(file), self._heads.seen.get(file.name)
        with open(file, "rb") as f:
            header = f.read(known.header_bytes)
        if seen not in (None, state):
            raise changed(file.name, f"{file.name} was changed in the cache since the plan was made")
        if state[0] != known.nbytes or header != self._heads.header(file.name, known.header_bytes):
            raise changed(file.name, f"{file.name} has another size or header than the one that was planned with")
        for view in self._aside.get(file, ()):
            self._put_aside(view)
        with self._changed:
            self._there[file] = state
            self._leave(file, int(file in self._aside))

    def _leave(self, file: Path, users: int = 1) -> None:
        """Readers are done. After the last: what all of them read is what came."""
        with self._changed:
            self._users[file] -= users
            if self._users[file] == 0 and file in self._there:
                if found := self._other(file):
                    raise found
                if self.streaming and self._large(file):
                    remove(file, cut=True)
            self._changed.notify_all()

    # ------------------------------------------------------------------ small tensors that are copied as they are
    def _is_aside(self, use: Use) -> bool:
        """Norms and the like are written long after, or before, the layers of their file: they do not keep it from being removed."""
        return self.streaming and use.copied is not None and 0 < use.copied.nbytes <= KEPT and self._large(use.copied.file)

    def _place_aside(self, view: TensorView) -> Path:
        return self._heads.aside / f"{view.file.name}-{view.offset}-{view.nbytes}"

    def _put_aside(self, view: TensorView) -> None:
        """In a file of its own, and nothing else is in it."""
        with open(view.file, "rb") as f:
            f.seek(view.offset)
            raw = f.read(view.nbytes)
        fresh = self._place_aside(view).with_suffix(".new")
        fresh.write_bytes(raw)
        os.replace(fresh, self._place_aside(view))

    def _other(self, file: Path) -> SourceChanged | None:
        """A file is not the one that came."""
        try:
            same = state_of(file) == self._there[file]
        except FileNotFoundError:
            same = False
        return None if same else changed(file.name, f"{file.name} was changed while it was read")

    def unchanged(self) -> list[Finding]:
        with self._changed:
            kept = [f for f in self._there if not (self.streaming and self._large(f))]
            return [found.finding for f in kept if (found := self._other(f)) is not None]

    def _check_space(self) -> None:
        missing = [self._weights[f].nbytes for f in self._order if not f.exists()]
        needed = sum(sorted(missing, reverse=True)[: HELD + 1] if self.streaming else missing)
        cache = self._cache or cache_folder()
        folder = next(p for p in (cache, *cache.parents) if p.exists())
        free = shutil.disk_usage(folder).free
        if free < needed:
            why = f"{folder} has {free:,} bytes free, {needed:,} are needed for the files to fetch"
            advice = "free some space, or move the cache (HF_HOME)" + ("" if self.streaming else "; --stream keeps few files at a time")
            raise HubError(broken(rules.SPACE, why, advice=advice))
