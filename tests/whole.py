"""The contract of an output folder, in one place: `assert_whole(folder)` is used by every test that makes one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
from safetensors import safe_open
from xxhash import xxh3_128

from humming_convert.manifest.digests import manifest_digest
from humming_convert.manifest.schema import load_schema

MANIFEST, INDEX = "humming_manifest.json", "model.safetensors.index.json"
SERIES = re.compile(r"(model|model-common|model-packed-tp\d+of\d+(?:-ep\d+of\d+)?)-(\d{5})-of-(\d{5})\.safetensors")


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text())  # type: ignore[no-any-return]


def ranks_of(folder: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The full manifests: of each rank where there are several."""
    out = []
    for rank in manifest.get("ranks", ()):
        full = json.loads((folder / rank["file"]).read_text())
        jsonschema.validate(full, load_schema("manifest"))
        assert full["manifest_digest"] == manifest_digest(full)
        assert {f["name"]: f for f in full["files"]}.items() <= {f["name"]: f for f in manifest["files"]}.items()
        assert {k: full["parallel"][k] for k in ("tp_rank", "ep_rank")} == {k: rank[k] for k in ("tp_rank", "ep_rank")}
        assert (full["fingerprint"], full["format"]) == (manifest["fingerprint"], manifest["format"])
        out.append(full)
    return out or [manifest]


def assert_whole(folder: Path) -> dict[str, Any]:
    """Asserts that a folder is a finished output (architecture.md 9.4, 9.6); returns its manifest."""
    manifest = manifest_of(folder)
    jsonschema.validate(manifest, load_schema("manifest"))
    assert manifest["manifest_digest"] == manifest_digest(manifest)
    assert not folder.with_name(folder.name + ".partial").exists()
    listed = {f["name"]: f for f in manifest["files"]}
    assert set(listed) | {MANIFEST} == {p.name for p in folder.iterdir()}
    for name, entry in listed.items():
        raw = (folder / name).read_bytes()
        assert (entry["bytes"], entry["digest"]) == (len(raw), "xxh3:" + xxh3_128(raw).hexdigest()), name
    series: dict[str, list[tuple[int, int]]] = {}
    stored: dict[tuple[str, str], tuple[str, list[int]]] = {}  # (file, tensor): tensors of several ranks have the same name
    for path in folder.glob("*.safetensors"):
        m = SERIES.fullmatch(path.name)
        assert m is not None, path.name
        series.setdefault(m[1], []).append((int(m[2]), int(m[3])))
        with safe_open(path, "numpy") as f:
            for key in f.keys():  # noqa: SIM118 this object is no mapping
                part = f.get_slice(key)
                stored[path.name, key] = (part.get_dtype(), list(part.get_shape()))
    for numbers in series.values():
        assert sorted(numbers) == [(i + 1, len(numbers)) for i in range(len(numbers))]
    layered: set[tuple[str, str]] = set()
    for full in ranks_of(folder, manifest):
        for layer in full["layers"]:
            for t in layer["tensors"].values():
                assert stored[t["file"], t["name"]] == (t["dtype"], t["shape"]), t["name"]
                assert (t["file"], t["name"]) not in layered, t["name"]
                layered.add((t["file"], t["name"]))
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    packed = manifest["format"] == "humming-packed"
    assert {(file, name) for name, file in index.items()} == (set(stored) - layered if packed else set(stored))
    return manifest
