"""Reading the bytes of tensors, and noticing that a source changes under the reader.

In: TensorViews, source files.  Out: arrays; snapshots and digests of files; SourceError with its finding where a file fails.
Facts: architecture.md 9.1 (--io), 9.6 (source.files), 9.3 (a changed source is no crash and no silent output).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.checkpoint.files import open_regular
from humming_convert.checkpoint.folder import Checkpoint, SourceFile
from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Finding

WHOLE = 64 * 10**6  # bytes up to which a digest is of all of a file (architecture.md 9.6)
BLOCK = 4 << 20
RESIDENT = 32 << 20  # bytes of mapped files that stay mapped in at a time
FOLIO = 2 << 20  # bytes that one look may map in: pieces in which file systems keep files where pages have 4 KB

_RETRY = "leave the source alone while it is read, then run the same command again"


class SourceError(Exception):
    """A source file failed while it was read. `finding` says which and what to do."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


class SourceChanged(SourceError):
    """The file is not the one whose header was read."""


class SourceUnreadable(SourceError):
    """The file can no longer be opened or read."""


def _changed(file: Path, why: str, tensor: str | None = None) -> SourceChanged:
    return SourceChanged(Finding(severity="error", code="source-changed", message=why, tensor=tensor, file=file.name, advice=_RETRY))


def _unreadable(file: Path, e: OSError, tensor: str | None = None) -> SourceUnreadable:
    why = f"{file.name} cannot be read: {e.strerror or e}"
    return SourceUnreadable(
        Finding(severity="error", code="source-unreadable", message=why, tensor=tensor, file=file.name, advice="check the disk")
    )


class _Files:
    """Open descriptors by path, one each, closed with this object. Safe to share among threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Path, int] = {}

    def descriptor(self, view: TensorView) -> int:
        """Of a file that still has all bytes of `view`."""
        fd = self._open.get(view.file)
        if fd is None:
            with self._lock:
                fd = self._open.get(view.file)
                if fd is None:
                    got = open_regular(view.file)
                    if isinstance(got, Finding):
                        raise SourceUnreadable(got)
                    fd = self._open[view.file] = got[0]
        size = os.fstat(fd).st_size
        if view.offset + view.nbytes > size:
            why = f"{view.file.name} has {size:,} bytes now; the tensor ends at {view.offset + view.nbytes:,}"
            raise _changed(view.file, why, view.name)
        return fd

    def __del__(self) -> None:
        for fd in self._open.values():
            os.close(fd)


class _Mapped:
    """A file is mapped at its first tensor. The size is looked at before every tensor: beyond a file's end a map raises a signal.

    Pages that were looked at count as this process's memory as long as they are mapped, so they are let go again every `RESIDENT` bytes, each look
    taken for whole pieces of FOLIO.
    Arrays handed out stay valid: a page that is needed again comes from the page cache.
    """

    def __init__(self) -> None:
        self._files = _Files()
        self._maps: dict[Path, tuple[mmap.mmap, NDArray[np.uint8]]] = {}
        self._touched, self._last = 0, (Path(), 0, 0)
        self._since: set[Path] = set()  # files that were looked at since pages were let go

    def __call__(self, view: TensorView) -> NDArray[Any]:
        if view.nbytes == 0:
            return _frozen(np.zeros(view.shape, view.numpy))
        fd = self._files.descriptor(view)
        _, whole = self._maps.get(view.file, (None, None))
        if whole is None or view.offset + view.nbytes > len(whole):
            try:
                opened = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            except OSError as e:
                raise _unreadable(view.file, e, view.name) from e
            whole = np.frombuffer(opened, np.uint8)
            self._maps[view.file] = opened, whole
        look = view.file, view.offset // FOLIO * FOLIO, -(-(view.offset + view.nbytes) // FOLIO) * FOLIO
        if look != self._last:  # small tensors lie side by side
            self._touched += look[2] - look[1]
        if self._touched > RESIDENT:
            self._touched = look[2] - look[1]
            for file in self._since:
                self._maps[file][0].madvise(mmap.MADV_DONTNEED)
            self._since.clear()
        self._last = look
        self._since.add(view.file)
        return whole[view.offset : view.offset + view.nbytes].view(view.numpy).reshape(view.shape)


class Pread:
    """Each tensor is read into memory of its own: for file systems where mapping is slow or unsafe. `fill` reads into the caller's memory."""

    def __init__(self) -> None:
        self._files = _Files()

    def __call__(self, view: TensorView) -> NDArray[Any]:
        raw = np.empty(view.nbytes, np.uint8)
        if view.nbytes:
            self.fill(view, raw.data)
        return _frozen(raw.view(view.numpy).reshape(view.shape))

    def descriptor(self, view: TensorView) -> int:
        """Of the view's file, for reading elsewhere. Raises SourceError if the file no longer has all of the view."""
        return self._files.descriptor(view)

    def failed(self, view: TensorView, error: OSError) -> SourceUnreadable:
        """What `fill` would raise for an error of a reading elsewhere."""
        return _unreadable(view.file, error, view.name)

    def fill(self, view: TensorView, into: memoryview) -> None:
        """The bytes of a view (also of part of a tensor) into `into`, of the same length."""
        assert len(into) == view.nbytes
        fd = self._files.descriptor(view)
        done = 0
        while done < view.nbytes:  # one call gives 2 GiB at most
            try:
                got = os.preadv(fd, [into[done:]], view.offset + done)
            except OSError as e:
                raise _unreadable(view.file, e, view.name) from e
            if not got:
                raise _changed(view.file, f"{view.file.name} became shorter while the tensor was read", view.name)
            done += got


