"""Joining the parts of a split run: all are there, then the folder is finished and published, the same bytes as one run makes.

In: `<out>.partial` with the journals of its parts and a record of what they make.  Out: a Result.  Facts: architecture.md 6, 9.1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.reading import reader_of
from humming_convert.engine.finish import CheckFailed, finish, require_lossless
from humming_convert.engine.folder import OURS, Occupied, partial_of, workspace
from humming_convert.engine.how import Part
from humming_convert.engine.jobs import jobs_of, share
from humming_convert.engine.journal import Journal
from humming_convert.engine.places import check_apart_from
from humming_convert.engine.prepare import already_done, is_whole
from humming_convert.engine.result import Result, layers_of
from humming_convert.findings import Findings, Refused
from humming_convert.manifest.read import read_manifest
from humming_convert.manifest.versions import versions
from humming_convert.plan.build import make_plan
from humming_convert.plan.fingerprint import options_of, request_of
from humming_convert.plan.types import Plan

RECORD = OURS + "split"


class PartsMissing(Exception):
    """A part of a split run is not finished yet."""


class Record(Struct, frozen=True):
    """What the parts make: the source's folder (or Hub id and commit), the options that shape bytes, the number of parts."""

    source: str
    options: Mapping[str, Any]
    parts: int


def recorded(out: Path) -> Record | None:
    """The record that the parts left; None if there is none."""
    try:
        found = json.loads((partial_of(out) / RECORD).read_text())
        return Record(str(found["source"]), found["options"], int(found["parts"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def write_record(plan: Plan, partial: Path, part: Part) -> None:
    """Every part writes the same."""
    text = json.dumps({"source": plan.source.origin, "options": options_of(plan.request), "parts": part.of}, sort_keys=True)
    fresh = partial / f"{RECORD}-{part.label}.new"
    fresh.write_text(text)
    os.replace(fresh, partial / RECORD)


def merge_parts(out: Path, record: Record, source: Checkpoint, findings: Findings, *, overwrite: bool) -> Result:
    """Finishes and publishes. findings: of opening the source.

    PartsMissing with what is missing; Occupied if the source is not the one the parts were made from."""
    check_apart_from(source, out, replaced=overwrite)
    read = reader_of(source)
    plan = make_plan(source, request_of(record.options), read, findings)
    if (manifest := already_done(plan, out, overwrite)) is not None:
        require_lossless(plan, out, manifest)
        return Result(out=out, plan=plan, manifest=manifest, layers=layers_of(out, manifest), already_done=True)
    with workspace(out) as space:
        if is_whole(plan, space.partial):
            require_lossless(plan, space.partial, read_manifest(space.partial))
            space.publish(overwrite=overwrite)
            manifest = read_manifest(out)
            return Result(out=out, plan=plan, manifest=manifest, layers=layers_of(out, manifest))
        journal = Journal(space.partial, plan)
        if journal.others:
            raise Occupied(f"{space.partial} holds parts of something else: {'; '.join(journal.others)}")
        _check_parts(plan, space.partial, journal, record.parts)
        try:
            manifest = finish(plan, space.partial, journal.done, versions(plan, read))
            require_lossless(plan, space.partial, manifest)
        except (CheckFailed, Refused):
            space.discard()
            raise
        space.publish(overwrite=overwrite)
    return Result(out=out, plan=plan, manifest=manifest, layers=layers_of(out, manifest))


def _check_parts(plan: Plan, partial: Path, journal: Journal, parts: int) -> None:
    """Each part proved its bytes and brought them to the disk before it noted them; what is left to see is that none is missing."""
    missing = []
    for number in range(1, parts + 1):
        jobs = share(jobs_of(plan, partial), number, parts)
        whole = [j for j in jobs if (d := journal.done.get(j.file.name)) is not None and d.upto == j.file.nbytes and j.path.exists()]
        if len(whole) < len(jobs):
            missing.append(f"{number}/{parts} ({len(jobs) - len(whole)} of {len(jobs)} files missing)")
    if missing:
        said = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise PartsMissing(f"not finished: --split {said}; run these parts, or convert without --split to write what is missing")
