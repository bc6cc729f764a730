"""Tensors of a folder as its manifest describes them: files that lie inside it, headers that say the same.

In: a folder and a layer of its manifest.  Out: TensorViews by role, or Refused with every difference. Contents are `verify`'s question.
Facts: architecture.md 9.6 (file entries are plain names inside the folder), runtimes.md 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from humming_convert.checkpoint.header import Header, read_header
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding, Findings, Refused

FETCH = "fetch the folder again, or convert again"
NO_NAMES = ("", ".", "..")


def file_inside(folder: Path, name: str) -> Path:
    """The file that a manifest names. Refused if it is no plain name, or a link to somewhere else.

    A snapshot of the Hub's cache is made of links to `blobs` beside `snapshots`; these are followed.
    """
    findings = Findings()
    if "/" in name or "\\" in name or "\0" in name or name in NO_NAMES:
        findings.error("name-outside", f"the manifest names the file {name!r}, which is no plain name inside the folder", advice=FETCH)
        raise Refused(findings)
    path = folder / name
    real = path.resolve()
    if path.is_symlink() and real.parent not in (folder.resolve(), *_blobs(folder)):
        findings.error("name-outside", f"{name} is a link to {real}, outside the folder", file=name, advice="put the file itself there")
        raise Refused(findings)
    return path


def no_file(path: Path) -> str:
    """What stands in the place of a file that can be read: `is missing`, `is a folder, not a file`."""
    if path.is_dir():
        return "is a folder, not a file"
    if path.exists():
        return "is no regular file"
    return "is a link to nothing" if path.is_symlink() else "is missing"


def names_outside(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    """Of all files that a manifest names, those that `file_inside` refuses: nothing of such a folder is to be read."""
    named = [f["name"] for f in manifest["files"]] + [r["file"] for r in manifest.get("ranks", ())]
    named += [t["file"] for layer in manifest["layers"] for t in layer["tensors"].values()]
    for name in dict.fromkeys(named):
        try:
            file_inside(folder, name)
        except Refused as refused:
            yield from refused.findings


def _blobs(folder: Path) -> tuple[Path, ...]:
    """Where the files of a snapshot of the Hub's cache lie: models--org--name/{snapshots/<commit>, blobs}."""
    at = folder.resolve()
    return (at.parent.parent / "blobs",) if at.parent.name == "snapshots" else ()


@dataclass
class StoredTensors:
    """Of one folder. Each file's header is read once."""

    folder: Path
    _headers: dict[str, Header] = field(default_factory=dict)

    def header(self, name: str) -> Header:
        """Refused if the file cannot be read or is no safetensors file."""
        if name not in self._headers:
            path = file_inside(self.folder, name)
            if not path.is_file():
                missing = Finding(severity="error", code="file-missing", message=f"{name} {no_file(path)}", file=name, advice=FETCH)
                raise Refused([missing])
            header = read_header(path)
            if isinstance(header, list):
                raise Refused(header)
            self._headers[name] = header
        return self._headers[name]

    def views(self, entry: Mapping[str, Any]) -> dict[str, TensorView]:
        """Role -> place of each tensor of a layer. Refused with every tensor that is missing or of another type or shape."""
        findings = Findings()
        out: dict[str, TensorView] = {}
        for role, said in entry["tensors"].items():
            where = {"layer": entry["name"], "tensor": said["name"], "file": said["file"], "advice": FETCH}
            view = self.header(said["file"]).tensors.get(said["name"])
            if view is None:
                findings.error("tensor-missing", f"{said['file']} has no tensor {said['name']}", **where)
            elif view.dtype != said["dtype"]:
                findings.error(
                    "tensor-dtype", f"{said['name']} is {view.dtype} in {said['file']}, {said['dtype']} in the manifest", **where
                )
            elif list(view.shape) != list(said["shape"]):
                was, is_ = list(said["shape"]), list(view.shape)
                findings.error("tensor-shape", f"{said['name']} is {is_} in {said['file']}, {was} in the manifest", **where)
            else:
                out[role] = view
        findings.raise_errors()
        return out
