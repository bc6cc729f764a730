"""Dtypes of the model: every rounding has a name and a measure."""

from __future__ import annotations

import numpy as np
import pytest

from humming_convert.findings import Findings
from humming_convert.model.conform import ModelDtype, check_range, conform
from humming_convert.model.unify import rows_of_scale_2
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.rewrite import to_rows
from tests.model.making import Memory


def steps(memory: Memory, layer: StandardLayer) -> set[tuple[str, str]]:
    """(step, tensor) of what evaluating the layer's small tensors rounds."""
    context = memory.context()
    for role, expr in layer.tensors.items():
        if role != "weight":
            expr.evaluate(context)
    return set(context.meter.found)


def test_scales_and_bias_are_cast_to_the_model_dtype_and_measured() -> None:
    memory = Memory()
    layer = conform(memory.layer("x", dtype="F32", bias=True), "F16")
    assert layer.form.scale.dtype == "float16" and layer.tensors["weight_scale"].dtype == "F16" and layer.tensors["bias"].dtype == "F16"
    assert steps(memory, layer) <= {("scale-cast", "weight_scale"), ("scale-cast", "bias")}
    assert ("scale-cast", "weight_scale") in steps(memory, layer)


def test_rows_that_were_blocks_are_cast_under_their_own_name() -> None:
    memory = Memory()
    layer = conform(to_rows(memory.layer("x", kind="float8e4m3", scale="block")), "BF16")
    assert steps(memory, layer) == {("block-to-rows", "weight_scale")}


def test_secondary_scales_of_rows_are_cast_under_their_own_name() -> None:
    memory = Memory()
    layer = memory.layer("x", kind="float4e2m1", group=16, dtype="F8_E4M3", scale_2=float(np.float32(0.1)))
    assert steps(memory, conform(rows_of_scale_2(layer), "BF16")) == {("scale2-cast", "weight_scale_2")}
    assert steps(memory, conform(layer, "BF16")) == set()


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0"])
def test_float8_scales_stay(dtype: str) -> None:
    layer = Memory().layer("x", kind="float4e2m1", group=32, dtype=dtype)
    assert conform(layer, "BF16") == layer


@pytest.mark.parametrize("scale", ["tensor", "block"])
def test_tensor_and_block_scales_stay_float32(scale: str) -> None:
    layer = Memory().layer("x", kind="float8e4m3", scale=scale)
    assert conform(layer, "F16") == layer


def test_scale_dtype_source_keeps_16_bit_types_and_still_casts_32_bit_ones() -> None:
    memory = Memory()
    assert conform(memory.layer("x", dtype="F16"), "BF16", "source").form.scale.dtype == "float16"
    assert conform(memory.layer("y", dtype="F32"), "BF16", "source").form.scale.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("value", "dtype", "error"), [(1e-12, "F16", True), (1e-12, "BF16", False), (1e-44, "BF16", True), (1e-4, "F16", False)]
)
def test_rule_scale_vanished(value: float, dtype: ModelDtype, error: bool) -> None:
    """All scales of a layer lost: its weights would come out as zero."""
    memory = Memory()
    layer = memory.layer("x", dtype="F32")
    memory.arrays["x.weight_scale"][...] = value
    findings = Findings()
    check_range(conform(layer, dtype), memory.read, findings)
    assert [f.code for f in findings.errors] == ["scale-vanished"] * error
