"""A finished folder's manifest changed in place: written beside, flushed, renamed; its digest made anew.

In: a folder and what changes.  Out: a folder that verifies.  Only what was added after conversion goes through here: the `gpu` sections of
`verify --gpu`, shipped kernels and tunings.  Facts: architecture.md 9.6.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from humming_convert.checkpoint.reading import content_digest
from humming_convert.manifest.build import NAME
from humming_convert.manifest.digests import manifest_digest
from humming_convert.manifest.read import rank_names, read_manifest

Change = Callable[[dict[str, Any]], None]


def _replace(path: Path, data: bytes | memoryview) -> None:
    """Whole or not at all, by one rename."""
    beside = path.with_name(f".{path.name}.new")
    with open(beside, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(beside, path)


def write_manifest(folder: Path, name: str, manifest: dict[str, Any]) -> None:
    """With its digest, by one rename."""
    manifest["manifest_digest"] = manifest_digest(manifest)
    _replace(folder / name, (json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rewrite(folder: Path, change: Change, name: str = NAME) -> None:
    """Applies `change` to a manifest and writes it. The common part of several ranks lists the manifests of ranks, so that it follows."""
    manifest = read_manifest(folder, name)
    change(manifest)
    write_manifest(folder, name, manifest)
    if name != NAME:
        common = read_manifest(folder)
        assert name in rank_names(common), name
        set_file(common, folder / name)
        write_manifest(folder, NAME, common)


def put_file(path: Path, data: bytes | memoryview) -> None:
    """A file of a finished folder, and its entry in the manifest."""
    _replace(path, data)
    rewrite(path.parent, lambda manifest: set_file(manifest, path))


def set_file(manifest: dict[str, Any], path: Path) -> None:
    """The entry of a file as it is now."""
    entry = {"name": path.name, "bytes": path.stat().st_size, "digest": content_digest(path)}
    kept = [f for f in manifest["files"] if f["name"] != path.name]
    manifest["files"] = sorted([*kept, entry], key=lambda f: str(f["name"]))


def drop_file(manifest: dict[str, Any], name: str) -> None:
    manifest["files"] = [f for f in manifest["files"] if f["name"] != name]
