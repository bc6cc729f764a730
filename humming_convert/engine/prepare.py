"""Before the first byte: is the output there already, is the partial folder ours, is there room, how far did an earlier run come.

In: a Plan and a Workspace.  Out: a Journal that is on disk; Occupied or NoSpace with nothing changed.  Facts: architecture.md 6, 9.3.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from humming_convert.checkpoint.reading import content_digest
from humming_convert.engine.finish import CheckFailed
from humming_convert.engine.folder import OURS, LockHeld, Occupied, Workspace, partial_of, workspace
from humming_convert.engine.how import How
from humming_convert.engine.jobs import FileJob
from humming_convert.engine.journal import Journal, differences, fields
from humming_convert.findings import Findings, Refused
from humming_convert.manifest.build import NAME as MANIFEST
from humming_convert.manifest.read import rank_names
from humming_convert.manifest.whole import whole_manifest
from humming_convert.plan.types import Plan

SLACK = 64 << 20  # bytes asked for beside the weights, a reserve for configs, tokenizer and manifest


class NoSpace(Exception):
    """The output does not fit on its disk."""


def already_done(plan: Plan, out: Path, overwrite: bool) -> dict[str, Any] | None:
    """The manifest of a whole `out` of the same fingerprint; None if there is no `out`, or it is to be replaced. Occupied otherwise.

    Whole by names and sizes, which costs no reading; CheckFailed with all that is not. With overwrite the contents count as well."""
    if not out.exists():
        if out.is_symlink():
            raise Occupied(f"{out} is a link to {out.readlink()}, where there is nothing; make that folder, or remove the link")
        return None
    if not out.is_dir():
        raise Occupied(f"{out} is a file; name a folder for the output, which may not be there yet")
    manifest = _manifest(out)
    if manifest.get("fingerprint") == plan.fingerprint:
        wrong = _damage(out)
        if overwrite:
            if wrong.errors or not _same_contents(out, manifest):
                return None
            if partial_of(out).exists():
                _discard_replaced(out)
        elif wrong.errors:
            raise CheckFailed(f"{out} was finished and is damaged", wrong.errors)
        return manifest
    if overwrite:
        return None
    if not manifest:
        raise Occupied(f"{out} exists and is no output of this tool; choose another --out, or --overwrite replaces it")
    old = {"tool": manifest.get("tool", {}).get("version"), **{f"options.{k}": v for k, v in manifest.get("options", {}).items()}}
    new = {k: v for k, v in fields(plan).items() if k in old or k.startswith("options.") or k == "tool"}
    changed = differences(old, new) or ["the source"]
    raise Occupied(f"{out} was made from something else: {'; '.join(changed)}. Choose another --out, or --overwrite replaces it")


def _manifest(folder: Path) -> dict[str, Any]:
    """{} where there is none, or it is none. OSError where it may not be read."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
        document = json.loads((folder / MANIFEST).read_bytes())
        return document if isinstance(document, dict) else {}
    return {}


AGAIN = "--overwrite makes the folder again, `humming-convert verify OUT` reads what is in the other files"


def _damage(out: Path) -> Findings:
    """What a finished folder lacks, by its manifests and the names and sizes of its files."""
    found = Findings()
    try:
        manifest = whole_manifest(out)
        for entry in manifest["files"]:
            name, was = entry["name"], entry["bytes"]
            try:
                nbytes = os.stat(out / name).st_size
            except (FileNotFoundError, NotADirectoryError):
                found.error("file-missing", f"{name} is no longer in {out}", file=name, advice=AGAIN)
                continue
            if nbytes != was:
                found.error("digest-differs", f"{name} has {nbytes:,} bytes, {was:,} were written into {out}", file=name, advice=AGAIN)
        if not found.errors:
            for name in rank_names(manifest):
                whole_manifest(out, name)
    except Refused as refused:
        found.extend(refused.findings)
    return found


def _same_contents(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether the files that are listed are those that were written. Reads all of them."""
    listed = [(folder / f["name"], f) for f in manifest["files"]]
    return all(path.stat().st_size == f["bytes"] and content_digest(path) == f["digest"] for path, f in listed)


def _discard_replaced(out: Path) -> None:
    """A run with --overwrite that died between changing places and removing what was there left it as the partial folder."""
    with contextlib.suppress(LockHeld), workspace(out) as space:
        space.discard()


def is_whole(plan: Plan, partial: Path) -> bool:
    """Whether a partial folder lacks nothing but its publication: a run can die after its last byte and before the rename."""
    manifest = _manifest(partial)
    if manifest.get("fingerprint") != plan.fingerprint:
        return False
    if _damage(partial).errors:
        return False
    listed = {f["name"] for f in manifest["files"]}
    return listed | {MANIFEST} == {p.name for p in partial.iterdir() if not p.name.startswith(OURS)} and _same_contents(partial, manifest)


def prepare(plan: Plan, space: Workspace, jobs: list[FileJob], how: How, state: dict[str, Any]) -> Journal:
    """The journal of this run, begun. jobs: those that this run has to do."""
    part = how.part.label if how.part is not None else ""
    journal = Journal(space.partial, plan, part, state)
    foreign = [p for p in space.partial.iterdir() if not p.name.startswith(OURS)]
    # a run that dies between removing its journal and the rename leaves a manifest of its fingerprint
    ours = journal.found or _manifest(space.partial).get("fingerprint") == plan.fingerprint
    if part and how.fresh:
        journal.done = {}
    elif not part and (how.fresh or (ours and not journal.done and not journal.others)):
        for path in foreign:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        journal.remove()
        journal = Journal(space.partial, plan, part, state)
    elif journal.others:
        raise Occupied(f"{space.partial} is an unfinished run of something else: {'; '.join(journal.others)}. --fresh discards it")
    elif not ours and foreign and not part:
        raise Occupied(f"{space.partial} exists and is not ours ({foreign[0].name}); remove it, or --fresh discards it")
    _check_space(space, jobs)
    journal.begin()
    return journal


def _check_space(space: Workspace, jobs: list[FileJob]) -> None:
    # an interrupted run's files are sized already; what they hold of the disk is not needed again
    needed = SLACK
    for job in jobs:
        held = job.path.stat().st_blocks * 512 if job.path.exists() else 0
        needed += max(job.file.nbytes - held, 0)
    free = shutil.disk_usage(space.partial).free
    if free < needed:
        raise NoSpace(
            f"{space.out.parent} has {free:,} bytes free, {needed:,} are needed: {needed - SLACK:,} for weights, and a reserve of {SLACK:,} "
            "for the files beside them; free some space or choose another --out"
        )


def remove_if_new(partial: Path) -> None:
    """Takes away a partial folder that holds nothing but our lock."""
    if all(p.name.startswith(f"{OURS}lock") for p in partial.iterdir()):
        shutil.rmtree(partial)
