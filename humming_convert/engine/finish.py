"""After the last weight: index, config, card, copied files, manifest; then the folder checks itself.

In: a Plan, the results of its files.  Out: the manifest, with everything on disk.  Facts: architecture.md 6, 9.4, 9.6.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec.json

from humming_convert.checkpoint.reading import content_digest, source_digest
from humming_convert.engine.folder import OURS, fsync_folder
from humming_convert.engine.journal import FileDone
from humming_convert.findings import Findings
from humming_convert.manifest.build import NAME as MANIFEST
from humming_convert.manifest.build import build_manifest, rank_manifest
from humming_convert.manifest.card import model_card
from humming_convert.manifest.config_json import output_config
from humming_convert.manifest.read import full_manifests
from humming_convert.manifest.types import FileEntry
from humming_convert.plan.types import Plan

INDEX = "model.safetensors.index.json"
Versions = tuple[Sequence[str], Sequence[str]]


class CheckFailed(Exception):
    """A proof or the self-check of the folder failed; `findings` names the tensor."""

    def __init__(self, message: str, findings: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


def finish(plan: Plan, partial: Path, done: Mapping[str, FileDone], known: Versions) -> dict[str, Any]:
    """Everything beside the weights. known: of manifest.versions. Raises CheckFailed if a file is not what was written."""
    listed = {t.name: t for x in plan.plain for t in (x.output,)}
    if plan.request.standard:
        listed |= {t.name: t for x in plan.layers for t in x.outputs.values()}
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in listed.values())},
        "weight_map": {name: listed[name].file for name in sorted(listed)},
    }
    _write_text(partial / INDEX, _indented(index, 2, ensure_ascii=True) + "\n")
    _write_text(partial / "config.json", _indented(output_config(plan), 2) + "\n")
    if plan.source.arrivals is not None:
        plan.source.arrivals.fetch_rest()
    for name in plan.source.others:
        shutil.copyfile(plan.source.folder / name, partial / name)
        _sync(partial / name)
    results = {key: r for f in done.values() for key, r in f.layers.items()}
    measures = {name: m for f in done.values() for name, m in f.plain.items()}
    _write_text(partial / "README.md", model_card(plan, results))
    for stray in partial.iterdir():  # what an interrupted run with other file names could have left
        if not (stray.name.startswith(OURS) or stray.name in _expected(plan)):
            shutil.rmtree(stray) if stray.is_dir() and not stray.is_symlink() else stray.unlink()
    entries = []
    for path in sorted(p for p in partial.iterdir() if not p.name.startswith(OURS) and p.name != MANIFEST):
        digest = done[path.name].digest if path.name in done else content_digest(path)
        entries.append(FileEntry(name=path.name, bytes=path.stat().st_size, digest=digest))
    _check_folder(plan, partial)
    sources = _sources(plan)
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


def require_lossless(plan: Plan, folder: Path, manifest: Mapping[str, Any]) -> None:
    """--strict: every step that changed a value is an error. Raises Refused with all of them."""
    if not plan.request.strict:
        return
    full, findings = full_manifests(folder, manifest), Findings()
    advice = "leave out --strict; --dtype and --scale-dtype can avoid casts"
    for layer in (x for m in full for x in m["layers"]):
        for m in layer["lossy"]:
            why = f"{m['step']} changed {m['count']} values of {m['tensor']}, the largest by {m['max_rel']:.2g} of its size"
            findings.error("lossy-step", why, layer=layer["name"], advice=advice, count=m["count"])
    for x in (x for m in full for x in m["dequantized"] if x["max_rel"]):
        why = f"{x['reason']}: rounded to the model dtype, by {x['max_rel']:.2g} at most"
        findings.error("lossy-step", why, layer=x["name"], advice=advice)
    findings.raise_errors()


def _sources(plan: Plan) -> list[FileEntry]:
    sources = [FileEntry(name=f.name, bytes=f.nbytes, digest=source_digest(f)) for f in plan.source.weights]
    read = {f.name for f in plan.source.weights}
    # weight files that no index names were looked at as well, and are told so that nobody looks for them in the output; none of them is fetched
    found = plan.source.folder.glob("*.safetensors") if plan.source.arrivals is None else ()
    strays = sorted(p.name for p in found if p.name not in read and p.is_file())
    for name in ("config.json", *strays):
        path = plan.source.folder / name
        sources.append(FileEntry(name=name, bytes=path.stat().st_size, digest=content_digest(path)))
    return sources


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
    _write_text(path, _indented(manifest, 1, sort_keys=True) + "\n")


def _indented(document: Mapping[str, Any], indent: int, *, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    """json.dumps with an indent, which json itself adds in Python: ten times slower. NaN and infinities, which are no JSON, are left to it."""
    how: dict[str, Any] = {"ensure_ascii": ensure_ascii, "sort_keys": sort_keys}
    try:
        return msgspec.json.format(json.dumps(document, allow_nan=False, **how), indent=indent)
    except ValueError:
        return json.dumps(document, indent=indent, **how)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
