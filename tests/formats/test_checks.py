"""Checks of numbers: one broken tensor a rule, at every dtype that the rule knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from humming_convert.checkpoint import open_checkpoint
from humming_convert.checkpoint.tensors import TensorView, read_mapped
from humming_convert.findings import Finding, Findings
from humming_convert.formats import checks
from humming_convert.formats.checks import CHECKS, run_checks
from humming_convert.standard.layer import Check
from tests.formats.folders import E4M3, E5M2, E8M0, Array, folder

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def found(
    path: Path, what: str, x: Array, params: tuple[int, ...] = (), other: Array | None = None, index: tuple[int, ...] = ()
) -> list[Finding]:
    """What one check says of one tensor."""
    tensors = {"layer.x": x, **({} if other is None else {"layer.other": other})}
    checkpoint = open_checkpoint(folder(path, None, tensors), Findings())
    assert checkpoint is not None
    view = checkpoint.tensors["layer.x"]
    findings = Findings()
    check = Check(what=what, view=view, layer="layer", params=params, other=checkpoint.tensors.get("layer.other"), index=index)
    run_checks([check, check], read_mapped(), findings, jobs=2)
    for f in findings:
        assert (f.layer, f.tensor, f.file) == ("layer", "layer.x", "model.safetensors") and f.advice and f.count
    return list(findings)


def one(path: Path, what: str, x: Array, code: str, count: int, params: tuple[int, ...] = (), other: Array | None = None) -> None:
    assert [(f.code, f.count) for f in found(path, what, x, params, other)] == [(code, count)]


def test_every_check_has_a_rule() -> None:
    assert len({r.code for r in checks.RULES}) == len(checks.RULES)
    assert set(CHECKS) == {
        "finite", "positive", "e8m0", "e8m0-zero-group", "e4m3-scale", "e5m2-scale", "e4m3-weight", "e5m2-weight", "scale-not-all-zero",
        "weight-not-all-zero", "int-range", "high-bits", "signed-zero-point", "e8m0-as-number", "zero-padding", "all-ones", "signs",
        "fp4-plausible", "fp8-plausible",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rule_scale_nonfinite(tmp_path: Path, dtype: Any, value: float) -> None:
    x = np.ones(100, dtype)
    assert found(tmp_path / "good", "finite", x) == []
    x[[3, 50]] = value
    one(tmp_path, "finite", x, "scale-nonfinite", 2)


@pytest.mark.parametrize("dtype", FLOATS[1:])  # float16 ends at 65504
@pytest.mark.parametrize("value", [1.1e30, 3e38, -3e38])
def test_rule_scale_huge(tmp_path: Path, dtype: Any, value: float) -> None:
    x = np.full(100, 9e29, dtype)
    assert found(tmp_path / "good", "finite", x) == []
    x[[3, 50]] = value
    one(tmp_path / "bad", "finite", x, "scale-huge", 2)
    x[4] = np.nan
    assert [(f.code, f.count) for f in found(tmp_path / "both", "finite", x)] == [("scale-nonfinite", 1), ("scale-huge", 2)]


GROUPS = np.arange(64, 0x7F, dtype=np.uint8).reshape(3, 21).view(E4M3)  # up to 448, as every writer of NVFP4 makes them


@pytest.mark.parametrize("largest", [1e-3, 0.5, 100.0])
def test_rule_weight_implausible(tmp_path: Path, largest: float) -> None:
    """The global of CT divides, that of ModelOpt multiplies; stored the other way round the weights are those of no model."""
    factor = np.float32([largest / (6 * 448)])
    for divisor, x in ((0, factor), (1, 1 / factor)):
        assert found(tmp_path / f"good{divisor}", "fp4-plausible", x, (divisor,), GROUPS) == []
        one(tmp_path / f"bad{divisor}", "fp4-plausible", 1 / x, "weight-implausible", 1, (divisor,), GROUPS)
    one(tmp_path / "thousand", "fp4-plausible", np.float32(1000 * 0.5 / (6 * 448)).reshape(1), "weight-implausible", 1, (0,), GROUPS)


def test_one_expert_of_implausible_weights_is_seen(tmp_path: Path) -> None:
    stack = np.stack([GROUPS.view(np.uint8)] * 2)
    assert found(tmp_path / "good", "fp4-plausible", np.float32([1e-3, 1e-2]), (0,), stack) == []
    one(tmp_path, "fp4-plausible", np.float32([1e-3, 1e2]), "weight-implausible", 1, (0,), stack)


@pytest.mark.parametrize(("divisor", "factor"), [(0, 0.09), (1, 1 / 0.09), (0, [0.09, 1e-3])])
def test_scales_are_not_read_where_the_largest_that_there_is_would_be_plausible(divisor: int, factor: Any) -> None:
    """256 / (6 * 448) = 0.095."""
    view, other = (TensorView(name=x, file=Path(x), dtype="F32", shape=(1,), offset=0, nbytes=4) for x in ("x", "other"))
    asked = Check(what="fp4-plausible", view=view, layer="layer", params=(divisor,), other=other)

    def read(of: TensorView) -> Array:
        assert of is view
        return np.atleast_1d(np.float32(factor))

    assert CHECKS["fp4-plausible"](asked, read) == []
    with pytest.raises(AssertionError):
        CHECKS["fp4-plausible"](asked, lambda of: read(of) * 2 if not divisor else read(of) / 2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_fp8_weights_beyond_any_model_are_told(tmp_path: Path, dtype: Any) -> None:
    assert found(tmp_path / "good", "fp8-plausible", np.array([[1.0, 0], [-2, 1e-4]], dtype)) == []
    one(tmp_path, "fp8-plausible", np.array([[1.0, -5000]], dtype), "weight-implausible", 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rule_scale_all_negative(tmp_path: Path, dtype: Any) -> None:
    x = np.full(300, -0.5, dtype)
    one(tmp_path, "signs", x, "scale-all-negative", 300)
    x[299] = 0.5
    assert found(tmp_path / "one", "signs", x) == []
    assert found(tmp_path / "few", "signs", x[:15]) == []


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, np.nan, np.inf, 2e30])
def test_rule_scale_not_positive(tmp_path: Path, value: float) -> None:
    assert found(tmp_path / "good", "positive", np.float32([1e-30, 1e29])) == []
    one(tmp_path, "positive", np.float32([1, value]), "scale-not-positive", 1)


@pytest.mark.parametrize("dtype", [np.uint8, E8M0])
def test_rule_e8m0_nan(tmp_path: Path, dtype: Any) -> None:
    x = np.arange(255, dtype=np.uint8)
    assert found(tmp_path / "good", "e8m0", x.view(dtype)) == []
    x[7] = 255
    one(tmp_path, "e8m0", x.view(dtype), "e8m0-nan", 1)


@pytest.mark.parametrize(("bits", "zeros", "wrong"), [(4, 0x80, 0x01), (4, 0x08, 0x10), (8, 0x80, 0x40)])
def test_a_nan_scale_over_zero_codes_passes_that_check(tmp_path: Path, bits: int, zeros: int, wrong: int) -> None:
    codes = np.full((4, 64), zeros, np.uint8)
    x = np.full((4, 4), 120, np.uint8)
    x[1, 2] = 255
    assert found(tmp_path / "good", "e8m0-zero-group", x, (bits,), codes) == []
    codes[1, 40] = wrong
    one(tmp_path, "e8m0-zero-group", x, "e8m0-nan", 1, (bits,), codes)


@pytest.mark.parametrize(("what", "dtype", "nan"), [("e4m3-scale", E4M3, 0x7F), ("e5m2-scale", E5M2, 0x7C)])
def test_8_bit_scales_must_be_numbers(tmp_path: Path, what: str, dtype: Any, nan: int) -> None:
    x = np.full(400, 1, np.uint8)
    assert found(tmp_path / "good", what, x.view(dtype)) == []
    x[9] = nan
    one(tmp_path, what, x.view(dtype), "scale-nonfinite", 1)


def test_rule_scale_signed(tmp_path: Path) -> None:
    x = np.full(400, 1, np.uint8)
    x[9] = 0x81
    one(tmp_path, "e4m3-scale", x.view(E4M3), "scale-signed", 1)


@pytest.mark.parametrize(("what", "dtype", "bad"), [("e4m3-weight", E4M3, (0x7F, 0xFF)), ("e5m2-weight", E5M2, (0x7C, 0x7D, 0xFE))])
def test_rule_weight_nan(tmp_path: Path, what: str, dtype: Any, bad: tuple[int, ...]) -> None:
    x = np.array([0, 0x7B, 0x80, 0xFB] * 10, np.uint8)
    assert found(tmp_path / "good", what, x.view(dtype)) == []
    one(tmp_path, what, np.concatenate([x, np.array(bad, np.uint8)]).view(dtype), "weight-nan", len(bad))


@pytest.mark.parametrize("x", [np.zeros(10, np.float16), np.float32([0, -0.0])])
def test_rule_scale_all_zero(tmp_path: Path, x: Array) -> None:
    one(tmp_path, "scale-not-all-zero", x, "scale-all-zero", 1)
    x[1] = 1e-7
    assert found(tmp_path / "good", "scale-not-all-zero", x) == []


@pytest.mark.parametrize("what", ["e4m3-weight", "weight-not-all-zero"])
def test_rule_weight_all_zero(tmp_path: Path, what: str) -> None:
    (f,) = found(tmp_path, what, np.array([0, 0x80], np.uint8).view(E4M3))
    assert (f.code, f.severity) == ("weight-all-zero", "warning")


def test_rule_code_range(tmp_path: Path) -> None:
    x = np.arange(-8, 8, dtype=np.int8)
    assert found(tmp_path / "good", "int-range", x, (4,)) == []
    one(tmp_path, "int-range", np.append(x, np.int8([8, -9])), "code-range", 2, (4,))


def test_rule_high_bits(tmp_path: Path) -> None:
    x = np.full(8, (1 << 30) - 1, np.int32)
    assert found(tmp_path / "good", "high-bits", x, (3,)) == []
    x[2] = -1
    one(tmp_path, "high-bits", x, "high-bits", 1, (3,))
    assert found(tmp_path / "full words", "high-bits", x, (4,)) == []


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.float32])
def test_rule_zero_point_unsigned(tmp_path: Path, dtype: Any) -> None:
    x = np.arange(-8, 8).astype(dtype)
    assert found(tmp_path / "good", "signed-zero-point", x, (4,)) == []
    one(tmp_path, "signed-zero-point", (x + 8).astype(dtype), "zero-point-unsigned", 8, (4,))


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_zero_points_are_whole_numbers(tmp_path: Path, value: float) -> None:
    one(tmp_path, "signed-zero-point", np.float32([1, value]), "zero-point-unsigned", 1, (4,))


def test_rule_e8m0_as_number(tmp_path: Path) -> None:
    one(tmp_path, "e8m0-as-number", np.float32([[118, 121], [119, 120]]), "e8m0-as-number", 4)
    assert found(tmp_path / "good", "e8m0-as-number", np.float32([118, 121.5])) == []
    assert found(tmp_path / "small", "e8m0-as-number", np.float32([2, 1])) == []


def test_rule_scale_zero_groups(tmp_path: Path) -> None:
    x = np.full(400, 5, np.uint8)
    x[:4] = 0
    assert found(tmp_path / "few", "e4m3-scale", x.view(E4M3)) == []
    x[4] = 0
    (f,) = found(tmp_path, "e4m3-scale", x.view(E4M3))
    assert (f.code, f.severity, f.count) == ("scale-zero-groups", "warning", 5)


def test_rule_padding_not_zero(tmp_path: Path) -> None:
    x = np.zeros((4, 8), np.float16)
    x[:, :5] = 1
    assert found(tmp_path / "good", "zero-padding", x, (5,)) == []
    x[2, 6] = 1
    (f,) = found(tmp_path, "zero-padding", x, (5,))
    assert (f.code, f.severity) == ("padding-not-zero", "warning")


def test_rule_pre_quant_scale(tmp_path: Path) -> None:
    one(tmp_path, "all-ones", np.float32([1, 1, 0.5]), "pre-quant-scale", 1)
    assert found(tmp_path / "good", "all-ones", np.ones(3, np.float32)) == []


def test_a_tensor_longer_than_a_block_is_gone_through_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "BLOCK", 7)
    x = np.ones(100, np.float32)
    x[[0, 6, 7, 99]] = np.nan
    one(tmp_path, "finite", x, "scale-nonfinite", 4)


def test_one_expert_of_a_stacked_tensor_can_be_looked_at(tmp_path: Path) -> None:
    x = np.ones((3, 4), np.float32)
    x[1, 2] = np.nan
    assert found(tmp_path / "0", "finite", x, index=(0,)) == []
    assert len(found(tmp_path / "1", "finite", x, index=(1,))) == 1
