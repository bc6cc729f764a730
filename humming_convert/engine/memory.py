"""How much private memory a run may use, and who of its workers uses it now.

In: `--max-memory`, the plan, the machine's limits (cgroups v1 and v2).  Out: a Budget that workers take from before a layer.
Facts: architecture.md 6; what a layer needs was measured on the passes and on the numpy reference.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from humming_convert.plan.types import PlainTensor, PlannedLayer
from humming_convert.proof.stream import WINDOW, held_whole, streams
from humming_convert.standard.expr import Stored, Weight

LEAST = 200_000_000  # bytes for all workers together, whatever the process has already
ALLOWED = 400_000_000  # bytes beside the largest fused layer, all workers together
WINDOWS = 3 * 4 * WINDOW  # bytes of a worker's windows: source, packed words (read back in place), and what a last window is larger by
REFERENCE = 12  # bytes a code of an expert that the numpy reference takes: codes, their copies, wide integers while packing
MATRIX = 12  # bytes an element of a matrix that is dequantized: codes while they are unpacked, the result, what is read back
SMALL = 6  # copies of scales and zero points while they are arranged: source, wide floats, packed, read back
KEPT = 64 << 20
MB, MARGIN = 1_000_000, 20  # of what the process has, a little comes and goes
SHARE = 0.8  # of a cgroup's limit: its page cache and other processes want some

__all__ = ["Budget", "TooLittleMemory", "allowed", "check_enough", "limit_of_cgroup", "need", "private_bytes"]


def need(item: PlannedLayer | PlainTensor, windows: int = 1) -> int:
    """Private bytes that writing one item takes at most, about. windows: how many are under way at once."""
    if isinstance(item, PlainTensor):
        if isinstance(item.expr, Stored):
            return WINDOWS
        count = 1
        for size in item.output.shape:
            count *= size
        return count * MATRIX
    weight = item.layer.tensors["weight"]
    assert isinstance(weight, Weight)
    small = sum(v.nbytes for role, e in item.layer.tensors.items() if role != "weight" for v in {v.name: v for v in e.reads()}.values())
    small += sum(t.nbytes for role, t in item.outputs.items() if role != "weight")
    if item.recipe is not None and streams(item.recipe, weight):
        whole = sum(held_whole(item.recipe.weight, block) for _, block in weight.of_expert(0))
        return windows * WINDOWS + SMALL * small + whole
    return SMALL * small + weight.n * weight.k * REFERENCE


def fused_bytes(item: PlannedLayer | PlainTensor) -> int:
    return sum(t.nbytes for t in item.outputs.values()) if isinstance(item, PlannedLayer) else item.output.nbytes


def allowed(items: list[PlannedLayer | PlainTensor], asked: int | None, limit: int | None, base: int, driver: int = 0) -> int:
    """Bytes that workers may take together. asked: `--max-memory`; limit: of the cgroup; base: what the process has already;
    driver: what a GPU's driver has of that, which only the cgroup counts. A process that has much of its own already (a notebook) still gives
    workers LEAST, if no limit was asked for or found."""
    most = driver + (asked if asked is not None else ALLOWED + max(map(fused_bytes, items), default=0))
    least = LEAST if asked is None else 0
    if limit is not None:
        most = min(most, int(limit * SHARE))
        least = min(least, int(limit * SHARE) - base)
    return max(most - base, least, 0)


class TooLittleMemory(Exception):
    """Less was asked for than one worker with the largest layer takes."""


def check_enough(items: Iterable[PlannedLayer | PlainTensor], asked: int, base: int, driver: int, windows: int) -> None:
    """Before anything is written, in a process that does nothing else: what a notebook has already is no fault of the limit.
    asked, base, driver: as in `allowed`.  windows: as in `need`."""
    largest = max((need(item, windows) for item in items), default=0)
    own = max(base - driver, 0)
    least = own + largest
    if asked < least:
        raise TooLittleMemory(
            f"--max-memory: {asked:,} bytes are too few; {least:,} are needed: {own:,} that the process has before it begins, "
            f"and {largest:,} for the largest layer, one at a time; give {-(-least // MB) + MARGIN} MB or more, or leave it out"
        )


class Budget:
    """Bytes shared by the workers. Who asks for more than there is gets it when nobody else has any.

    kept: bytes of a buffer that a worker may keep from one layer to the next; keeping it saves faulting its pages in again."""

    def __init__(self, total: int, kept: int = KEPT) -> None:
        self.total, self.used, self.kept = total, 0, kept
        self._condition = threading.Condition()

    @contextlib.contextmanager
    def take(self, nbytes: int, check: Callable[[], None]) -> Iterator[None]:
        """Waits until there is enough; `check` is called meanwhile and may raise."""
        with self._condition:
            while self.used and self.used + nbytes > self.total:
                check()
                self._condition.wait(0.1)
            self.used += nbytes
        try:
            yield
        finally:
            with self._condition:
                self.used -= nbytes
                self._condition.notify_all()


# ------------------------------------------------------------------ the machine
TRIM, MMAP, ARENAS = -1, -3, -8  # parameters of mallopt (malloc.h)
KEPT_FREED = 64 << 20  # bytes that stay with the process when they are freed
LARGEST_KEPT = 32 << 20  # of one array; the largest that glibc takes


def keep_freed_memory() -> None:
    """For a process that converts and ends: freed arrays are used again. Otherwise glibc gives those of megabytes back at once, and the
    next one's pages come zeroed from the system at 3 GB/s (a tenth of the time of MXFP4, whose scales are arrays of 16 MB). Elsewhere, or
    with another malloc, nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((TRIM, KEPT_FREED), (MMAP, LARGEST_KEPT), (ARENAS, 1)):
            mallopt(parameter, value)


V1_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 where there is no limit


def limit_of_cgroup(proc: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The least limit on memory of the cgroups that this process is in; None if there is none or it cannot be read."""
    found: list[int] = []
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            found += _limits(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _limits(root / "memory", path, "memory.limit_in_bytes")
    return min(found, default=None)


def _limits(root: Path, path: str, name: str) -> Iterator[int]:
    """Of a cgroup and all above it. In a container the path may be the host's and lead nowhere: then the root is the container's own."""
    here = root / path.strip("/")
    while True:
        with contextlib.suppress(OSError, ValueError):
            text = (here / name).read_text().strip()
            if text != "max" and int(text) < V1_UNLIMITED:
                yield int(text)
        if here == root or root not in here.parents:
            return
        here = here.parent


def private_bytes(proc: Path = Path("/proc/self")) -> int:
    """Private memory of this process; 0 where the system does not tell."""
    total = 0
    with contextlib.suppress(OSError):
        for line in (proc / "smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean", "Private_Dirty")):
                total += int(line.split()[1]) * 1024
    return total
