"""What a folder says of itself: manifests, ranks, names that vLLM asks for, files inside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from codes import refused

from humming_convert.manifest.inside import StoredTensors, file_inside
from humming_convert.serve.folder import PackedFolder
from tests.serve.conftest import EXPERTS, Packed

Changed = Callable[..., Path]


def test_a_folder_of_one_rank_is_its_own_rank(packed: Packed) -> None:
    folder = PackedFolder.open(packed())
    assert (folder.tp_size, folder.ep_size, dict(folder.rank_files)) == (1, 1, {(0, 0): "humming_manifest.json"})
    groups = folder.rank(0, 0).groups
    assert list(groups) == [
        f"model.layers.0.{x}" for x in ("mlp.down_proj", "mlp.gate_up_proj", "self_attn.o_proj", "self_attn.qkv_proj")
    ] or (set(groups) == {f"model.layers.0.{x}" for x in ("mlp.down_proj", "mlp.gate_up_proj", "self_attn.o_proj", "self_attn.qkv_proj")})


def test_each_rank_has_its_own_manifest(packed: Packed) -> None:
    folder = PackedFolder.open(packed(tp=2))
    assert folder.rank_files == {(0, 0): "humming_manifest-tp1of2.json", (1, 0): "humming_manifest-tp2of2.json"}
    first, second = folder.rank(0, 0), folder.rank(1, 0)
    assert first.manifest["parallel"]["tp_rank"] == 0 and second.manifest["parallel"]["tp_rank"] == 1
    files = {t["file"] for rank in (first, second) for entry in rank.layers for t in entry["tensors"].values()}
    assert len(files) == 2


def test_w13_and_w2_are_one_module_of_vllm(packed: Packed) -> None:
    groups = PackedFolder.open(packed(EXPERTS)).rank(0, 0).groups
    experts = groups["model.layers.0.mlp.experts"]
    assert experts.experts and set(experts.entries) == {"w13", "w2"}
    assert not groups["model.layers.0.self_attn.qkv_proj"].experts


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (lambda m: m.update(format="humming-standard"), "not-packed"),
        (lambda m: m.update(format="something"), "manifest-damaged"),
        (lambda m: m["layers"][0].pop("tensors"), "manifest-damaged"),
        (lambda m: m.update(format_version=2), "manifest-newer"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(changed: Changed, how: Callable[[dict[str, Any]], None], code: str) -> None:
    folder = changed(how)
    assert refused(lambda: PackedFolder.open(folder)).code == code


def test_a_changed_manifest_is_refused(changed: Changed) -> None:
    folder = changed(lambda m: m.update(dtype="float16"), digest=False)
    assert refused(lambda: PackedFolder.open(folder)).code == "manifest-damaged"


def test_a_changed_manifest_of_a_rank_is_refused(packed: Packed, tmp_path: Path) -> None:
    shutil.copytree(packed(tp=2), tmp_path / "out")
    path = tmp_path / "out" / "humming_manifest-tp2of2.json"
    path.write_text(path.read_text().replace('"bfloat16"', '"float16"'))
    folder = PackedFolder.open(tmp_path / "out")
    folder.rank(0, 0)
    assert refused(lambda: folder.rank(1, 0)).code == "manifest-damaged"


def test_no_manifest_and_one_that_is_no_json_are_refused(tmp_path: Path) -> None:
    assert refused(lambda: PackedFolder.open(tmp_path)).code == "no-manifest"
    for text in ("{", "[]", "{}", "[" * 100_000, "\xff"):
        (tmp_path / "humming_manifest.json").write_text(text, encoding="latin-1")
        assert refused(lambda: PackedFolder.open(tmp_path)).code == "manifest-damaged"


def test_layers_that_vllm_would_not_find_are_refused(changed: Changed) -> None:
    folder = PackedFolder.open(changed(lambda m: m["layers"][0].update(vllm=None)))
    assert refused(lambda: folder.rank(0, 0).groups).code == "layer-apart"


def test_two_layers_for_one_module_are_refused(changed: Changed) -> None:
    folder = PackedFolder.open(changed(lambda m: m["layers"].append(m["layers"][0])))
    assert refused(lambda: folder.rank(0, 0).groups).code == "layer-apart"


def test_one_half_of_the_experts_is_refused(changed: Changed) -> None:
    def without_w13(m: dict[str, Any]) -> None:
        m["layers"] = [x for x in m["layers"] if not x["name"].endswith("w13")]

    folder = PackedFolder.open(changed(without_w13, EXPERTS))
    assert refused(lambda: folder.rank(0, 0).groups).code == "layer-incomplete"


# ------------------------------------------------------------------ files
@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b", "a\\b", "", ".", "..", "x\0y"])
def test_only_plain_names_are_files_of_a_folder(tmp_path: Path, name: str) -> None:
    assert refused(lambda: file_inside(tmp_path, name)).code == "name-outside"


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_text("x")
    (folder / "real").write_text("y")
    os.symlink(elsewhere, folder / "outside")
    os.symlink("real", folder / "inside")
    assert refused(lambda: file_inside(folder, "outside")).code == "name-outside"
    assert file_inside(folder, "inside").read_text() == "y"


def test_a_snapshot_of_the_hub_cache_may_link_to_its_blobs_and_to_nothing_else(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "digest").write_text("x")
    (tmp_path / "secret").write_text("z")
    os.symlink("../../blobs/digest", snapshot / "model.safetensors")
    os.symlink("../../../secret", snapshot / "other.safetensors")
    assert file_inside(snapshot, "model.safetensors").read_text() == "x"
    assert refused(lambda: file_inside(snapshot, "other.safetensors")).code == "name-outside"


@pytest.mark.parametrize(
    ("change", "code"),
    [({"name": "gone"}, "tensor-missing"), ({"dtype": "U8"}, "tensor-dtype"), ({"shape": [1, 2]}, "tensor-shape")],
)
def test_a_tensor_has_to_be_what_the_manifest_says(packed: Packed, change: dict[str, Any], code: str) -> None:
    folder = packed()
    entry = json.loads((folder / "humming_manifest.json").read_text())["layers"][0]
    tensors = StoredTensors(folder)
    assert set(tensors.views(entry)) == set(entry["tensors"])
    entry["tensors"]["weight"] |= change
    finding = refused(lambda: tensors.views(entry))
    assert finding.code == code and finding.layer == entry["name"]
