"""Running plans: every output file by one worker, several workers at once, then each folder checks itself and is published.

In: Plans and where they go.  Out: a Result each, with `<out>` whole; or an exception, with `<out>` untouched and `<out>.partial` resumable,
or gone where what is in it must not be believed.
Facts: architecture.md 6, 9.3, 9.4.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter as Counted
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct, field

from humming_convert.checkpoint.arrivals import Arrivals, Use
from humming_convert.checkpoint.reading import FileState, SourceChanged, reader_of, snapshot, unchanged
from humming_convert.engine.finish import CheckFailed, finish, require_lossless
from humming_convert.engine.folder import Occupied, Workspace, workspace
from humming_convert.engine.how import How
from humming_convert.engine.jobs import FileJob, jobs_of, share, totals_of, use_of
from humming_convert.engine.journal import FileDone, Journal, Keeper
from humming_convert.engine.local import Pool, Task, grouped, run_local
from humming_convert.engine.memory import KEPT, Budget, allowed, limit_of_cgroup, private_bytes
from humming_convert.engine.merge import write_record
from humming_convert.engine.places import check_apart_from
from humming_convert.engine.prepare import NoSpace, already_done, is_whole, prepare, remove_if_new
from humming_convert.engine.progress import Counter, Progress
from humming_convert.engine.result import Result, layers_of
from humming_convert.findings import Refused
from humming_convert.manifest.read import read_manifest
from humming_convert.manifest.versions import versions
from humming_convert.plan.types import Plan
from humming_convert.proof.failed import ProofFailed
from humming_convert.proof.stream import Packers

__all__ = ["CheckFailed", "How", "NoSpace", "Result", "run", "run_all"]


class _Run(Struct):
    """One plan on its way. `before`: the source as it was when the plan was made."""

    plan: Plan
    out: Path
    space: Workspace
    before: tuple[FileState, ...]
    jobs: list[FileJob]
    journal: Journal
    done: dict[str, FileDone] = field(default_factory=dict)


def run(plan: Plan, out: Path, *, progress: Progress | None = None, how: How | None = None, packers: Packers | None = None) -> Result:
    """Writes one plan to `out`. packers: the GPU that `how.device` names, opened. Raises Occupied, NoSpace, CheckFailed, ProofFailed, LockHeld,
    SourceChanged, and what the system says."""
    return run_all([(plan, out)], progress=progress, how=how, packers=packers)[0]


def run_all(
    wanted: Sequence[tuple[Plan, Path]], *, progress: Progress | None = None, how: How | None = None, packers: Packers | None = None
) -> list[Result]:
    """Writes several plans of one source at once, each part of the source for all of them before the next. As `run`."""
    how, begin = how or How(), time.perf_counter()
    if any(plan.totals["open_questions"] for plan, _ in wanted):
        raise ValueError("a plan made from headers only has open questions; make it again with the data")
    for plan, out in wanted:
        check_apart_from(plan.source, out, replaced=how.overwrite)
    results: dict[Path, Result] = {}
    with ExitStack() as stack:
        runs: list[_Run] = []
        for plan, out in wanted:
            got = _begin(plan, out, how, stack)
            if isinstance(got, Result):
                results[out] = got
            else:
                runs.append(got)
        if runs:
            with _nothing_wrong_left(runs):
                seconds = _write(runs, how, progress, packers)
                wrote = time.perf_counter()
                for one in runs:
                    results[one.out] = _end(one, how)
            for one in runs:
                results[one.out].seconds = {**seconds, "all": wrote - begin, "finish": time.perf_counter() - wrote}
    return [results[out] for _, out in wanted]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------ before writing
def _begin(plan: Plan, out: Path, how: How, stack: ExitStack) -> _Run | Result:
    """A run with its folder locked until the stack closes, or the result that is there already."""
    if (manifest := already_done(plan, out, how.overwrite)) is not None:
        require_lossless(plan, out, manifest)
        return Result(out=out, plan=plan, manifest=manifest, layers=layers_of(out, manifest), already_done=True)
    space = stack.enter_context(workspace(out, how.part.label if how.part is not None else ""))
    if how.part is None and not how.fresh and is_whole(plan, space.partial):
        require_lossless(plan, space.partial, read_manifest(space.partial))
        space.publish(overwrite=how.overwrite)
        manifest = read_manifest(out)
        return Result(out=out, plan=plan, manifest=manifest, layers=layers_of(out, manifest))
    before = plan.states or snapshot(plan.source.weights)
    state = {f.path.name: [f.nbytes, f.mtime_ns] for f in before}
    jobs = jobs_of(plan, space.partial)
    if how.part is not None:
        jobs = share(jobs, how.part.number, how.part.of)
    try:
        journal = prepare(plan, space, jobs, how, state)
    except (Occupied, NoSpace):
        remove_if_new(space.partial)
        raise
    if how.part is not None:
        write_record(plan, space.partial, how.part)
    return _Run(plan, out, space, before, jobs, journal)


@contextmanager
def _nothing_wrong_left(runs: Sequence[_Run]) -> Iterator[None]:
    """Partial folders are kept for the next try, but for errors that say that their content is wrong (architecture.md 9.3: 3 and 4)."""
    try:
        yield
    except (ProofFailed, CheckFailed, Refused):
        for one in runs:
            one.space.discard()
        raise
    except SourceChanged:
        for one in runs:
            one.journal.forget()  # what was read may be of two sources
        raise


# ------------------------------------------------------------------ writing
def _write(runs: Sequence[_Run], how: How, progress: Progress | None, packers: Packers | None) -> dict[str, float]:
    """All files of all runs; the seconds of all workers by phase. The first error stops every worker; finished pieces stay in the journals."""
    counter = Counter(sum(j.file.nbytes for r in runs for j in r.jobs), progress)
    lock = threading.Lock()
    keeper = Keeper()
    arrivals = runs[0].plan.source.arrivals
    tasks = [_task(one, job, keeper, lock) for one in runs for job in one.jobs]
    if len(runs) == 1 and arrivals is None:
        tasks.sort(key=lambda t: -t.job.file.nbytes)  # the largest first, so that no worker ends with a long one alone
    else:
        # what several targets read of the source is read while it is in memory; files that are fetched are used in the order in which they come
        tasks.sort(key=lambda t: t.job.source_place)
    items = [item for one in runs for job in one.jobs for item in job.content]
    driver = packers.held if packers is not None else 0
    total = allowed(items, how.max_memory, limit_of_cgroup(), private_bytes(), driver)
    budget = Budget(total, KEPT if how.max_memory is None else min(KEPT, total // 16))
    jobs = how.jobs or cores()
    try:
        with _arriving(arrivals, tasks, counter if progress is not None else None):
            if how.engine == "ray":
                from humming_convert.engine.on_ray import run_ray

                if arrivals is not None:
                    arrivals.wait(Use(frozenset(f for use in _uses(tasks) for f in use.files)), lambda: None)
                seconds = run_ray(tasks, counter, how, jobs)
            else:
                streaming = arrivals is not None and arrivals.streaming
                jobs, groups = (max(jobs, _abreast(tasks)), [[t] for t in tasks]) if streaming else (jobs, grouped(tasks))
                pool = Pool(jobs=jobs, io=how.io, budget=budget, counter=counter, link=how.link_common, packers=packers, arrivals=arrivals)
                seconds = run_local(groups, pool)
        keeper.finish()
    except Exception:
        with suppress(OSError, MemoryError):
            keeper.finish()  # what was finished before the error is not done again
        raise
    except BaseException:
        keeper.abandon()
        raise
    return seconds


@contextmanager
def _arriving(arrivals: Arrivals | None, tasks: Sequence[Task], counter: Counter | None) -> Iterator[None]:
    """Source files come while this lasts. counter: told how far they have come."""
    if arrivals is None:
        yield
        return
    try:
        arrivals.begin(_uses(tasks), counter.fetched if counter is not None else None)
        yield
    finally:
        arrivals.end()


def _uses(tasks: Sequence[Task]) -> list[Use]:
    return [use_of(item) for t in tasks for item in t.job.content]


def _abreast(tasks: Sequence[Task]) -> int:
    """The most output files that one source file goes into: with a worker each, none has to be kept for a worker that comes later."""
    into = Counted(file for t in tasks for file in {f for use in _uses([t]) for f in use.files})
    return max(into.values(), default=1)


def _task(one: _Run, job: FileJob, keeper: Keeper, lock: threading.Lock) -> Task:
    def keep(fd: int, name: str, start: int, piece: FileDone) -> None:
        line = piece.line(name, start)
        keeper.keep(fd, lambda: one.journal.add(line))

    def result(done: FileDone) -> None:
        with lock:
            one.done[job.file.name] = done

    return Task(job=job, begun=one.journal.done.get(job.file.name), keep=keep, result=result)


# ------------------------------------------------------------------ after writing
def _end(one: _Run, how: How) -> Result:
    """The source is what it was; then the folder is finished and published. A part of a split run leaves that to `merge`."""
    known = versions(one.plan, reader_of(one.plan.source)) if how.part is None else ((), ())
    arrivals = one.plan.source.arrivals
    if changed := unchanged(one.before, one.plan.source.weights) + (arrivals.unchanged() if arrivals is not None else []):
        raise SourceChanged(changed[0])
    if how.part is not None:
        did = {"part": how.part.number, "of": how.part.of, "files": sorted(one.done), "totals": totals_of(one.jobs)}
        return Result(out=one.out, plan=one.plan, part=did)
    manifest = finish(one.plan, one.space.partial, one.done, known)
    require_lossless(one.plan, one.space.partial, manifest)
    one.space.publish(overwrite=how.overwrite)
    return Result(out=one.out, plan=one.plan, manifest=manifest, layers=layers_of(one.out, manifest))
