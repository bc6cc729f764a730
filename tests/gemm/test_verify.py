"""`verify --gpu` over a finished folder, on a device that is emulated; and what it and shipped kernels do to the manifest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import emulation
import jsonschema
import pytest
from fake_device import FakeDevice
from needs import needs_nvrtc

import humming_convert as hc
from humming_convert.findings import Refused
from humming_convert.gemm import shipped
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.rewrite import rewrite
from humming_convert.gemm.stored import stored_layers
from humming_convert.gemm.verify import chosen, verify_gpu
from humming_convert.manifest.schema import load_schema
from tests.samples import sample

CHOSEN = {"cluster_sm90a"}
needs_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample("gptq-4bit-v1-sym").write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def converted(model: Path) -> Path:
    out = model.parent / "converted"
    hc.convert(hc.plan(model, target="sm90", act="fp8"), out=out)
    return out


@pytest.fixture
def folder(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "out"))


def manifest(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "humming_manifest.json").read_text())
    return document


def flip(folder: Path, layer: str, bit: int) -> None:
    """One bit of a layer's weight in its file."""
    view = next(s for s in stored_layers(folder) if s.name == layer).views["weight"]
    data = bytearray(Path(view.file).read_bytes())
    data[view.offset + bit // 8] ^= 1 << bit % 8
    Path(view.file).write_bytes(data)


@needs_compiler
@needs_nvrtc
def test_results_stand_in_a_manifest_that_still_verifies(folder: Path, tmp_path: Path) -> None:
    found = verify_gpu(folder, FakeDevice(tmp_path), sample=0.5)
    assert not found.failed and len(found.results) == 2 and found.left_out == 2
    written = manifest(folder)
    jsonschema.validate(written, load_schema("manifest"))
    sections = [layer["gpu"] for layer in written["layers"] if "gpu" in layer]
    assert len(sections) == 2 and all(s["ok"] and s["weights"] > 0 and s["sm"] == 90 for s in sections)
    assert not hc.verify(folder).failed


@needs_compiler
@needs_nvrtc
def test_a_flipped_bit_is_named_with_its_layer_when_the_source_is_given(folder: Path, model: Path, tmp_path: Path) -> None:
    name = manifest(folder)["layers"][0]["name"]
    flip(folder, name, 4321)
    before = (folder / "humming_manifest.json").read_bytes()
    found = verify_gpu(folder, FakeDevice(tmp_path), source=model, record=False)
    assert {f.layer for f in found.findings.errors} == {name}
    weight = next(f for f in found.findings.errors if f.message.startswith("weight"))
    assert weight.code == "gpu-wrong-result" and "n = " in weight.message and "group" in weight.message
    assert (folder / "humming_manifest.json").read_bytes() == before


def test_a_sample_is_spread_over_the_model() -> None:
    layers: list[Any] = list(range(100))
    assert chosen(layers, 0.1) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert chosen(layers, 0.001) == [0]
    assert chosen(layers, None) == layers


def test_shipped_kernels_are_listed_verified_and_removed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_all(cache: KernelCache, wanted: list[Any], jobs: int | None) -> list[Path]:
        paths = []
        for number, (source, _) in enumerate(wanted):
            paths.append(tmp_path / f"{number}.cubin")
            paths[-1].write_bytes(f"{number} {source.name}".encode())
        return paths

    class Compiler:
        version = (13, 0)

    monkeypatch.setattr(shipped, "build_all", build_all)
    monkeypatch.setattr(shipped, "compiler", Compiler)
    before = (folder / "humming_manifest.json").read_bytes()
    built = shipped.build(folder, 90, KernelCache(tmp_path / "cache"))
    assert built.layers == 4 and not hc.verify(folder).failed
    first = built.path.read_bytes()
    assert shipped.build(folder, 90, KernelCache(tmp_path / "cache")).path.read_bytes() == first
    files = shipped.unpack(built.path, KernelCache(tmp_path / "cache"))
    assert len(files) == built.kernels and {p.read_bytes().split()[1] for p in files.values()} == {
        b"cluster_sm90a",
        b"quantize_any",
    }
    said = shipped.index_of(built.path)["layers"]
    assert {entry["family"] for entry in said.values()} == CHOSEN
    assert shipped.clean(folder) == 1
    assert (folder / "humming_manifest.json").read_bytes() == before


def test_damaged_shipped_kernels_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "humming_kernels-sm_90a.zip").write_bytes(b"PK but no archive")
    with pytest.raises(Refused, match="kernels-damaged"):
        shipped.unpack(folder / "humming_kernels-sm_90a.zip", KernelCache(tmp_path))


def test_a_folder_in_the_standard_form_has_no_kernels(model: Path, tmp_path: Path) -> None:
    hc.convert(hc.plan(model, standard=True), out=tmp_path / "out")
    with pytest.raises(Refused, match="standard form"):
        list(stored_layers(tmp_path / "out"))


def test_several_ranks_are_all_read_and_their_manifests_stay_consistent(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hc.convert(hc.plan(sample("mxfp4-gpt-oss").write(tmp_path), target="sm90", act="bf16", ep=2), out=out)
    ranks = {s.rank for s in stored_layers(out)}
    assert ranks == {0, 1}
    name = manifest(out)["ranks"][1]["file"]
    found = {"device": "a GPU", "kernels": "mma_any", "ok": True, "weights": 1, "max_error": 0.0, "wrong": []}
    rewrite(out, lambda m: m["layers"][0].update(gpu=found), name)
    assert not hc.verify(out).failed


@needs_compiler
@needs_nvrtc
def test_the_kernels_that_loading_would_choose_are_checked_when_asked_for(folder: Path, tmp_path: Path) -> None:
    found = verify_gpu(folder, FakeDevice(tmp_path), sample=0.25, kernels="chosen")
    assert not found.failed and {r["kernels"] for r in found.results.values()} == CHOSEN
    assert {layer["gpu"]["kernels"] for layer in manifest(folder)["layers"] if "gpu" in layer} == CHOSEN
