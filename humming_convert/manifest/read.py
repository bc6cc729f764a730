"""Manifests of a folder: the one, or the common part and those of its ranks.

In: a folder.  Out: plain documents with every part that the schema asks for. Whether they are whole is `verify`'s question.
Facts: architecture.md 9.6 (Several ranks).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from humming_convert.manifest.build import FORMAT_VERSION, NAME
from humming_convert.manifest.shape import wrong_with


def readable(folder: Path) -> None:
    """OSError where the folder or its manifest is there and may not be read."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder):
        os.close(os.open(folder / NAME, os.O_RDONLY | os.O_NONBLOCK))


def read_manifest(folder: Path, name: str = NAME) -> dict[str, Any]:
    """OSError if it is not there; ValueError if it is no JSON object, or lacks what a manifest has. Of a newer format nothing is asked."""
    try:
        document = json.loads((folder / name).read_bytes())
    except RecursionError:
        raise ValueError("brackets nested too deep") from None
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    if not is_newer(document) and (wrong := wrong_with(document)) is not None:
        raise ValueError(f"no manifest: {wrong}")
    return document


def is_newer(manifest: Mapping[str, Any]) -> bool:
    """Of a format version that a later release writes, whose parts are not known here."""
    version = manifest.get("format_version")
    return isinstance(version, int) and version > FORMAT_VERSION


def rank_names(manifest: Mapping[str, Any]) -> list[str]:
    """File names of the full manifests that a common part lists; [] where the manifest is the full one itself."""
    return [str(r["file"]) for r in manifest.get("ranks", ())]


def full_manifests(folder: Path, manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One a rank: with layers."""
    return [read_manifest(folder, name) for name in rank_names(manifest)] or [manifest]
