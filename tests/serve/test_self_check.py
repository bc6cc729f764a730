"""The product that is compared when a layer is loaded: on a device that is emulated, with planted errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulation
import numpy as np
import pytest
from codes import refused
from fake_device import FakeDevice

import humming_convert as hc
from humming_convert.api import UsageError
from humming_convert.checkpoint.header import read_header
from humming_convert.gemm import load as core
from humming_convert.gemm.check import sum_tolerance
from humming_convert.gemm.families import named
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.stored import StoredLayer, stored_layers
from humming_convert.serve.self_check import ROWS, SAMPLED, probe, sampled
from tests.samples import sample
from tests.serve.conftest import DENSE, EXPERTS, Packed

needs_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice(tmp_path)
    monkeypatch.setattr(core, "open_device", lambda index: device)
    return device


def stored_of(name: str, folder: Path, **options: Any) -> list[StoredLayer]:
    hc.convert(hc.plan(sample(name).write(folder), **options), out=folder / "out")
    return list(stored_layers(folder / "out"))


@pytest.mark.parametrize(
    ("name", "target", "act"),
    [
        ("gptq-4bit-v1-sym", "sm90", "bf16"),
        ("gptq-4bit-v1-sym", "ppu", "bf16"),
        ("gptq-4bit-v2-asym", "sm80", "int8"),
        ("gptq-3bit-v1-asym", "sm90", "bf16"),
        ("awq-4bit-gemm", "sm75", "fp16"),
        ("ct-int8", "sm90", "int8"),
        ("ct-fp8-block", "sm90", "fp8"),
        ("ct-fp8-channel", "sm80", "bf16"),
        ("ct-nvfp4", "sm120", "bf16"),
        ("ct-mxfp4", "sm90", "fp8"),
        ("ct-mxfp4", "sm120", "mxfp8"),
        ("fp8-modelopt", "sm100", "bf16"),
        ("humming-uint4", "sm100", "bf16"),
        ("mxfp4-gpt-oss", "sm90", "fp8"),
        ("mxfp4-gpt-oss", "sm90", "bf16"),
    ],
)
def test_a_few_rows_by_address_are_rows_of_the_whole_matrix(tmp_path: Path, name: str, target: str, act: str) -> None:
    for stored in stored_of(name, tmp_path, target=target, act=act):
        reference = stored.reference(stored.tensors())
        e = max(0, stored.config["num_experts"] - 1)
        rows = sampled(reference.n, np.random.default_rng(0))
        np.testing.assert_array_equal(reference.rows(e, rows), reference.weights(e)[rows])


def test_a_probe_has_whole_rows_and_rows_of_one_stretch_each() -> None:
    x = probe(256, "f16", np.random.default_rng(0)).view(np.float16)
    assert x.shape == (ROWS, 256) and (np.count_nonzero(x, axis=1)[:2] > 250).all()
    assert (np.count_nonzero(x[2:], axis=0) <= 1).all() and np.count_nonzero(x[2:].any(axis=0)) > 250


def test_the_first_and_the_last_row_are_always_sampled() -> None:
    rows = sampled(1000, np.random.default_rng(0))
    assert rows[0] == 0 and rows[-1] == 999 and len(set(rows.tolist())) == SAMPLED
    assert sampled(5, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]


@needs_compiler
@pytest.mark.parametrize(("name", "act"), [(DENSE, "bf16"), (DENSE, "fp8"), ("ct-int8", "int8"), (EXPERTS, "bf16")])
def test_right_layers_pass_and_each_configuration_is_checked_once(packed: Packed, emulated: FakeDevice, name: str, act: str) -> None:
    layers = hc.load(packed(name, act=act))
    for layer in list(layers):
        layers[layer]
    assert 0 < len(layers.checked) <= len(layers)


def flip(folder: Path, entry: Any, role: str, byte: int, bit: int) -> None:
    """One bit of a tensor in its file."""
    said = entry["tensors"][role]
    header = read_header(folder / said["file"])
    assert not isinstance(header, list)
    at = header.tensors[said["name"]].offset + byte
    with (folder / said["file"]).open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0] ^ 1 << bit
        file.seek(at)
        file.write(bytes([value]))


@needs_compiler
@pytest.mark.parametrize(
    "wrong",
    [
        lambda layer, y: y * 1.05,
        lambda layer, y: np.roll(y, 1, axis=1),
        lambda layer, y: y * 0,
        lambda layer, y: np.full_like(y, np.nan),
        lambda layer, y: np.where(np.arange(y.shape[1]) == y.shape[1] - 1, 0, y),
    ],
)
def test_a_backend_that_multiplies_otherwise_is_refused(packed: Packed, emulated: FakeDevice, wrong: Callable[[Any, Any], Any]) -> None:
    layers = hc.load(packed())
    right = layers.layers.product
    layers.layers.product = lambda name, bits, experts: wrong(name, right(name, bits, experts))  # type: ignore[method-assign]
    finding = refused(lambda: layers[next(iter(layers))])
    assert finding.code == "self-check" and "worst at" in finding.message


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
def test_a_tolerance_is_that_of_the_kernels_that_make_so_many_rows(
    packed: Packed, emulated: FakeDevice, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """16 rows of the self-check, and more or fewer, for which another family may multiply."""
    launched: list[str] = []

    def bound(source: KernelSource, *rest: Any) -> Callable[[], None]:
        launched.append(source.name)
        return lambda: None

    monkeypatch.setattr(emulated, "bound", bound)
    layers = hc.load(packed(name), check=False).layers
    seen: dict[str, set[float]] = {}
    for layer, stored in layers.stored.items():
        experts = stored.layer.experts
        multiplier = layers[layer].multiplier
        for rows in (1, ROWS, 32, 33, 32 * max(1, experts), 32 * max(1, experts) + 1):
            launched.clear()
            layers.product(layer, np.zeros((rows, stored.layer.k), np.uint16), np.arange(rows) % experts if experts else None)
            found, (kernel,) = layers.tolerance(layer, rows), launched
            assert found.size == sum_tolerance(named(kernel), multiplier.layer, multiplier.compute), (layer, rows, kernel)
            seen.setdefault(kernel, set()).add(found.size)
    assert len(seen) == 2 and len(set.union(*seen.values())) == 2, seen


@needs_compiler
def test_the_check_can_be_left_out(packed: Packed, emulated: FakeDevice) -> None:
    layers = hc.load(packed(), check=False)
    layers.layers.product = lambda name, bits, experts: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    assert layers[next(iter(layers))] is not None and not layers.checked


def test_what_cannot_be_asked_for_is_named(packed: Packed) -> None:
    with pytest.raises(UsageError, match="backend 'cublas': one of core, humming"):
        hc.load(packed(), backend="cublas")
    assert refused(lambda: hc.load(packed(), rank=1)).code == "no-rank"
    assert refused(lambda: hc.load(packed(), rank=-1)).code == "no-rank"


def test_a_rank_is_loaded_where_the_files_of_others_are_not(packed: Packed, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(packed(tp=2), tmp_path / "out")
    next((tmp_path / "out").glob("model-packed-tp1of2-*")).unlink()
    assert {s.rank for s in stored_layers(tmp_path / "out", 1)} == {1}
    assert refused(lambda: list(stored_layers(tmp_path / "out", 0))).code == "file-missing"


def test_the_library_that_is_not_installed_is_asked_for_by_its_version(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    from humming_convert.serve import library

    monkeypatch.setattr(library, "installed_version", lambda: None)
    finding = refused(lambda: hc.load(packed(), backend="humming"))
    assert finding.code == "humming-missing" and "humming-kernels==0.1.20" in str(finding)
    monkeypatch.setattr(library, "installed_version", lambda: "0.0.9")
    assert refused(lambda: hc.load(packed(), backend="humming")).code == "humming-version"
