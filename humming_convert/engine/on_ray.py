"""The same jobs as tasks of a Ray cluster over a shared file system: paths and places travel, never tensors; the driver journals and publishes.

In: tasks.  Out: what is known of every file.  A lost worker's task is given to another; jobs are idempotent.
Facts: architecture.md 6.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any, Literal

from humming_convert.checkpoint.reading import SourceChanged, SourceError, SourceUnreadable
from humming_convert.engine.finish import CheckFailed
from humming_convert.engine.how import How
from humming_convert.engine.jobs import FileJob, write_file
from humming_convert.engine.journal import FileDone
from humming_convert.engine.local import Task, keep_whole
from humming_convert.engine.memory import Budget
from humming_convert.engine.progress import Counter
from humming_convert.engine.worker import Worker
from humming_convert.findings import Finding
from humming_convert.proof.failed import ProofFailed

RETRIES = 5  # times a task is given to another worker after its own was lost
INSTALL = "pip install 'humming-convert[ray]'"


class MissingExtra(Exception):
    """A package that only some users need is not installed."""


class WorkersLost(OSError):
    """A task's workers died again and again."""


Failure = tuple[Literal["proof", "changed", "unreadable"], Finding]


def write_one(job: FileJob, begun: FileDone | None, io: Literal["mmap", "read"]) -> tuple[FileDone | Failure, dict[str, float]]:
    """One file, whole and on disk; runs on a worker. Failures that carry a finding are values: exceptions lose it on the way."""
    worker = Worker.make(io, threading.Event())

    def keep(fd: int, _name: str, _start: int, _piece: FileDone) -> None:
        os.fdatasync(fd)

    try:
        return write_file(job, begun, worker, Counter(0, None), Budget(0), keep), worker.clock.seconds
    except ProofFailed as error:
        return ("proof", error.finding), worker.clock.seconds
    except SourceError as error:
        return ("changed" if isinstance(error, SourceChanged) else "unreadable", error.finding), worker.clock.seconds


def run_ray(tasks: Sequence[Task], counter: Counter, how: How, jobs: int) -> dict[str, float]:
    """Does all tasks; returns the seconds of all workers together by phase. MissingExtra if Ray is not installed."""
    ray = library()
    terminate = signal.getsignal(signal.SIGTERM)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=how.address, **quiet) if how.address else ray.init(
            address="local", num_cpus=jobs, include_dashboard=False, **quiet
        )
    except (ConnectionError, RuntimeError) as error:
        raise WorkersLost(f"no Ray cluster at {how.address or 'this machine'}: {error}") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # Ray puts its own, which ends the process as if nothing were to be said
    try:
        return _drive(ray, tasks, counter, how)
    finally:
        ray.shutdown()


def library() -> Any:
    """The module `ray`. MissingExtra if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
    except ImportError:
        raise MissingExtra(f"--engine ray needs Ray, which is not installed: {INSTALL}") from None
    return ray


def _drive(ray: Any, tasks: Sequence[Task], counter: Counter, how: How) -> dict[str, float]:
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(write_one)
    waiting = {remote.remote(t.job, t.begun, how.io): t for t in tasks}
    seconds = dict.fromkeys(("read", "pack", "prove", "write"), 0.0)
    while waiting:
        finished, _ = ray.wait(list(waiting), timeout=0.2)
        for reference in finished:
            task = waiting.pop(reference)
            try:
                got, spent = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            except ray.exceptions.RayError as error:
                raise WorkersLost(f"{task.job.file.name} was given to {RETRIES + 1} workers, and all of them died ({error})") from None
            if not isinstance(got, FileDone):
                _raise(*got)
            for phase, value in spent.items():
                seconds[phase] += value
            keep_whole(task, got)
            task.result(got)
            counter.tell("file", task.job.file.name, task.job.file.nbytes)
    return seconds


def _raise(kind: str, finding: Finding) -> None:
    if kind == "proof":
        raise CheckFailed(str(finding), (finding,))
    raise (SourceChanged if kind == "changed" else SourceUnreadable)(finding)
