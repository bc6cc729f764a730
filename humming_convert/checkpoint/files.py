"""Opening files of a folder that others wrote: special files never block, and nothing is allocated on a file's word.

In: a path.  Out: an open descriptor and its state, the bytes of a small file, or the finding that says why not.
Facts: architecture.md 9.3 (a file that cannot be read is refused, no crash), R1 to R3.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from humming_convert.checkpoint import rules
from humming_convert.checkpoint.rules import broken
from humming_convert.findings import Finding

LIMIT = 100_000_000  # bytes of a header (the format's limit) and of every other JSON file

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path) -> tuple[int, os.stat_result] | Finding:
    """A descriptor for reading and its state. Links to regular files are followed: a Hub snapshot is made of them.

    The kind is looked at twice: before opening, since opening a device can do something, and after, since a name can change hands.
    O_NONBLOCK: opening a pipe would wait for its writer.
    """
    try:
        state = os.stat(path)
        if stat.S_ISREG(state.st_mode):
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            state = os.fstat(fd)
            if stat.S_ISREG(state.st_mode):
                return fd, state
            os.close(fd)
    except OSError as e:
        return _unopened(path, e)
    kind = next((name for test, name in _KINDS if test(state.st_mode)), "a special file")
    return broken(rules.FILE_KIND, f"{path.name} is {kind}, not a file", file=path.name, advice="put the file itself there")


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, os.stat_result] | Finding]:
    """As `open_regular`; closes the descriptor at the end."""
    got = open_regular(path)
    try:
        yield got
    finally:
        if not isinstance(got, Finding):
            os.close(got[0])


def _unopened(path: Path, e: OSError) -> Finding:
    if e.errno == errno.ELOOP:
        return broken(
            rules.FILE_KIND, f"{path.name} is a symbolic link that leads back to itself", file=path.name, advice="fetch the file again"
        )
    if e.errno == errno.ENOENT and path.is_symlink():
        why = f"{path.name} is a symbolic link to {os.readlink(path)!r}, where there is nothing"
        return broken(rules.FILE_KIND, why, file=path.name, advice="fetch the file again")
    return broken(
        rules.FILE_UNREADABLE,
        f"{path.name} cannot be opened: {e.strerror or e}",
        file=path.name,
        advice="check that it exists and its permissions",
    )


def read_exactly(fd: int, nbytes: int, offset: int) -> bytes:
    """`nbytes` from `offset`, fewer where the file ends. The caller has compared nbytes with the file's size."""
    parts: list[bytes] = []
    while nbytes > 0:
        got = os.pread(fd, nbytes, offset)
        if not got:
            break
        parts.append(got)
        nbytes -= len(got)
        offset += len(got)
    return b"".join(parts)


def read_small(path: Path) -> bytes | Finding:
    """A JSON file's bytes."""
    with opened(path) as got:
        if isinstance(got, Finding):
            return got
        fd, state = got
        if state.st_size > LIMIT:
            return broken(
                rules.JSON_LIMIT,
                f"{path.name} has {state.st_size:,} bytes, more than {LIMIT:,}",
                file=path.name,
                advice="it is no JSON of a checkpoint",
            )
        try:
            return read_exactly(fd, state.st_size, 0)
        except OSError as e:
            return broken(rules.FILE_UNREADABLE, f"{path.name} cannot be read: {e.strerror or e}", file=path.name, advice="check the disk")
