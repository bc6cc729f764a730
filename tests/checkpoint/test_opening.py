"""Which files are read, which are copied, what a checkpoint is called."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from humming_convert.checkpoint.opening import name_of
from tests.checkpoint.making import ONE, folder, opened, weights

OTHER = weights({"b.weight": ("F16", (2,))})


def read(path: Path) -> list[str]:
    """The names of the weight files read."""
    checkpoint, findings = opened(path)
    assert checkpoint is not None, [*map(str, findings)]
    return [f.name for f in checkpoint.weights]


@pytest.mark.parametrize("left", ["consolidated.safetensors", "consolidated.00.safetensors", "adapter_model.safetensors"])
def test_without_an_index_all_files_but_adapters_and_consolidated_ones_are_read(tmp_path: Path, left: str) -> None:
    folder(tmp_path, {"x-00001-of-00002.safetensors": ONE, "x-00002-of-00002.safetensors": OTHER, left: b"not looked at"}, model=None)
    assert read(tmp_path) == ["x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors"]
    _, findings = opened(tmp_path)
    assert [(f.severity, f.code, f.file) for f in findings] == [("note", "weights-not-read", left)]


def test_a_file_named_model_is_the_only_one(tmp_path: Path) -> None:
    folder(tmp_path, {"old.safetensors": b"not looked at"})
    assert read(tmp_path) == ["model.safetensors"]


def test_the_single_file_of_old_gptq_tools_is_read(tmp_path: Path) -> None:
    folder(tmp_path, {"gptq_model-4bit-128g.safetensors": ONE}, model=None)
    assert read(tmp_path) == ["gptq_model-4bit-128g.safetensors"]


def test_with_an_index_no_other_file_is_looked_at(tmp_path: Path) -> None:
    folder(
        tmp_path,
        {"x.safetensors": ONE, "stray.safetensors": b"not looked at", "model.safetensors": b"nor this"},
        index={"a.weight": "x.safetensors"},
    )
    assert read(tmp_path) == ["x.safetensors"]


def test_files_in_sub_folders_are_not_read_and_not_copied(tmp_path: Path) -> None:
    folder(tmp_path)
    folder(tmp_path / "original")
    (tmp_path / ".cache").mkdir()
    assert read(tmp_path) == ["model.safetensors"]
    _, findings = opened(tmp_path)
    assert [(f.severity, f.code, f.file) for f in findings] == [("note", "folder-not-copied", "original")]


def test_what_is_no_weight_index_or_side_file_is_copied(tmp_path: Path) -> None:
    copied = {".gitattributes", "generation_config.json", "modeling_x.py", "tokenizer.json", "special chars é.txt", "LICENSE"}
    left = {
        "quantize_config.json": '{"bits": 4}',
        "quant_config.json": "{}",
        "hf_quant_config.json": "{}",
        "README.md": "",
        "pytorch_model.bin.index.json": "{}",
    }
    heavy = {f"x{suffix}" for suffix in (".bin", ".PT", ".pth", ".gguf", ".onnx", ".h5", ".msgpack")}
    folder(tmp_path, {**dict.fromkeys(copied | heavy, "x"), **left})
    checkpoint, _ = opened(tmp_path)
    assert checkpoint is not None
    assert set(checkpoint.others) == copied
    assert [*checkpoint.others] == sorted(copied)


def test_a_snapshot_of_the_hub_is_links_and_has_its_repositorys_name(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--some-name"
    (cache / "blobs").mkdir(parents=True)
    snapshot = folder(cache / "snapshots" / "0123abcd", {"tokenizer.json": "{}"})
    for i, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(cache / "blobs" / str(i))
        file.symlink_to(Path("../../blobs") / str(i))
    checkpoint, findings = opened(snapshot)
    assert checkpoint is not None
    assert not len(findings)
    assert (checkpoint.name, checkpoint.revision) == ("org/some-name", "0123abcd")
    assert checkpoint.others == ("tokenizer.json",)


def test_the_caches_folder_itself_points_to_its_snapshots(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    _, findings = opened(tmp_path)
    assert "snapshots" in str(findings.errors[0])


def test_a_name_is_the_last_part_of_the_path_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = folder(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    assert name_of(tmp_path / "link") == ("link", None)
    assert name_of(tmp_path / "x" / ".." / "real") == ("real", None)
    monkeypatch.chdir(real)
    assert name_of(Path()) == ("real", None)
    assert name_of(Path("/"))[0]


@pytest.mark.parametrize("what", ["nothing", "file", "empty"])
def test_what_is_no_folder_is_refused_without_a_crash(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    {"nothing": lambda: None, "file": lambda: path.write_bytes(ONE), "empty": path.mkdir}[what]()
    checkpoint, findings = opened(path)
    assert checkpoint is None
    assert "not-a-checkpoint" in {f.code for f in findings.errors}


def test_the_same_tensors_in_other_files_come_in_the_same_order(tmp_path: Path) -> None:
    names = [f"l.{i}.{leaf}" for i in range(12) for leaf in ("a", "b")]
    folder(tmp_path / "one", model=weights(dict.fromkeys(reversed(names), ("U8", (1,)))))
    shards = {"x.safetensors": names[::2], "y.safetensors": names[1::2]}
    files = {f: weights(dict.fromkeys(part, ("U8", (1,)))) for f, part in shards.items()}
    folder(tmp_path / "two", dict(files), index={n: f for f, part in shards.items() for n in part})
    for which in ("one", "two"):
        checkpoint, _ = opened(tmp_path / which)
        assert checkpoint is not None
        assert [*checkpoint.tensors] == names


def script(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# faults of set A that this room must find, and those that it must not call errors
REFUSED_A = [
    "missing-shard",
    "index-ghost",
    "index-wrong-shard",
    "index-empty",
    "index-number",
    "dotdot-shard",
    "absolute-shard",
    "index-dup-key",
    "truncated",
    "truncated-header",
    "trailing-bytes",
    "zero-length",
    "header-huge",
    "header-zero",
    "header-not-json",
    "header-not-utf8",
    "header-deep",
    "header-dup-key",
    "overlap",
    "offset-hole",
    "offset-reversed",
    "offset-negative",
    "offset-beyond",
    "shape-overflow",
    "shape-negative",
    "dtype-lies",
    "dtype-unknown",
    "config-dup-key",
    "config-not-json",
    "config-nan",
    "config-absent",
    "symlink-loop",
    "symlink-dangling",
    "file-is-dir",
    "file-is-fifo",
    "only-pickle",
]
WARNED_A = ["tensor-twice", "index-lacks"]
OPENED_A = [
    "ok-hub-links",
    "ok-stray-file",
    "ok-odd-scales",
    "ok-extra-keys",
    "ok-empty-tensor",
    "ok-misaligned",
    "ok-header-unpadded",
    "ok-header-reversed",
    "ok-no-sym-key",
    "configs-disagree",
    "config-no-quant",
    "config-bits-string",
]


@pytest.mark.parametrize("fault", [*REFUSED_A, *WARNED_A, *OPENED_A])
def test_faults_of_headers_index_and_files_are_named(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    damage = script(shared / "checkpoints" / "damage.py", monkeypatch)
    base = damage.TABLE[fault][1]
    expect = damage.make(fault, str(shared / "checkpoints" / base), str(tmp_path / fault))
    checkpoint, findings = opened(tmp_path / fault)
    assert (checkpoint is None) == (fault in REFUSED_A)
    about = [f.as_dict() for f in (findings.errors if fault in REFUSED_A else findings)]
    if fault not in OPENED_A:
        assert about
        assert [n for n in expect["names"] if n not in json.dumps(about)] == []


@pytest.mark.parametrize(
    "case", ["shard-missing", "index-wrong-shard", "tensor-twice", "file-truncated", "header-too-long", "header-not-json"]
)
def test_faults_of_the_second_set_are_named(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    damage = script(shared / "checkpoints" / "damage_b.py", monkeypatch)
    damage.make(case, str(tmp_path), str(shared / "checkpoints"))
    checkpoint, findings = opened(tmp_path / case)
    _, _, answer, words = damage.CASES[case]
    assert (checkpoint is None) == (answer == "refused")
    about = json.dumps([f.as_dict() for f in findings if f.severity == ("error" if answer == "refused" else "warning")])
    assert [w for w in words if w not in about] == []
