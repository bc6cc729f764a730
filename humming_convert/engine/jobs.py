"""One output file: the unit of work of every engine. Pure, picklable, idempotent: a job holds paths and places, never tensors.

In: a FileJob, and how far an earlier run came with it.  Out: a FileDone.  Facts: architecture.md 4, 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from humming_convert.checkpoint.arrivals import Use
from humming_convert.engine.journal import FileDone
from humming_convert.engine.memory import Budget, need
from humming_convert.engine.output import BLOCK, OutputWriter
from humming_convert.engine.pack import copy_plain, write_layer
from humming_convert.engine.progress import Counter
from humming_convert.engine.worker import Worker
from humming_convert.plan.types import OutputFile, PlainTensor, Plan, PlannedLayer
from humming_convert.standard.expr import Stored

PIECE = 1 << 27  # bytes after which what is finished goes to the disk and into the journal

Item = PlannedLayer | PlainTensor
Keep = Callable[[int, str, int, FileDone], None]
"""(descriptor, file, first byte, what is known up to FileDone.upto): makes it durable, then notes it; may do so later."""


class FileJob(Struct, frozen=True, kw_only=True):
    """A file of the plan and what stands in it, in order. `folder`: where it is written."""

    file: OutputFile
    content: tuple[Item, ...]
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / self.file.name

    @property
    def source_place(self) -> tuple[str, int]:
        """Where in the source its first tensor begins."""
        for item in self.content:
            reads = item.layer.tensors["weight"].reads() if isinstance(item, PlannedLayer) else item.expr.reads()
            if reads:
                return str(reads[0].file), reads[0].offset
        return "", 0


def jobs_of(plan: Plan, folder: Path) -> list[FileJob]:
    """The plan's jobs in the order of its files."""
    by_file: dict[str, list[Item]] = {f.name: [] for f in plan.files}
    for layer in plan.layers:
        by_file[next(iter(layer.outputs.values())).file].append(layer)
    for plain in plan.plain:
        by_file[plain.output.file].append(plain)
    return [FileJob(file=f, content=tuple(by_file[f.name]), folder=folder) for f in plan.files]


def share(jobs: list[FileJob], part: int, parts: int) -> list[FileJob]:
    """The jobs of part `part` (from 1) of `parts`: each file, the largest first, goes to the part that has the least."""
    load = [0] * parts
    mine: list[FileJob] = []
    for job in sorted(jobs, key=lambda j: (-j.file.nbytes, j.file.name)):
        to = load.index(min(load))
        load[to] += job.file.nbytes
        if to == part - 1:
            mine.append(job)
    return mine


def totals_of(jobs: Sequence[FileJob]) -> dict[str, Any]:
    """As a plan's totals, of these files alone."""
    items = [item for job in jobs for item in job.content]
    layers = [x.layer for x in items if isinstance(x, PlannedLayer)]
    plain = [x for x in items if isinstance(x, PlainTensor)]
    read = [v for x in layers for v in x.source] + [v for x in plain for v in x.expr.reads()]
    passed = [x.output.nbytes for x in plain if x.dequantized is None]
    return {
        "layers": len({x.name for x in layers}),
        "modules": len({part for x in layers for part in x.parts}),
        "bytes_in": sum({(v.file, v.name): v.nbytes for v in read}.values()),
        "bytes_out": sum(job.file.nbytes for job in jobs),
        "passthrough": {"tensors": len(passed), "bytes": sum(passed)},
        "open_questions": [],
    }


def use_of(item: Item) -> Use:
    """What writing it reads of the source."""
    if isinstance(item, PlainTensor) and isinstance(item.expr, Stored):
        return Use(frozenset({item.expr.view.file}), item.expr.view)
    exprs = item.layer.tensors.values() if isinstance(item, PlannedLayer) else (item.expr,)
    return Use(frozenset(view.file for expr in exprs for view in expr.reads()))


@contextmanager
def _arrived(item: Item, worker: Worker) -> Iterator[Item]:
    """The item when what it reads is there, and from where it is."""
    arrivals = worker.arrivals
    if arrivals is None:
        yield item
        return
    use = use_of(item)
    arrivals.wait(use, worker.check)
    yield replace(item, expr=Stored(arrivals.nearest(use.copied))) if isinstance(item, PlainTensor) and use.copied is not None else item
    arrivals.done(use)


def _end(item: Item) -> int:
    return (
        max(t.offset + t.nbytes for t in item.outputs.values())
        if isinstance(item, PlannedLayer)
        else item.output.offset + item.output.nbytes
    )


def write_file(job: FileJob, begun: FileDone | None, worker: Worker, counter: Counter, budget: Budget, keep: Keep) -> FileDone:
    """Writes what is not there yet. Bytes of an earlier run are read again, for their digest, and written anew if they differ."""
    file = job.file
    writer = OutputWriter(job.path, file.nbytes)
    try:
        if begun is None or not writer.resume(begun.upto, begun.digest, worker.arena.take("packed", BLOCK).data):
            begun = FileDone(0, "")
            writer.write(memoryview(file.header), 0)
            writer.read_back(memoryview(bytearray(len(file.header))), 0)
            counter.tell("start", file.name, len(file.header))
        else:
            counter.tell("resume", file.name, begun.upto)
        whole = FileDone(begun.upto, begun.digest, dict(begun.layers), dict(begun.plain))
        piece, start = FileDone(0, ""), begun.upto
        for item in job.content:
            worker.check()
            if _end(item) <= begun.upto:
                if worker.arrivals is not None:
                    worker.arrivals.done(use_of(item))
                continue
            with _arrived(item, worker) as there, budget.take(need(item, 1 if worker.packer is None else 2), worker.check):
                _write_item(there, writer, worker, counter, piece)
                worker.arena.trim(budget.kept)
            if writer.upto - start >= PIECE and writer.upto < file.nbytes:
                start = _keep(writer, job, start, piece, whole, keep)
                piece = FileDone(0, "")
        _keep(writer, job, start, piece, whole, keep)
    finally:
        writer.close()
    return whole


def _write_item(item: Item, writer: OutputWriter, worker: Worker, counter: Counter, piece: FileDone) -> None:
    if isinstance(item, PlannedLayer):
        piece.layers[item.key] = write_layer(item, writer, worker)
        counter.tell("tensor", item.layer.name, sum(t.nbytes for t in item.outputs.values()))
        return
    meter = copy_plain(item, writer, worker)
    if item.dequantized is not None:
        piece.plain[item.output.name] = [asdict(m) for m in meter.found.values()]
    counter.tell("tensor", item.output.name, item.output.nbytes)


def _keep(writer: OutputWriter, job: FileJob, start: int, piece: FileDone, whole: FileDone, keep: Keep) -> int:
    """Joins a finished piece to the whole and hands it on; returns where the next one starts."""
    whole.upto, whole.digest = piece.upto, piece.digest = writer.upto, writer.digest
    whole.layers |= piece.layers
    whole.plain |= piece.plain
    keep(writer.fd, job.file.name, start, piece)
    return writer.upto
