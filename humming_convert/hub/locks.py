"""A lock on a folder of this program: held by an open file, gone with the process, whatever ends it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

NAME = "lock"


def lock(folder: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another one does. OSError if there is no such folder."""
    fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@contextlib.contextmanager
def waited(folder: Path) -> Iterator[None]:
    """Holds the lock, once no other holder is left. OSError if there is no such folder."""
    fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
