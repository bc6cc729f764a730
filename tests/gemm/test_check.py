"""Checks of packed layers, on a device that is emulated: a right layer passes, a wrong bit is named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import emulation
import numpy as np
import pytest
from cases import Case, Spec, selected
from fake_device import FakeDevice, read_back
from run_all import Subject

from humming_convert.gemm import tasks
from humming_convert.gemm.check import Checker, as_float, random_rows, worst
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.multiplier import Multiplier
from humming_convert.gemm.source import kernel_source
from humming_convert.gemm.tuning import Tuning

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")


def subject(folder: Path, weight: str, act: str, **more: Any) -> Subject:
    about = {
        "sm": 90,
        "ppu": False,
        "param": "BF16",
        "kind": "group",
        "k": 128,
        "rows": 0,
        "dtype": "",
        "zero": "none",
        "second": "none",
        "seed": 1,
    }
    spec = Spec(weight=weight, act=act, **(about | more))
    return Subject(spec, FakeDevice(folder))


@pytest.mark.parametrize(
    ("weight", "act", "more"),
    [
        ("uint4", "16", {"zero": "int", "seed": 4}),
        ("uint4", "fp8", {}),
        ("uint3", "int8", {"seed": 12}),
        ("float4e2m1", "fp8:128", {"k": 32, "dtype": "float8e8m0"}),
        ("uint5", "16", {"zero": "fp", "kind": "channel", "k": 0, "seed": 3}),
        ("float8e4m3", "fp8:static", {"kind": "channel", "k": 0}),
    ],
)
def test_a_right_layer_passes_every_check(tmp_path: Path, weight: str, act: str, more: dict[str, Any]) -> None:
    t = subject(tmp_path, weight, act, **more)
    found = t.checker.check(rows=(1, 33))
    assert found.ok, found.wrong
    layer = t.case.layer
    assert found.weights == layer.n * layer.k * max(1, layer.experts)
    assert max(found.products.values()) < 1e-6


@pytest.mark.parametrize("role", ["weight", "weight_scale", "zero_point", "bias"])
def test_every_planted_bit_that_changes_a_value_is_caught(tmp_path: Path, role: str) -> None:
    t = subject(tmp_path, "uint4", "16", zero="int", seed=4)
    size = t.packed[role].nbytes * 8
    effects = []
    for bit in np.random.default_rng(1).integers(0, size, 6):
        planted = t.flip(role, int(bit))
        effects.append(t.changes(planted))
        assert t.caught(planted) == effects[-1], bit
    assert any(effects)


def test_a_wrong_weight_is_named_with_row_column_and_group(tmp_path: Path) -> None:
    t = subject(tmp_path, "uint4", "16", kind="group", k=64)
    t.weights[0] = t.weights[0].copy()
    t.weights[0][17, 130] += 0.5
    found = t.checker.check(rows=(1,))
    wrong = next(w for w in found.wrong if w.what == "weight")
    assert (wrong.count, wrong.column, wrong.k, wrong.group) == (1, 17, 130, 2)
    assert "n = 17, k = 130, group 2" in str(wrong)


def test_not_a_number_is_never_within_a_tolerance() -> None:
    got, want = np.array([[1.0, np.nan]]), np.array([[1.0, 1.0]])
    wrong = worst("x", got, want, np.full((1, 2), 1e9), lambda i, j: {"expert": 0, "row": i, "column": j, "k": None, "group": None})
    assert wrong is not None and wrong.count == 1 and wrong.column == 1


def test_configurations_are_read_back_from_the_generated_text() -> None:
    for spec in selected()[::40]:
        recipe = spec.recipe()
        assert recipe is not None, spec
        case = Case.of(spec, recipe, 90)
        generated = kernel_source("mma_any", case.layer, case.compute, Tuning.of(1)).generated
        assert read_back(generated, "Layer", Layer) == case.layer
        assert read_back(generated, "Compute", Compute) == case.compute


def test_a_check_knows_every_kernel_that_it_launches(tmp_path: Path) -> None:
    t = subject(tmp_path, "uint4", "fp8", seed=12)
    launched: set[str] = set()
    device: Any = t.checker.device
    launch = device.launch
    device.launch = lambda source, *rest: (launched.add(source.name + source.generated), launch(source, *rest))
    assert isinstance(t.checker, Checker)
    t.checker.check(rows=(1, 33))
    assert launched <= {s.name + s.generated for s in t.checker.sources((1, 33))}


def test_grouped_rows_give_what_each_expert_gives_alone_and_rows_of_nobody_stay_unwritten(tmp_path: Path) -> None:
    t = subject(tmp_path, "uint4", "16", seed=12)  # two experts
    layer, device = t.case.layer, t.checker.device
    multiplier = Multiplier.of(device, layer, t.case.compute, t.packed)
    x = random_rows(8, layer.k, layer.half, np.random.default_rng(7))
    for of_row in (tasks.contiguous([3, 5]), tasks.masked([1, 3], 4)):
        y = device.get(multiplier(device.put(x), of_row))
        for row, e in enumerate(of_row):
            if e < 0:
                assert np.isnan(y[row]).all()
            else:
                want = t.weights[e] @ as_float(x[row], layer.half) + t.bias[e]
                np.testing.assert_allclose(y[row], want, rtol=1e-5, atol=1e-4)
