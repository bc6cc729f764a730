"""Layers of a packed folder as callables, on a device that is emulated."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emulation
import numpy as np
import pytest
from fake_device import FakeDevice

import humming_convert as hc
from humming_convert.api import UsageError
from humming_convert.gemm import load, shipped, tasks
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.check import as_float, half_bits
from humming_convert.gemm.device import Device
from humming_convert.gemm.stored import stored_layers
from tests.samples import sample

needs_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    hc.convert(hc.plan(sample("gptq-4bit-v1-sym").write(folder), target="sm90", act="bf16"), out=folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    hc.convert(hc.plan(sample("mxfp4-gpt-oss").write(folder), target="sm90", act="bf16"), out=folder / "out")
    return folder / "out"


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice(tmp_path)
    monkeypatch.setattr(load, "open_device", lambda index: device)
    return device


def weights(folder: Path, name: str, e: int = 0) -> tuple[Any, Any]:
    stored = next(s for s in stored_layers(folder) if s.name == name)
    reference = stored.reference(stored.tensors())
    return reference.weights(e), reference.bias(e)


def rows(m: int, layer: load.LoadedLayer) -> Any:
    return half_bits(np.random.default_rng(1).standard_normal((m, layer.k)), layer.multiplier.layer.half)


@needs_compiler
def test_a_loaded_layer_multiplies_rows_of_any_shape(dense: Path, emulated: FakeDevice) -> None:
    layers = hc.load(dense)
    assert set(layers) == {s.name for s in stored_layers(dense)} and len(layers) == len(list(layers))
    name = next(iter(layers))
    layer, half = layers[name], layers[name].multiplier.layer.half
    assert layers[name] is layer and layer.choice.family.NAME == "cluster_sm90a"
    x = rows(6, layer).reshape(2, 3, layer.k)
    y = layer(x)
    assert y.shape == (2, 3, layer.n) and y.dtype == x.dtype
    w, bias = weights(dense, name)
    want = as_float(x, half).astype(np.float64) @ w.T + bias
    np.testing.assert_allclose(as_float(y, half), want, rtol=2**-8, atol=2**-8 * np.abs(want).max())


@needs_compiler
def test_experts_take_a_task(experts: Path, emulated: FakeDevice) -> None:
    layers = hc.load(experts)
    name = next(n for n in layers if n.endswith("w13"))
    layer = layers[name]
    counts = np.arange(layer.experts) % 3
    x = rows(int(counts.sum()), layer)
    grouped, each = layer(x, tasks.Contiguous(counts)), layer(x, tasks.contiguous(counts))
    np.testing.assert_array_equal(grouped, each)
    with pytest.raises(ValueError, match="task"):
        layer(x)


@needs_compiler
def test_what_does_not_fit_is_named(dense: Path, emulated: FakeDevice) -> None:
    layer = next(iter(hc.load(dense).values()))
    with pytest.raises(ValueError, match="float32"):
        layer(np.zeros((1, layer.k), np.float32))
    with pytest.raises(ValueError, match="columns"):
        layer(np.zeros((1, layer.k + 8), np.uint16))
    with pytest.raises(ValueError, match="no experts"):
        layer(np.zeros((1, layer.k), np.uint16), np.zeros(1, int))
    with pytest.raises(UsageError, match="cuda"):
        hc.load(dense, device="tpu")


def test_kernels_that_the_folder_ships_are_found_without_a_compiler(
    dense: Path, emulated: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_all(cache: KernelCache, wanted: list[Any], jobs: int | None) -> list[Path]:
        paths = [tmp_path / f"{number}.cubin" for number in range(len(wanted))]
        for path, (source, _) in zip(paths, wanted, strict=True):
            path.write_bytes(source.name.encode())
        return paths

    class Compiler:
        version = (13, 0)

    monkeypatch.setenv("HUMMING_CONVERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shipped, "build_all", build_all)
    monkeypatch.setattr(shipped, "compiler", Compiler)
    before = (dense / "humming_manifest.json").read_bytes()
    shipped.build(dense, 90, KernelCache(tmp_path / "cache"))
    launched: list[bytes] = []

    def bound(self: Any, source: Any, *rest: Any) -> Any:
        return lambda: launched.append(self.cache.get(source, "sm_90a").read_bytes())

    monkeypatch.setattr(emulated.__class__, "bound", bound)
    layers = hc.load(dense, check=False)  # these kernels write nothing
    for layer in layers.values():
        for m in (1, 9, 17, 64, 300):
            layer(np.zeros((m, layer.k), np.uint16))
    assert set(launched) == {b"mma_sm80", b"cluster_sm90a"} and len(launched) == 5 * len(layers)
    shipped.clean(dense)
    assert (dense / "humming_manifest.json").read_bytes() == before and json.loads(before)


def test_rows_that_begin_in_the_middle_of_a_copy_are_moved(tmp_path: Path) -> None:
    def array(at: int) -> SimpleNamespace:
        return SimpleNamespace(data=SimpleNamespace(ptr=at), copy=lambda: "moved")

    device = Device(SimpleNamespace(ascontiguousarray=lambda x: x), 90, "none", KernelCache(tmp_path))
    there = array(4096)
    assert device.contiguous(there) is there
    assert device.contiguous(array(4098)) == "moved"
