"""Running a plan: every output file by one worker, several workers at once, then the folder checks itself and is published.

In: a Plan.  Out: a Result, with `<out>` whole; or an exception, with `<out>` untouched and `<out>.partial` resumable.
Facts: architecture.md 6, 9.4.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from humming_convert.checkpoint.reading import Pread, SourceChanged, content_digest, reader, snapshot, source_digest, unchanged
from humming_convert.engine.folder import Occupied, Workspace, fsync_folder, workspace
from humming_convert.engine.journal import Journal, differences, fields
from humming_convert.engine.output import Arena, OutputWriter
from humming_convert.engine.pack import Worker, copy_plain, write_layer
from humming_convert.engine.progress import Counter, Progress
from humming_convert.manifest.build import build_manifest, rank_manifest
from humming_convert.manifest.card import model_card
from humming_convert.manifest.config_json import output_config
from humming_convert.manifest.read import full_manifests
from humming_convert.manifest.types import FileEntry, LayerResult
from humming_convert.manifest.versions import versions
from humming_convert.plan.types import OutputFile, PlainTensor, Plan, PlannedLayer

MANIFEST, INDEX = "humming_manifest.json", "model.safetensors.index.json"
SLACK = 64 << 20  # bytes asked for beside the weights: configs, tokenizer, manifest


class NoSpace(Exception):
    """The output does not fit on its disk."""


class CheckFailed(Exception):
    """A proof or the self-check of the folder failed; `findings` names the tensor."""

    def __init__(self, message: str, findings: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


@dataclass(slots=True, kw_only=True)
class Result:
    """A finished run. `manifest`: of the whole folder; `layers`: the entries of all ranks. `seconds`: by phase.
    `already_done`: the folder was there, whole, of the same fingerprint."""

    out: Path
    plan: Plan
    manifest: Mapping[str, Any]
    layers: Sequence[Mapping[str, Any]]
    already_done: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def lossy_steps(self) -> list[str]:
        return sorted({x["step"] for layer in self.layers for x in layer["lossy"]})

    @property
    def proof(self) -> str:
        """`equal`, or the weakest word that a layer's proof uses."""
        words = {w for layer in self.layers for w in (layer["proof"]["codes"], layer["proof"]["scales"])}
        return "equal" if words <= {"equal"} else ", ".join(sorted(words))

    def document(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "status": "done",
            "already_done": self.already_done,
            "out": str(self.out),
            "fingerprint": self.plan.fingerprint,
            "layers": self.plan.totals["layers"],
            "lossy_steps": self.lossy_steps,
            "proof": self.proof,
            "totals": dict(self.plan.totals),
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "findings": [f.as_dict() for f in self.plan.findings],
        }


def run(
    plan: Plan, out: Path, *, progress: Progress | None = None, jobs: int | None = None, overwrite: bool = False, fresh: bool = False
) -> Result:
    """Writes the plan to `out`. Raises Occupied, NoSpace, CheckFailed, LockHeld, and what the system says (OSError)."""
    begin = time.perf_counter()
    if plan.totals["open_questions"]:
        raise ValueError("a plan made from headers only has open questions; make it again with the data")
    if (done := _already_done(plan, out, overwrite)) is not None:
        return Result(out=out, plan=plan, manifest=done, layers=_layers(out, done), already_done=True)
    with workspace(out) as space:
        try:
            journal = _prepare(plan, space, fresh)
        except (Occupied, NoSpace):
            _remove_if_new(space.partial)
            raise
        before = snapshot(plan.source.weights)
        results, meters = _write_files(plan, space, journal, Counter(plan.totals["bytes_out"], progress), jobs or cores())
        wrote = time.perf_counter()
        if changed := unchanged(before, plan.source.weights):
            raise SourceChanged(changed[0])  # the bytes may be of two sources
        manifest = _finish(plan, space, results, meters)
        journal.remove()
        space.publish(overwrite=overwrite)
    return Result(
        out=out,
        plan=plan,
        manifest=manifest,
        layers=_layers(out, manifest),
        seconds={"write": wrote - begin, "finish": time.perf_counter() - wrote},
    )


