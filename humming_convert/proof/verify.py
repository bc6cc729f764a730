"""Verification of a finished folder: every byte against the manifest, and with the source every code against it.

In: an output folder, perhaps its source.  Out: findings; nothing is changed. Facts: architecture.md 9.1, 9.3, 9.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_128

from humming_convert.checkpoint import open_checkpoint
from humming_convert.checkpoint.header import read_header
from humming_convert.checkpoint.reading import reader
from humming_convert.checkpoint.rules import FILE_UNREADABLE
from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Finding, Findings, Refused
from humming_convert.manifest.inside import FETCH, names_outside, no_file
from humming_convert.manifest.read import rank_names
from humming_convert.manifest.tuning import is_tuning
from humming_convert.manifest.tuning import read as read_tuning
from humming_convert.manifest.whole import whole_manifest
from humming_convert.plan.build import make_plan
from humming_convert.plan.fingerprint import options_of, request_of
from humming_convert.plan.types import Plan
from humming_convert.proof.failed import ProofFailed
from humming_convert.proof.roundtrip import prove_layer
from humming_convert.standard.expr import Context
from humming_convert.standard.lossy import Meter

MANIFEST = "humming_manifest.json"
KERNELS = "humming_kernels-"  # how files of shipped kernels begin
BLOCK = 1 << 20  # bytes a read
ONE = {"files": "file", "tensors": "tensor", "layers proven": "layer proven", "plain tensors": "plain tensor"}  # of `checked`


@dataclass(slots=True)
class Verification:
    """What was found. `checked`: counts by what was looked at.

    findings: of this check.  manifests: (number of the rank, its full manifest), those that could be read.
    recorded: (number of the rank, layer) -> what an earlier `verify --gpu` wrote into the manifest, where it was wrong.
    unread: files of which one finding says all: weight files of which no tensor is known, as they are missing or their header is wrong, and
    whatever the system does not let us read.
    """

    folder: Path
    findings: Findings = field(default_factory=Findings)
    checked: dict[str, int] = field(default_factory=dict)
    manifests: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    recorded: dict[tuple[int, str], Finding] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    @property
    def every(self) -> tuple[Finding, ...]:
        return *self.findings, *self.recorded.values()

    @property
    def failed(self) -> bool:
        return any(f.severity == "error" for f in self.every)

    def multiplied(self, layers: Iterable[tuple[int, str]]) -> None:
        """Layers that were multiplied on a GPU again: what was recorded of them is of no matter any more."""
        for layer in layers:
            self.recorded.pop(layer, None)

    def unreadable(self, name: str, error: OSError) -> None:
        if name not in self.unread:
            self.unread.add(name)
            why = f"{name} cannot be read: {error.strerror or error}"
            self.findings.error(FILE_UNREADABLE.code, why, file=name, advice="check its permissions, and the disk")

    def count(self, what: str, number: int = 1) -> None:
        self.checked[what] = self.checked.get(what, 0) + number

    def document(self) -> dict[str, Any]:
        return {
            "status": "failed" if self.failed else "ok",
            "out": str(self.folder),
            "checked": self.checked,
            "findings": [f.as_dict() for f in self.every],
        }

    def summary(self) -> str:
        counts = ", ".join(f"{n} {ONE.get(what, what) if n == 1 else what}" for what, n in self.checked.items())
        return f"{self.folder}: {'FAILED' if self.failed else 'ok'} ({counts or 'nothing could be checked'})"


def verify_folder(folder: Path, source: Path | None) -> Verification:
    """Checks a folder. Damage, and what a GPU was recorded to find wrong, become error findings; Refused only if the source itself cannot be read."""
    found = Verification(folder)
    manifest = _manifest(found)
    if manifest is None:
        return found
    read = reader("mmap")
    views = _headers(found, manifest)
    names = rank_names(manifest)
    found.manifests = [(i, m) for i, name in enumerate(names) if (m := _manifest(found, name)) is not None] if names else [(0, manifest)]
    for rank, full in found.manifests:
        _layers(found, full, views)
        _recorded(found, full, rank)
    _files(found, manifest)
    if source is not None and not found.findings.errors:
        _against_source(found, manifest, views, source, read)
    return found


def _manifest(found: Verification, name: str = MANIFEST) -> dict[str, Any] | None:
    """The manifest of the folder, or of one rank."""
    try:
        manifest = whole_manifest(found.folder, name)
    except Refused as refused:
        found.findings.extend(refused.findings)
        return None
    outside = list(names_outside(found.folder, manifest))
    found.findings.extend(outside)
    return None if outside else manifest


Views = Mapping[tuple[str, str], TensorView]
"""(file, tensor) -> its place: tensors of several ranks have the same name."""


def _headers(found: Verification, manifest: Mapping[str, Any]) -> Views:
    """Every tensor in the folder's weight files that can be read."""
    views: dict[tuple[str, str], TensorView] = {}
    for entry in manifest["files"]:
        if not entry["name"].endswith(".safetensors"):
            continue
        if not (found.folder / entry["name"]).is_file():
            found.unread.add(entry["name"])  # `_files` says so
            continue
        header = read_header(found.folder / entry["name"])
        if isinstance(header, list):
            found.unread.add(entry["name"])
            found.findings.extend(header)
        else:
            views |= {(entry["name"], name): view for name, view in header.tensors.items()}
    return views


