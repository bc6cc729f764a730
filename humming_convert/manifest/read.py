"""Manifests of a folder: the one, or the common part and those of its ranks.

In: a folder.  Out: plain documents. Whether they are whole is `verify`'s question.
Facts: architecture.md 9.6 (Several ranks).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from humming_convert.manifest.build import NAME


def read_manifest(folder: Path, name: str = NAME) -> dict[str, Any]:
    """OSError if it is not there; ValueError if it is no JSON object."""
    document = json.loads((folder / name).read_bytes())
    if not isinstance(document, dict):
        raise ValueError(f"{name} is no JSON object")
    return document


def rank_names(manifest: Mapping[str, Any]) -> list[str]:
    """File names of the full manifests that a common part lists; [] where the manifest is the full one itself."""
    return [str(r["file"]) for r in manifest.get("ranks", ())]


def full_manifests(folder: Path, manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One a rank: with layers."""
    return [read_manifest(folder, name) for name in rank_names(manifest)] or [manifest]
