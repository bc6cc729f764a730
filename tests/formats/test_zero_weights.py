"""Layers of zeros are warned of in every family, layers with one other weight are not; adapters are refused in every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.findings import Finding
from tests.fuzz.folders import bases, write
from tests.fuzz.mutations import apply

MODULE = "model.layers.0.mlp.up_proj"
# family -> steps after which every weight of MODULE is zero, and the tensor of its codes
ZEROED: dict[str, tuple[str, list[tuple[str, list[Any]]]]] = {
    "gptq-4bit-v1-sym": ("qweight", [("fill", [f"{MODULE}.qweight", "88888888", 0, 1])]),
    "gptq-8bit-channel": ("qweight", [("fill", [f"{MODULE}.qweight", "80", 0, 1])]),
    "ct-int4-sym": ("weight_packed", [("fill", [f"{MODULE}.weight_packed", "88888888", 0, 1])]),
    "ct-int8": ("weight", [("fill", [f"{MODULE}.weight", "00", 0, 1])]),
    "ct-fp8-channel": ("weight", [("fill", [f"{MODULE}.weight", "80", 0, 1])]),
    "ct-nvfp4": ("weight_packed", [("fill", [f"{MODULE}.weight_packed", "80", 0, 1])]),
    "ct-mxfp4": ("weight_packed", [("fill", [f"{MODULE}.weight_packed", "08", 0, 1])]),
    "awq-4bit-gemm": ("qweight", [("fill", [f"{MODULE}.{s}", "33333333", 0, 1]) for s in ("qweight", "qzeros")]),
    "humming-uint4": ("weight", [("fill", [f"{MODULE}.{s}", "55555555", 0, 1]) for s in ("weight", "zero_point")]),
    "gptq-4bit-v2-asym": ("qweight", [("fill", [f"{MODULE}.{s}", "66666666", 0, 1]) for s in ("qweight", "qzeros")]),
}


def findings_of(path: Path, base: str, steps: list[tuple[str, list[Any]]]) -> tuple[Finding, ...]:
    folder = bases()[f"demo:{base}"].copy()
    for step in steps:
        apply(folder, step)
    write(folder, path)
    try:
        return api.plan(path, standard=True).findings
    except api.Refused as refused:
        return refused.findings


@pytest.mark.parametrize("base", list(ZEROED))
def test_a_layer_of_zeros_is_warned_of_by_name(tmp_path: Path, base: str) -> None:
    leaf, steps = ZEROED[base]
    (found,) = [f for f in findings_of(tmp_path / "in", base, steps) if f.code == "weight-all-zero"]
    assert (found.severity, found.layer, found.tensor, found.file) == ("warning", MODULE, f"{MODULE}.{leaf}", "model.safetensors")
    assert found.advice


@pytest.mark.parametrize("base", list(ZEROED))
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999999])
def test_one_other_weight_is_enough(tmp_path: Path, base: str, place: float) -> None:
    leaf, steps = ZEROED[base]
    other = [*steps, ("poke", [f"{MODULE}.{leaf}", place, "41"])]
    assert not [f for f in findings_of(tmp_path / "in", base, other) if f.code == "weight-all-zero"]


def test_an_expert_of_zeros_in_a_stack_is_named_by_its_number(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    found = findings_of(tmp_path / "in", "mxfp4-gpt-oss", [("fill", [name, "00", 1 / 3, 2 / 3])])
    (one,) = [f for f in found if f.code == "weight-all-zero"]
    assert one.tensor == name and "expert 1" in one.message


@pytest.mark.parametrize("base", ["ct-int4-sym", "nvfp4-modelopt", "humming-uint4", "fp8-block-ragged", "mxfp4-gpt-oss", "awq-4bit-gemm"])
def test_an_adapter_inside_is_refused_in_every_family(tmp_path: Path, base: str) -> None:
    found = findings_of(tmp_path / "in", base, [("add", [f"{MODULE}.lora_A.weight", "F16", [8, 192], "00"])])
    (one,) = [f for f in found if f.code == "adapter-inside"]
    assert one.severity == "error" and one.tensor == f"{MODULE}.lora_A.weight"


@pytest.mark.parametrize("value", ["0000c07f", "0000807f"], ids=["nan", "infinite"])
def test_scales_of_the_cache_are_finite_though_they_are_only_copied(tmp_path: Path, value: str) -> None:
    name = "model.layers.0.self_attn.k_proj.k_scale"
    (one,) = [f for f in findings_of(tmp_path / "in", "ct-int4-sym", [("add", [name, "F32", [1], value])]) if f.severity == "error"]
    assert (one.code, one.tensor) == ("scale-nonfinite", name)