def reader(io: Literal["mmap", "read"] = "mmap") -> Read:
    """A Read for `--io`. A view of part of a tensor (other offset, shape and nbytes) is read in the same way."""
    return _Mapped() if io == "mmap" else Pread()


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


class FileState(Struct, frozen=True, kw_only=True):
    """A source file as it was. `header`: digest of the length bytes and the header."""

    path: Path
    nbytes: int
    mtime_ns: int
    header: str


def reader_of(checkpoint: Checkpoint, io: Literal["mmap", "read"] = "mmap") -> Read:
    """A Read for the tensors of a checkpoint, also of those whose files are not there yet."""
    return reader(io) if checkpoint.arrivals is None else checkpoint.arrivals.read


def snapshot(files: Iterable[SourceFile]) -> tuple[FileState, ...]:
    """The state of weight files. Raises SourceError where one cannot be read.

    A file that is known beforehand has no time: fetched again, it has another one and the same content."""
    return tuple(
        FileState(path=f.path, nbytes=f.nbytes, mtime_ns=0, header=f.known.header)
        if f.known is not None
        else _state(f.path, f.header_bytes)
        for f in files
    )


def unchanged(before: Iterable[FileState], files: Iterable[SourceFile]) -> list[Finding]:
    """What changed since `snapshot(files)`; empty if nothing did. A new time alone is a change: the same header can stand before other data."""
    found: list[Finding] = []
    for old, file in zip(before, files, strict=True):
        if file.known is not None:  # its arrivals say it
            continue
        try:
            new = _state(file.path, file.header_bytes)
        except SourceError as e:
            found.append(e.finding)
            continue
        parts = [("size", old.nbytes == new.nbytes), ("header", old.header == new.header), ("time", old.mtime_ns == new.mtime_ns)]
        other = [name for name, same in parts if not same]
        if other:
            found.append(_changed(file.path, f"{file.name} is not the file it was: another {' and '.join(other)}").finding)
    return found


def source_digest(file: SourceFile) -> str:
    """As in the manifest: `xxh3:` of the content up to 64 MB, else `xxh3-header:` of the length bytes and the header."""
    if file.known is not None:
        return file.known.digest
    if file.nbytes <= WHOLE:
        return content_digest(file.path)
    return f"xxh3-header:{_header_digest(file.path, file.header_bytes)}"


def content_digest(path: Path) -> str:
    """`xxh3:` and the XXH3-128 (seed 0) of a file's bytes. Raises SourceError."""
    fd, state = _opened(path)
    try:
        return f"xxh3:{_digest(path, fd, state.st_size)}"
    finally:
        os.close(fd)


def _state(path: Path, header_bytes: int) -> FileState:
    fd, state = _opened(path)
    try:
        return FileState(
            path=path, nbytes=state.st_size, mtime_ns=state.st_mtime_ns, header=_digest(path, fd, min(header_bytes, state.st_size))
        )
    finally:
        os.close(fd)


def _header_digest(path: Path, header_bytes: int) -> str:
    fd, _ = _opened(path)
    try:
        return _digest(path, fd, header_bytes)
    finally:
        os.close(fd)


def _opened(path: Path) -> tuple[int, os.stat_result]:
    got = open_regular(path)
    if isinstance(got, Finding):
        raise SourceUnreadable(got)
    return got


def _digest(path: Path, fd: int, nbytes: int) -> str:
    """XXH3-128, seed 0, of the first `nbytes`, in hexadecimal."""
    sum_ = xxhash.xxh3_128(seed=0)
    done = 0
    while done < nbytes:
        try:
            got = os.pread(fd, min(BLOCK, nbytes - done), done)
        except OSError as e:
            raise _unreadable(path, e) from e
        if not got:
            raise _changed(path, f"{path.name} became shorter while it was read")
        sum_.update(got)
        done += len(got)
    return sum_.hexdigest()