def _layers(found: Verification, manifest: Mapping[str, Any], views: Views) -> None:
    """Each tensor of a layer: there, as described, of the digest. Of those in a file that was not read nothing is known."""
    for layer in manifest["layers"]:
        for role, t in layer["tensors"].items():
            if t["file"] in found.unread:
                continue
            view = views.get((t["file"], t["name"]))
            where = {"layer": layer["name"], "tensor": t["name"], "file": t["file"]}
            if view is None:
                found.findings.error("tensor-missing", f"{role} {t['name']} is not in the files", advice=FETCH, **where)
                continue
            if (view.dtype, list(view.shape)) != (t["dtype"], t["shape"]):
                have = f"{view.dtype}{list(view.shape)}"
                found.findings.error("tensor-differs", f"{t['name']} is {have}, the manifest says {t['dtype']}{t['shape']}", **where)
                continue
            try:
                digest = digest_of_span(view)
            except OSError as error:
                found.unreadable(t["file"], error)
                continue
            if digest != t["digest"]:
                found.findings.error("digest-differs", f"the bytes of {t['name']} are not those that were written", advice=FETCH, **where)
            found.count("tensors")


def _recorded(found: Verification, manifest: Mapping[str, Any], rank: int) -> None:
    """Layers that an earlier `verify --gpu` found wrong."""
    for layer in manifest["layers"]:
        gpu = layer.get("gpu")
        if gpu is not None and not gpu["ok"]:
            weight = layer["tensors"]["weight"]
            found.recorded[rank, layer["name"]] = Finding(
                severity="error",
                code="gpu-wrong-result",
                layer=layer["name"],
                tensor=weight["name"],
                file=weight["file"],
                message=f"an earlier `verify --gpu` found it wrong on {gpu['device']} ({gpu['kernels']}): {'; '.join(gpu['wrong'])}",
                advice="`verify --gpu` checks it again and records the answer; if it stays, convert again, or report it",
            )


def digest_of_span(view: TensorView) -> str:
    """XXH3-128 of a tensor's bytes in its file."""
    digest, left = xxh3_128(), view.nbytes
    with open(view.file, "rb") as f:
        f.seek(view.offset)
        while left:
            block = f.read(min(BLOCK, left))
            if not block:
                break
            digest.update(block)
            left -= len(block)
    return "xxh3:" + digest.hexdigest()


def _files(found: Verification, manifest: Mapping[str, Any]) -> None:
    listed = {f["name"] for f in manifest["files"]} | {MANIFEST}
    for path in sorted(found.folder.iterdir()):
        if path.name not in listed:
            found.findings.error(
                "file-unknown", f"{path.name} is not in the manifest", file=path.name, advice="remove it, or convert again"
            )
    closed = {f.file for f in found.findings if f.code == FILE_UNREADABLE.code}  # nothing of them was looked at
    for entry in manifest["files"]:
        path = found.folder / entry["name"]
        if not path.is_file():
            found.findings.error("file-missing", f"{entry['name']} {no_file(path)}", file=entry["name"], advice=_remedy(entry["name"]))
            continue
        if entry["name"] in found.unread:  # why, its own finding says
            if entry["name"] not in closed:
                found.count("files")
            continue
        digest = xxh3_128()
        try:
            with open(path, "rb") as f:
                while block := f.read(BLOCK):
                    digest.update(block)
        except OSError as error:
            found.unreadable(entry["name"], error)
            continue
        if path.stat().st_size != entry["bytes"] or "xxh3:" + digest.hexdigest() != entry["digest"]:
            found.findings.error(
                "digest-differs", f"{entry['name']} is not the file that was written", file=entry["name"], advice=_remedy(entry["name"])
            )
        if is_tuning(path.name):
            _tuning(found, path)
        found.count("files")


def _remedy(name: str) -> str:
    """What brings a file back as it was."""
    if name.startswith(KERNELS):
        return "`humming-convert kernels build OUT` makes it again, `kernels clean OUT` does without it"
    if is_tuning(name):
        return "`humming-convert tune OUT` makes it again"
    return FETCH


def _tuning(found: Verification, path: Path) -> None:
    """The form of a tuning file; whether its tunings are of use here, loading says."""
    try:
        read_tuning(path)
    except ValueError as error:
        found.findings.error("tuning-damaged", str(error), file=path.name, advice="`humming-convert tune OUT` makes it again")


def _against_source(found: Verification, manifest: Mapping[str, Any], views: Views, source: Path, read: Read) -> None:
    """The round trip: a plan is made from the source with the manifest's options, and every layer is proven against it."""
    findings = Findings()
    checkpoint = open_checkpoint(source, findings)
    if checkpoint is None:
        raise Refused(findings)
    try:
        request = request_of(manifest["options"])
    except (KeyError, TypeError):
        found.findings.error("options-unknown", "the manifest's options are of another version of this tool", file=MANIFEST)
        return
    plan = make_plan(checkpoint, request, read, findings)
    if plan.fingerprint != manifest["fingerprint"]:
        differs = [k for k, v in options_of(plan.request).items() if manifest["options"].get(k) != v] or [
            "the source or the tool's version"
        ]
        found.findings.error("fingerprint-differs", f"this folder was made from something else: {', '.join(differs)}", file=MANIFEST)
        return
    _prove(found, plan, views, read)


def _prove(found: Verification, plan: Plan, views: Views, read: Read) -> None:
    for planned in plan.layers:
        context = Context(read=read, meter=Meter())
        written = {role: views[t.file, t.name] for role, t in planned.outputs.items()}
        try:
            prove_layer(planned, written, context)
        except ProofFailed as failed:
            found.findings.add(failed.finding)
        found.count("layers proven")
    for plain in plan.plain:
        view = views.get((plain.output.file, plain.output.name))
        want = plain.expr.evaluate(Context(read=read, meter=Meter()))
        if view is None or not np.array_equal(_raw(read(view)), _raw(want)):
            name = plain.output.name
            found.findings.add(
                Finding(
                    severity="error",
                    code="passthrough-differs",
                    tensor=name,
                    message=f"{name} is not what the source says",
                    file=plain.output.file,
                )
            )
        found.count("plain tensors")


def _raw(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