def _layers(out: Path, manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [layer for full in full_manifests(out, manifest) for layer in full["layers"]]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------ before writing
def _already_done(plan: Plan, out: Path, overwrite: bool) -> dict[str, Any] | None:
    """The manifest of a whole `out` of the same fingerprint; None if there is no `out`, or it is to be replaced. Occupied otherwise."""
    if not out.exists() and not out.is_symlink():
        return None
    manifest: dict[str, Any] = {}
    try:
        manifest = json.loads((out / MANIFEST).read_text())
    except (OSError, ValueError):
        pass
    if manifest.get("fingerprint") == plan.fingerprint:
        return manifest
    if overwrite:
        return None
    if not manifest:
        raise Occupied(f"{out} exists and is no output of this tool; choose another --out, or --overwrite replaces it")
    old = {"tool": manifest.get("tool", {}).get("version"), **{f"options.{k}": v for k, v in manifest.get("options", {}).items()}}
    new = {k: v for k, v in fields(plan).items() if k in old or k.startswith("options.") or k == "tool"}
    changed = differences(old, new) or ["the source"]
    raise Occupied(f"{out} was made from something else: {'; '.join(changed)}. Choose another --out, or --overwrite replaces it")


def _prepare(plan: Plan, space: Workspace, fresh: bool) -> Journal:
    journal = Journal(space.partial, plan)
    ours = journal.path.exists()
    foreign = [p.name for p in space.partial.iterdir() if not p.name.startswith(".humming-convert.")]
    if fresh or (ours and not journal.done and not journal.others):
        for name in foreign:
            path = space.partial / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        journal.path.unlink(missing_ok=True)
        journal = Journal(space.partial, plan)
    elif journal.others:
        raise Occupied(f"{space.partial} is an unfinished run of something else: {'; '.join(journal.others)}. --fresh discards it")
    elif not ours and foreign:
        raise Occupied(f"{space.partial} exists and is not ours ({foreign[0]}); remove it, or --fresh discards it")
    _check_space(plan, space, journal)
    journal.begin()
    return journal


def _check_space(plan: Plan, space: Workspace, journal: Journal) -> None:
    needed = sum(f.nbytes for f in plan.files if f.name not in journal.done) + SLACK
    # an interrupted run's files are sized already; what they hold of the disk is not needed again
    held = sum(p.stat().st_blocks * 512 for f in plan.files if f.name not in journal.done and (p := space.partial / f.name).exists())
    free = shutil.disk_usage(space.partial).free + held
    if free < needed:
        raise NoSpace(f"{space.out.parent} has {free:,} bytes free, {needed:,} are needed; free some space or choose another --out")


def _remove_if_new(partial: Path) -> None:
    """Takes away a partial folder that holds nothing but our lock."""
    if all(p.name == ".humming-convert.lock" for p in partial.iterdir()):
        shutil.rmtree(partial)


# ------------------------------------------------------------------ writing
@dataclass(slots=True)
class FileResult:
    """What a worker knows of one file when it is whole."""

    digest: str
    layers: dict[str, LayerResult]
    plain: dict[str, list[dict[str, Any]]]


def _write_files(
    plan: Plan, space: Workspace, journal: Journal, counter: Counter, jobs: int
) -> tuple[dict[str, LayerResult], dict[str, FileResult]]:
    """All weight files. The first error stops every worker and is raised; finished files stay in the journal."""
    stop = threading.Event()
    by_file: dict[str, list[PlannedLayer | PlainTensor]] = {f.name: [] for f in plan.files}
    for layer in plan.layers:
        by_file[next(iter(layer.outputs.values())).file].append(layer)
    for plain in plan.plain:
        by_file[plain.output.file].append(plain)
    done: dict[str, FileResult] = {}
    todo: list[OutputFile] = []
    for f in plan.files:
        if (line := journal.done.get(f.name)) is not None and _still_whole(space.partial / f.name, f, line):
            done[f.name] = FileResult(line["digest"], {k: LayerResult.from_dict(v) for k, v in line["layers"].items()}, line["plain"])
            counter.tell("file", f.name, f.nbytes)
        else:
            todo.append(f)
    local = threading.local()
    lock = threading.Lock()

    def work(file: OutputFile) -> None:
        if not hasattr(local, "worker"):
            files = Pread()
            local.worker = Worker(read=files, files=files, arena=Arena(), stop=stop)
        result = _write_file(file, by_file[file.name], space.partial / file.name, local.worker, counter)
        with lock:
            done[file.name] = result
            layers = {k: v.as_dict() for k, v in result.layers.items()}
            journal.finished({"file": file.name, "digest": result.digest, "layers": layers, "plain": result.plain})

    # the largest first, so that no worker ends with a long one alone
    _in_threads(work, sorted(todo, key=lambda f: -f.nbytes), min(jobs, max(len(todo), 1)), stop)
    return {name: r for f in done.values() for name, r in f.layers.items()}, done


def _in_threads(work: Callable[[OutputFile], None], todo: list[OutputFile], jobs: int, stop: threading.Event) -> None:
    """Runs work(file) for all; the first error, or an interrupt of the main thread, stops the others and is raised."""
    with ThreadPoolExecutor(jobs, thread_name_prefix="convert") as pool:
        waiting: set[Future[None]] = {pool.submit(work, f) for f in todo}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)  # wakes for signals
                for future in finished:
                    future.result()
        except BaseException:
            stop.set()
            for future in waiting:
                future.cancel()
            raise


