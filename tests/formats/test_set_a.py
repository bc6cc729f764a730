"""GPTQ and AWQ folders packed by the quantizers themselves, against the numbers that went in (shared data, skipped where it is not)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.conftest import shared_folder
from tests.formats.gptq_folders import Reading, read

SHARED = shared_folder()
SET = SHARED / "checkpoints" if SHARED is not None else Path("absent")
REFUSED = {"gptq-packint16": "pack_dtype", "awq-llmawq": "llm-awq", "gptq-v1-asym-zero0": "--gptq-zeros"}
NAMES = sorted(
    p.name.removesuffix(".expected.safetensors") for p in SET.glob("*.expected.safetensors") if p.name.startswith(("gptq-", "awq-"))
)


@pytest.fixture(scope="module")
def expected() -> ModuleType:
    spec = importlib.util.spec_from_file_location("expected_a", SET / "expected_a.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(got: Reading, want: dict[str, dict[str, Any]]) -> None:
    """Codes, scales, zero points and biases of every module, column by column."""
    assert [str(f) for f in got.findings.errors] == []
    assert set(got.layers) == set(want)
    for name, w in want.items():
        layer = got.layers[name]
        np.testing.assert_array_equal(got.codes(name), w["codes"], name)
        g_idx = layer.facts.get("g_idx")
        group = layer.form.scale.k or layer.k
        column = got.context.read(g_idx) if g_idx is not None else np.arange(layer.k) // group
        scales = got.value("weight_scale", name).astype(np.float64)[:, column]
        np.testing.assert_array_equal(scales, w["scales"].astype(np.float64)[:, w["g_idx"]], name)
        assert (layer.form.zero_point == "none") == bool(w["sym"]), name
        if not w["sym"]:
            np.testing.assert_array_equal(got.zeros(name)[:, column], w["zeros"][:, w["g_idx"]], name)
        bias = got.value("bias", name).astype(np.float64) if "bias" in layer.tensors else np.zeros(layer.n)
        np.testing.assert_array_equal(bias, w.get("bias", np.zeros(layer.n)), name)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in REFUSED])
def test_a_real_file_is_read_exactly(name: str, expected: ModuleType) -> None:
    got = read(SET / name)
    compare(got, expected.expected(SET / f"{name}.expected.safetensors"))
    packed = ("qweight", "qzeros", "scales", "g_idx", "workspace", "B", "s")
    assert [p for p in got.passed if p.rpartition(".")[2] in packed] == []


@pytest.mark.parametrize("name", [n for n in NAMES if n not in REFUSED])
def test_a_real_file_is_planned_by_its_headers_alone(name: str) -> None:
    assert read(SET / name, headers_only=True).findings.errors == ()


@pytest.mark.parametrize("name", [n for n in NAMES if n in REFUSED])
def test_a_real_file_that_is_not_read_is_refused_by_name(name: str) -> None:
    errors = read(SET / name).findings.errors
    assert any(REFUSED[name] in str(f) for f in errors)


@pytest.mark.skipif(SHARED is None, reason="no shared data")
@pytest.mark.parametrize("wrap", ["auto", "word"])
def test_zero_points_of_0_in_a_v1_file_of_gptqmodel_come_back_by_the_word_rule(wrap: str, expected: ModuleType) -> None:
    name = "gptq-v1-asym-zero0"
    got = read(SET / name, gptq_zeros="v1", gptq_wrap=wrap)
    compare(got, expected.expected(SET / f"{name}.expected.safetensors"))
    assert sum(f.count or 0 for f in got.findings if f.code == "zeros-wrapped") == 91
