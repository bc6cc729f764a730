"""MXFP4 folders: gpt-oss, DeepSeek V4, MiMo, ModelOpt and Quark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.standard.numbers import values
from tests.formats.folders import BF16, E4M3, E8M0, MODULE, Array, clean, codes, e4m3_codes, factors, named, pairs, reading_of

EXPERTS = "model.layers.0.mlp.experts"
GPT_OSS = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
SCALE = (np.arange(128).reshape(32, 4) % 9 + 118).astype(np.uint8)


def meant(c: Array, scale: Array) -> Array:
    return values("float4e2m1")[c] * np.repeat(np.exp2(scale.astype(float) - 127), 32, -1)


def gpt_oss(c: Array, scale: Array, bias: Array, name: str) -> dict[str, Array]:
    e, n, k = c.shape
    return {
        f"{EXPERTS}.{name}_blocks": pairs(c).reshape(e, n, k // 32, 16),
        f"{EXPERTS}.{name}_scales": scale,
        f"{EXPERTS}.{name}_bias": bias,
    }


def gpt_oss_tensors(experts: int = 3) -> dict[str, Array]:
    scale = np.stack([SCALE + e for e in range(experts)]).astype(np.uint8)
    both = (gpt_oss(codes(4, 32, 128, experts), scale, factors(experts, 32), name) for name in ("gate_up_proj", "down_proj"))
    return {k: v for one in both for k, v in one.items()}


def test_gpt_oss_projections_are_stacked_layers_that_keep_their_rows(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, GPT_OSS, gpt_oss_tensors(), model_type="gpt_oss", num_local_experts=3))
    up, down = got.layers[f"{EXPERTS}.gate_up_proj"], got.layers[f"{EXPERTS}.down_proj"]
    assert (up.row_order, down.row_order, up.experts, up.family) == ("interleaved", "blocks", 3, "mxfp4")
    assert up.parts == tuple(f"{EXPERTS}.{e}.gate_up_proj" for e in range(3))
    for e in range(3):
        np.testing.assert_array_equal(got.weight(up.name, e), meant(codes(4, 32, 128, 3)[e], SCALE + e))
    np.testing.assert_array_equal(got.value("bias", up.name), factors(3, 32))
    assert got.passed == ()


def test_one_gpt_oss_projection_can_be_read_alone(tmp_path: Path) -> None:
    tensors = {k: v for k, v in gpt_oss_tensors().items() if "gate_up" in k}
    assert list(clean(reading_of(tmp_path, GPT_OSS, tensors)).layers) == [f"{EXPERTS}.gate_up_proj"]


@pytest.mark.parametrize("weight", [np.uint8, np.int8])
@pytest.mark.parametrize(("suffix", "dtype"), [("scale", E8M0), ("weight_scale", np.uint8)])
def test_bytes_are_read_whatever_integer_holds_them(tmp_path: Path, weight: Any, suffix: str, dtype: Any) -> None:
    q = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "activation_scheme": "dynamic"}
    tensors = {"weight": pairs(codes(4)).view(weight), suffix: SCALE.view(dtype)}
    got = clean(reading_of(tmp_path, q, named(tensors)))
    np.testing.assert_array_equal(got.weight(), meant(codes(4), SCALE))
    assert (got.layer.family, got.layer.form.scale.dtype) == ("mxfp4", "float8e8m0")
    declared = got.layer.declared
    assert declared is not None and (declared.number.name, declared.mode, declared.group) == ("float8e4m3", "dynamic_group", 128)


def test_flat_scales_are_taken_by_their_count(tmp_path: Path) -> None:
    q = {"quant_method": "modelopt", "quant_algo": "MXFP4"}
    got = clean(reading_of(tmp_path, q, named({"weight": pairs(codes(4)), "weight_scale": SCALE.reshape(-1, 1)})))
    np.testing.assert_array_equal(got.weight(), meant(codes(4), SCALE))


@pytest.mark.parametrize("codes_zero", [True, False])
def test_a_nan_scale_passes_only_over_zero_codes_and_on_demand(tmp_path: Path, codes_zero: bool) -> None:
    c, scale = codes(4), SCALE.copy()
    scale[3, 1] = 255
    c[3, 32:64] = 8 if codes_zero else c[3, 32:64]
    q, tensors = {"quant_method": "modelopt", "quant_algo": "MXFP4"}, named({"weight": pairs(c), "weight_scale": scale})
    assert reading_of(tmp_path / "a", q, tensors).codes_found == ["e8m0-nan"]
    got = reading_of(tmp_path / "b", q, tensors, e8m0_nan="zero-group")
    assert got.codes_found == ([] if codes_zero else ["e8m0-nan"])
    assert got.value("weight_scale").view(np.uint8)[3, 1] == 0


QUARK = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}


def test_plain_mxfp4_of_quark_is_read_with_a_warning(tmp_path: Path) -> None:
    q = {"quant_method": "quark", "global_quant_config": {"weight": QUARK}, "exclude": ["lm_head"]}
    got = reading_of(tmp_path, q, named({"weight": pairs(codes(4)), "weight_scale": SCALE}))
    assert got.codes_found == [] and got.unverified == ["quark"]
    np.testing.assert_array_equal(got.weight(), meant(codes(4), SCALE))


# ------------------------------------------------------------------ rules
def test_rule_mxfp4_scale_columns(tmp_path: Path) -> None:
    tensors = named({"weight": pairs(codes(4)), "weight_scale": np.full((32, 8), 120, np.uint8)})
    reading_of(tmp_path, {"quant_method": "modelopt", "quant_algo": "MXFP4"}, tensors).finding("mxfp4-scale-columns")


@pytest.mark.parametrize("weight", [{**QUARK, "dtype": "int4"}, {**QUARK, "group_size": 16}, None, [QUARK]])
def test_rule_quark_variant(tmp_path: Path, weight: Any) -> None:
    q = {"quant_method": "quark", "global_quant_config": {"weight": weight}}
    reading_of(tmp_path, q, named({"weight": pairs(codes(4)), "weight_scale": SCALE})).finding("quark-variant")


def test_rule_input_scale_unasked(tmp_path: Path) -> None:
    tensors = {
        "weight": pairs(codes(4)),
        "weight_scale": np.ones((32, 8)).astype(E4M3),
        "weight_scale_2": np.float32(0.5),
        "input_scale": np.float32(0.25),
    }
    got = reading_of(tmp_path, {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, named(tensors))
    got.finding("input-scale-unasked")
    assert "input_scale_2" not in got.layer.tensors and got.passed == ()


@pytest.mark.parametrize("what", ["scales", "bias", "blocks"])
def test_shapes_of_gpt_oss_tensors_follow_from_each_other(tmp_path: Path, what: str) -> None:
    tensors = gpt_oss_tensors()
    name = f"{EXPERTS}.gate_up_proj_{what}"
    tensors[name] = np.ascontiguousarray(tensors[name][..., :-1])
    got = reading_of(tmp_path, GPT_OSS, tensors)
    assert got.finding("tensor-shape").tensor == name
    assert list(got.layers) == [f"{EXPERTS}.down_proj"]


def test_an_unknown_tensor_beside_the_blocks_is_an_error(tmp_path: Path) -> None:
    tensors = {**gpt_oss_tensors(), f"{EXPERTS}.gate_up_proj_smooth": factors(3, 32)}
    assert reading_of(tmp_path, GPT_OSS, tensors).finding("tensor-unknown").tensor == f"{EXPERTS}.gate_up_proj_smooth"


def test_fp8_beside_fp4_is_told_by_the_tensors(tmp_path: Path) -> None:
    q = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    dense = named({"weight": e4m3_codes(128, 128).view(E4M3), "scale": np.full((1, 1), 120, np.uint8).view(E8M0)}, "layers.0.attn.wq_a")
    experts = named({"weight": pairs(codes(4)).view(np.int8), "scale": SCALE.view(E8M0)}, "layers.0.ffn.experts.0.w1")
    got = clean(reading_of(tmp_path, q, {**dense, **experts}))
    assert {x.family for x in got.layers.values()} == {"fp8", "mxfp4"}
    np.testing.assert_array_equal(got.value("weight_scale", "layers.0.attn.wq_a"), np.float32([2.0**-7]))


def test_a_router_beside_the_experts_passes_by(tmp_path: Path) -> None:
    tensors = {**gpt_oss_tensors(), "model.layers.0.mlp.router.weight": np.zeros((3, 128), BF16)}
    assert clean(reading_of(tmp_path, GPT_OSS, tensors)).passed == ("model.layers.0.mlp.router.weight",)


def test_the_name_of_a_module_is_not_needed_to_know_its_kind(tmp_path: Path) -> None:
    got = reading_of(tmp_path, None, named({"weight": pairs(codes(4)), "weight_scale": SCALE}))
    assert got.codes_found == ["no-config"] and got.layers[MODULE].family == "mxfp4"
