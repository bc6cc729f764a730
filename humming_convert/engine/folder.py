"""The output folder: written as `<out>.partial`, published by one rename, guarded by locks.

At any moment there is no `<out>` or a whole one. Facts: architecture.md 6.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from humming_convert.manifest.build import NAME

OURS = ".humming-convert."  # names in a partial folder that begin so are no part of the output
LOCK = OURS + "lock"
BEAT = 15.0  # seconds between two signs of life of a lock
STALE = 150.0  # seconds without one after which another host's lock counts as left behind
EXCHANGE, AT_FDCWD = 2, -100  # renameat2(2)


class LockHeld(Exception):
    """Another live process works on the same output."""


class Occupied(Exception):
    """`<out>` or `<out>.partial` is there and is not ours to replace."""


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _alive(owner: dict[str, object], lock: Path) -> bool:
    """Whether the owner of a lock still runs. On another host that cannot be seen: there its signs of life count."""
    if owner.get("host") != os.uname().nodename:
        return _age(lock) < STALE
    if owner.get("boot") != _boot_id():
        return False
    try:
        os.kill(int(str(owner.get("pid"))), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return owner.get("start") == _start_time(int(str(owner.get("pid"))))


def _age(lock: Path) -> float:
    """Seconds since the file was touched, by the file system's own clock: that of another host may differ."""
    now = lock.with_name(f"{OURS}clock-{os.uname().nodename}-{os.getpid()}")
    try:
        now.touch()
        return now.stat().st_mtime - lock.stat().st_mtime
    except FileNotFoundError:
        return STALE
    finally:
        now.unlink(missing_ok=True)


def _start_time(pid: int) -> str:
    """Clock ticks at which a process began: tells a reused pid from the old owner. "" where /proc has none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


class Workspace(Struct, frozen=True):
    """`partial`: where a run writes; `out`: where it will stand, no link."""

    out: Path
    partial: Path

    def publish(self, *, overwrite: bool) -> None:
        """`partial` becomes `out`. With overwrite the two change places in one step, and what was there is removed."""
        for path in self.partial.glob(OURS + "*"):  # the folder stays flocked: it is the same inode after the rename
            path.unlink(missing_ok=True)
        fsync_folder(self.partial)
        if overwrite and self.out.exists():
            exchange(self.partial, self.out)
            fsync_folder(self.out.parent)
            shutil.rmtree(self.partial)
        else:
            os.rename(self.partial, self.out)
        fsync_folder(self.out.parent)

    def discard(self) -> None:
        """Nothing is left of the unfinished run."""
        shutil.rmtree(self.partial, ignore_errors=True)


def exchange(a: Path, b: Path) -> None:
    """Two folders change names, in one step where the file system can (Linux 3.15)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), str(b))
    aside = aside_of(b)
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)


def fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def place_of(out: Path) -> Path:
    """The folder's own path: what a link leads to is replaced, never the link; `.` and `..` have a name of their own."""
    return out.resolve() if out.is_symlink() or out.name in ("", "..") else out


def partial_of(out: Path) -> Path:
    place = place_of(out)
    return place.with_name(place.name + ".partial")


def aside_of(place: Path) -> Path:
    """Where the old folder stands for a moment, on file systems that cannot exchange two names."""
    return place.with_name(f".{place.name}{OURS}old")


@contextlib.contextmanager
def workspace(out: Path, part: str = "") -> Iterator[Workspace]:
    """Makes and locks `<out>.partial`. LockHeld if a live process has it; a dead owner's lock is taken over.

    part: `2of4` of a split run, whose parts work in one folder at the same time; "": the run has the folder for itself.
    Two locks: flock on the folder keeps processes of this host apart without a race and dies with its owner; the lock file tells the
    owner to a person and to other hosts on a shared file system, and is touched as long as the owner lives.
    """
    partial = partial_of(out)
    out = place_of(out)
    if inside := next((p for p in out.resolve().parents if (p / NAME).is_file()), None):
        raise Occupied(f"{out} would lie inside of {inside}, which is a finished output and holds only its own files")
    if partial.is_symlink():
        raise Occupied(f"{partial}, where the run would write, is a link; remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    fd = _lock_folder(partial, fcntl.LOCK_SH if part else fcntl.LOCK_EX)
    lock = partial / (f"{LOCK}-{part}" if part else LOCK)
    try:
        for other in [partial / LOCK] if part else sorted(partial.glob(LOCK + "*")):
            if other != lock:
                _check_dead(other)
        _take(lock)
        try:
            with _heartbeat(lock):
                yield Workspace(out, partial)
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _take(lock: Path) -> None:
    """Creates the lock file. The system lets one of several do it."""
    mine = {"pid": os.getpid(), "host": os.uname().nodename, "boot": _boot_id(), "start": _start_time(os.getpid())}
    while True:
        try:
            fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            _check_dead(lock)
            lock.unlink(missing_ok=True)
            continue
        try:
            os.write(fd, json.dumps(mine).encode())
        finally:
            os.close(fd)
        return


def _check_dead(lock: Path) -> None:
    """LockHeld if the owner of a lock file lives."""
    owner = _owner(lock)
    if owner is None and lock.exists():
        time.sleep(0.1)  # it may be about to be written
        owner = _owner(lock)
    if owner is not None and owner.get("pid") != os.getpid() and _alive(owner, lock):
        raise LockHeld(f"{lock.parent} is locked by process {owner.get('pid')} on {owner.get('host')}")


@contextlib.contextmanager
def _heartbeat(lock: Path) -> Iterator[None]:
    end = threading.Event()

    def beat() -> None:
        while not end.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(lock)

    thread = threading.Thread(target=beat, name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()


def _owner(lock: Path) -> dict[str, object] | None:
    """Who wrote the lock file; None if it is not there or torn (its writer died while writing it)."""
    try:
        owner = json.loads(lock.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def _lock_folder(partial: Path, kind: int) -> int:
    """An open, flocked descriptor of the folder that stands at `partial` now."""
    while True:
        partial.mkdir(exist_ok=True)
        try:
            fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # published or removed since
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            if partial.exists() and os.path.samestat(os.fstat(fd), os.stat(partial)):
                return fd
        except BlockingIOError:
            owner = next((o for p in sorted(partial.glob(LOCK + "*")) if (o := _owner(p))), {})
            os.close(fd)
            raise LockHeld(f"{partial} is locked by process {owner.get('pid')} on {owner.get('host')}") from None
        except FileNotFoundError:
            pass
        os.close(fd)  # it was published or removed between mkdir and flock: look again
