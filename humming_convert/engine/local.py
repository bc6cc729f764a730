"""Jobs in threads of this process. The first error, or an interrupt of the main thread, stops all and is raised.

In: tasks, each one file or several that hold the same.  Out: what is known of every file.  Facts: architecture.md 6.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Literal

from msgspec import Struct

from humming_convert.checkpoint.arrivals import Arrivals
from humming_convert.engine.jobs import FileJob, Keep, write_file
from humming_convert.engine.journal import FileDone
from humming_convert.engine.memory import Budget
from humming_convert.engine.output import BLOCK, OutputWriter
from humming_convert.engine.progress import Counter
from humming_convert.engine.worker import Worker
from humming_convert.plan.types import PlainTensor
from humming_convert.proof.stream import Packers

FICLONE = 0x40049409  # ioctl(2): a file shares the blocks of another, copied when one of them is written


class Task(Struct, kw_only=True):
    """A job, how far an earlier run came, and where its result goes. `keep`: makes pieces durable and notes them."""

    job: FileJob
    begun: FileDone | None
    keep: Keep
    result: Callable[[FileDone], None]


class Pool(Struct, kw_only=True):
    """What the workers of a run have in common. packers: a GPU that they share; None: they pack themselves.

    arrivals: where source files may have to be waited for."""

    jobs: int
    io: Literal["mmap", "read"]
    budget: Budget
    counter: Counter
    link: bool = False
    packers: Packers | None = None
    arrivals: Arrivals | None = None


def grouped(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks whose files hold the same plain tensors together: of several targets one is written, the others share it."""
    groups: dict[object, list[Task]] = {}
    for number, task in enumerate(tasks):
        # a dequantized matrix is made for each target: its expression holds a whole layer and has no hash
        plain = all(isinstance(x, PlainTensor) and x.dequantized is None for x in task.job.content)
        key = (task.job.file, tuple((x.output, x.expr) for x in task.job.content if isinstance(x, PlainTensor))) if plain else number
        groups.setdefault(key, []).append(task)
    return list(groups.values())


def run_local(groups: Sequence[Sequence[Task]], pool: Pool) -> dict[str, float]:
    """Does all tasks; returns the seconds of all workers together by phase."""
    stop = threading.Event()
    local = threading.local()
    workers: list[Worker] = []

    def work(group: Sequence[Task]) -> None:
        if not hasattr(local, "worker"):
            local.worker = Worker.make(pool.io, stop, pool.packers, pool.arrivals)
            workers.append(local.worker)
        first, done = group[0], FileDone(0, "")
        for task in group:
            if task is first or not _shared(first.job, task.job, done, local.worker, pool):
                done = write_file(task.job, task.begun, local.worker, pool.counter, pool.budget, task.keep)
            else:
                keep_whole(task, done)
            task.result(done)
            pool.counter.tell("file", task.job.file.name)

    _in_threads(work, groups, min(pool.jobs, max(len(groups), 1)), stop)
    return {phase: sum(w.clock.seconds[phase] for w in workers) for phase in ("read", "pack", "prove", "write")}


def _in_threads(work: Callable[[Sequence[Task]], None], todo: Sequence[Sequence[Task]], jobs: int, stop: threading.Event) -> None:
    with ThreadPoolExecutor(jobs, thread_name_prefix="convert") as pool:
        waiting: set[Future[None]] = set()
        try:
            waiting = {pool.submit(work, group) for group in todo}
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)  # wakes for signals
                for future in finished:
                    future.result()
        except BaseException:
            stop.set()
            for future in waiting:
                future.cancel()
            raise


# ------------------------------------------------------------------ files that several targets share
def _shared(first: FileJob, job: FileJob, done: FileDone, worker: Worker, pool: Pool) -> bool:
    """Makes a file of another that holds the same, without writing it again. False where neither blocks nor names can be shared."""
    if not _clone(first, job):
        if not pool.link:
            return False
        job.path.unlink(missing_ok=True)
        try:
            os.link(first.path, job.path)
        except OSError:  # another file system, or one without links: it is written
            return False
        pool.counter.tell("tensor", job.file.name, job.file.nbytes)
        return True
    writer = OutputWriter(job.path, job.file.nbytes)
    try:
        same = writer.resume(done.upto, done.digest, worker.arena.take("packed", BLOCK).data)
    finally:
        writer.close()
    if same:
        pool.counter.tell("tensor", job.file.name, job.file.nbytes)
    return same


def _clone(first: FileJob, job: FileJob) -> bool:
    source = os.open(first.path, os.O_RDONLY)
    try:
        to = os.open(job.path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            with contextlib.suppress(OSError):
                fcntl.ioctl(to, FICLONE, source)
                return True
        finally:
            os.close(to)
    finally:
        os.close(source)
    return False


def keep_whole(task: Task, done: FileDone) -> None:
    """Notes a file that was written elsewhere, whole."""
    fd = os.open(task.job.path, os.O_RDONLY)
    try:
        task.keep(fd, task.job.file.name, 0, done)
    finally:
        os.close(fd)