def _still_whole(path: Path, file: OutputFile, line: dict[str, Any]) -> bool:
    """Whether a file of the journal still holds what was written: size and digest."""
    return path.exists() and path.stat().st_size == file.nbytes and content_digest(path) == line["digest"]


def _write_file(file: OutputFile, content: list[PlannedLayer | PlainTensor], path: Path, worker: Worker, counter: Counter) -> FileResult:
    layers: dict[str, LayerResult] = {}
    plain: dict[str, list[dict[str, Any]]] = {}
    writer = OutputWriter(path, file.nbytes)
    try:
        writer.write(memoryview(file.header), 0)
        writer.read_back(memoryview(bytearray(len(file.header))), 0)
        counter.tell("start", file.name, len(file.header))
        for item in content:
            worker.check()
            if isinstance(item, PlannedLayer):
                layers[item.key] = write_layer(item, writer, worker)
                counter.tell("tensor", item.layer.name, sum(t.nbytes for t in item.outputs.values()))
            else:
                meter = copy_plain(item, writer, worker)
                if item.dequantized is not None:
                    plain[item.output.name] = [asdict(m) for m in meter.found.values()]
                counter.tell("tensor", item.output.name, item.output.nbytes)
        digest = writer.digest
    except BaseException:
        writer.abandon()
        raise
    writer.close()
    return FileResult(digest, layers, plain)


# ------------------------------------------------------------------ after writing
def _finish(plan: Plan, space: Workspace, results: dict[str, LayerResult], done: dict[str, FileResult]) -> dict[str, Any]:
    """Index, config, card, copied files, manifest; then the folder checks itself."""
    partial = space.partial
    listed = {t.name: t for x in plan.plain for t in (x.output,)}
    if plan.request.standard:
        listed |= {t.name: t for x in plan.layers for t in x.outputs.values()}
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in listed.values())},
        "weight_map": {name: listed[name].file for name in sorted(listed)},
    }
    _write_text(partial / INDEX, json.dumps(index, indent=2) + "\n")
    _write_text(partial / "config.json", json.dumps(output_config(plan), indent=2, ensure_ascii=False) + "\n")
    for name in plan.source.others:
        shutil.copyfile(plan.source.folder / name, partial / name)
        _sync(partial / name)
    measures = {name: m for f in done.values() for name, m in f.plain.items()}
    _write_text(partial / "README.md", model_card(plan, results))
    for stray in partial.iterdir():  # what an interrupted run with other file names could have left
        if not (stray.name.startswith(".humming-convert.") or stray.name in _expected(plan)):
            shutil.rmtree(stray) if stray.is_dir() and not stray.is_symlink() else stray.unlink()
    entries = []
    for path in sorted(p for p in partial.iterdir() if not p.name.startswith(".humming-convert.") and p.name != MANIFEST):
        digest = done[path.name].digest if path.name in done else content_digest(path)
        entries.append(FileEntry(name=path.name, bytes=path.stat().st_size, digest=digest))
    _check_folder(plan, partial)
    sources = [FileEntry(name=f.name, bytes=f.nbytes, digest=source_digest(f)) for f in plan.source.weights]
    read = {f.name for f in plan.source.weights}
    # weight files that no index names were looked at as well, and are told so that nobody looks for them in the output
    strays = sorted(p.name for p in plan.source.folder.glob("*.safetensors") if p.name not in read and p.is_file())
    for name in ("config.json", *strays):
        path = plan.source.folder / name
        sources.append(FileEntry(name=name, bytes=path.stat().st_size, digest=content_digest(path)))
    known = versions(plan, reader("mmap"))
    several, late = len(plan.request.ranks) > 1, []
    for number, rank in enumerate(plan.request.ranks if several else ()):
        others = {t.file for p in plan.layers if p.rank != number for t in p.outputs.values()}
        its_own = build_manifest(plan, results, measures, [e for e in entries if e.name not in others], sources, known, number)
        path = partial / rank_manifest(rank)
        _write_json(path, its_own)
        late.append(FileEntry(name=path.name, bytes=path.stat().st_size, digest=content_digest(path)))
    manifest = build_manifest(plan, results, measures, [*entries, *late], sources, known, None if several else 0)
    _write_json(partial / MANIFEST, manifest)
    fsync_folder(partial)
    return manifest


def _expected(plan: Plan) -> set[str]:
    return {MANIFEST, INDEX, "config.json", "README.md", *plan.source.others, *(f.name for f in plan.files)}


def _check_folder(plan: Plan, partial: Path) -> None:
    """Headers and sizes as the plan has them, read again from the files."""
    for f in plan.files:
        path = partial / f.name
        with open(path, "rb") as opened:
            if opened.read(len(f.header)) != f.header or path.stat().st_size != f.nbytes:
                raise CheckFailed(f"{f.name}: the header or the size on disk is not what was written")


def _write_json(path: Path, manifest: dict[str, Any]) -> None:
    _write_text(path, json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
