"""The output folder: written as `<out>.partial`, published by one rename, guarded by a lock.

At any moment there is no `<out>` or a whole one. Facts: architecture.md 6.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LOCK = ".humming-convert.lock"


class LockHeld(Exception):
    """Another live process works on the same output."""


class Occupied(Exception):
    """`<out>` or `<out>.partial` is there and is not ours to replace."""


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _alive(owner: dict[str, object]) -> bool:
    """Whether the owner of a lock still runs. Another host's cannot be seen, so it counts as alive."""
    if owner.get("host") != socket.gethostname():
        return True
    if owner.get("boot") != _boot_id():
        return False
    try:
        os.kill(int(str(owner.get("pid"))), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return owner.get("start") == _start_time(int(str(owner.get("pid"))))


def _start_time(pid: int) -> str:
    """Clock ticks at which a process began: tells a reused pid from the old owner. "" where /proc has none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@dataclass(frozen=True, slots=True)
class Workspace:
    """`partial`: where a run writes; `out`: where it will stand."""

    out: Path
    partial: Path

    def publish(self, *, overwrite: bool) -> None:
        """`partial` becomes `out`. With overwrite, an old `out` is moved aside first and removed after."""
        (self.partial / LOCK).unlink(missing_ok=True)  # the folder stays flocked: it is the same inode after the rename
        fsync_folder(self.partial)
        if overwrite and self.out.exists():
            old = self.out.with_name(self.out.name + ".old")
            shutil.rmtree(old, ignore_errors=True)
            os.rename(self.out, old)
            os.rename(self.partial, self.out)
            shutil.rmtree(old)
        else:
            os.rename(self.partial, self.out)
        fsync_folder(self.out.parent)


def fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def workspace(out: Path) -> Iterator[Workspace]:
    """Makes and locks `<out>.partial`. LockHeld if a live process has it; a dead owner's lock is taken over.

    Two locks: flock on the folder itself keeps processes of this host apart without a race and dies with its owner; the
    lock file tells the owner to a person, and to other hosts on a shared file system.
    """
    partial = out.with_name(out.name + ".partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    fd = _lock_folder(partial)
    lock = partial / LOCK
    try:
        owner = _owner(lock)
        if owner is not None and _alive(owner) and owner.get("pid") != os.getpid():
            raise LockHeld(f"{partial} is locked by process {owner.get('pid')} on {owner.get('host')}")
        mine = {"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot_id(), "start": _start_time(os.getpid())}
        lock.write_text(json.dumps(mine))
        try:
            yield Workspace(out, partial)
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _owner(lock: Path) -> dict[str, object] | None:
    """Who wrote the lock file; None if it is not there or torn (its writer died while writing it)."""
    try:
        owner = json.loads(lock.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def _lock_folder(partial: Path) -> int:
    """An open, flocked descriptor of the folder that stands at `partial` now."""
    while True:
        partial.mkdir(exist_ok=True)
        fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if partial.exists() and os.path.samestat(os.fstat(fd), os.stat(partial)):
                return fd
        except BlockingIOError:
            owner = _owner(partial / LOCK) or {}
            os.close(fd)
            raise LockHeld(f"{partial} is locked by process {owner.get('pid')} on {owner.get('host')}") from None
        os.close(fd)  # it was published or removed between mkdir and flock: look again
