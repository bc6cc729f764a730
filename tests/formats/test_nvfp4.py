"""ModelOpt folders: algorithms, both config files, exclusion, and NVFP4 layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.standard.numbers import values
from tests.formats.folders import E4M3, MODULE, Array, clean, codes, e4m3_codes, factors, named, pairs, reading_of

SCALE = (np.arange(256).reshape(32, 8) % 100 + 20).astype(np.uint8)
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
STATIC4 = ("static_tensor_dynamic_group", 16)


def nvfp4(**more: Any) -> dict[str, Any]:
    base = {"weight": pairs(codes(4)), "weight_scale": SCALE.view(E4M3), "weight_scale_2": np.float32(0.03), "input_scale": np.float32(0.7)}
    return {**base, **more}


def fp8(scale: Array | None = None, **more: Any) -> dict[str, Any]:
    return {"weight": e4m3_codes().view(E4M3), "weight_scale": np.float32(0.03) if scale is None else scale, **more}


def hf(algo: str, **more: Any) -> dict[str, Any]:
    return {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": {"quant_algo": algo, **more}}


def test_the_second_scale_multiplies(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, NVFP4, named(nvfp4())))
    scale = np.repeat(values("float8e4m3")[SCALE], 16, 1)
    np.testing.assert_array_equal(got.weight(), values("float4e2m1")[codes(4)] * scale * float(np.float32(0.03)))
    np.testing.assert_array_equal(got.value("input_scale_2"), np.float32([0.7]))
    assert (got.layer.family, got.layer.form.scale_2) == ("nvfp4", "tensor")
    assert got.layer.declared is not None and (got.layer.declared.mode, got.layer.declared.group) == STATIC4


def test_scales_may_be_stored_as_plain_bytes(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, NVFP4, named(nvfp4(weight_scale=SCALE))))
    np.testing.assert_array_equal(got.value("weight_scale").view(np.uint8), SCALE)


def test_the_side_file_is_enough(tmp_path: Path) -> None:
    side = {"hf_quant_config.json": hf("NVFP4", exclude_modules=["lm_head"])}
    assert clean(reading_of(tmp_path, None, named(nvfp4()), side=side)).layer.family == "nvfp4"


@pytest.mark.parametrize(
    ("algo", "tensors", "family", "kind", "declared"),
    [
        ("W4A16_NVFP4", nvfp4(input_scale=None), "nvfp4", "group", None),
        ("W4A8_NVFP4_FP8", nvfp4(), "nvfp4", "group", ("static_tensor", 0)),
        ("FP8", fp8(input_scale=np.float32(1)), "fp8", "tensor", ("static_tensor", 0)),
        ("fp8_per_channel_per_token", fp8(factors(32, dtype=np.float32)), "fp8", "channel", ("dynamic_token", 0)),
        ("FP8_PB_WO", fp8(factors(1, 1, 1, 1, dtype=np.float32)), "fp8", "tensor", None),
        ("FP8_PB", {"weight": e4m3_codes(256, 128).view(E4M3), "weight_scale_inv": factors(2, 1)}, "fp8", "block", ("dynamic_group", 128)),
        ("MXFP8", fp8(np.full((32, 4), 120, np.uint8)), "mxfp8", "group", ("dynamic_group", 32)),
    ],
)
def test_each_algorithm_is_read(tmp_path: Path, algo: str, tensors: Any, family: str, kind: str, declared: Any) -> None:
    got = clean(reading_of(tmp_path, {"quant_method": "modelopt", "quant_algo": algo}, named(tensors)))
    assert got.unverified == ([] if algo in ("W4A16_NVFP4", "FP8", "MXFP8") else [f"quant_algo {algo.upper()}"])
    assert (got.layer.family, got.layer.form.scale.kind) == (family, kind)
    form = got.layer.declared
    assert declared == (None if form is None else (form.mode, form.group))


def test_a_fp8_input_scale_beside_fp4_weights_is_one_for_the_tensor(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, {**NVFP4, "quant_algo": "W4A8_NVFP4_FP8"}, named(nvfp4())))
    assert "input_scale" in got.layer.tensors and "input_scale_2" not in got.layer.tensors


def test_groups_without_activations_mean_weights_only(tmp_path: Path) -> None:
    q = {**NVFP4, "config_groups": {"group_0": {"targets": ["Linear"], "weights": {}, "input_activations": None}}}
    assert clean(reading_of(tmp_path, q, named(nvfp4(input_scale=None)))).layer.declared is None


def test_mixed_checkpoints_list_their_layers(tmp_path: Path) -> None:
    listed = {
        MODULE: {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.0.mlp.experts.0.gate": {"quant_algo": "FP8"},
        "model.layers.1": {"quant_algo": "MXFP8"},
    }
    tensors = {
        **named(nvfp4()),
        **named(fp8(input_scale=np.float32(1)), "model.layers.0.mlp.experts.0.gate"),
        **named(fp8(np.full((32, 4), 120, np.uint8)), "model.layers.1.mlp.up_proj"),
    }
    q = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    got = clean(reading_of(tmp_path, q, tensors, side={"hf_quant_config.json": hf("MIXED_PRECISION", quantized_layers=listed)}))
    assert {n: x.family for n, x in got.layers.items()} == {
        MODULE: "nvfp4",
        "model.layers.0.mlp.experts.0.gate": "fp8",
        "model.layers.1.mlp.up_proj": "mxfp8",
    }


def test_a_pre_quant_scale_of_ones_is_dropped(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, NVFP4, named(nvfp4(pre_quant_scale=np.ones(128, np.float32)))))
    assert got.passed == ()


def test_stacked_experts_have_a_second_scale_each(tmp_path: Path) -> None:
    tensors = {
        "weight": pairs(codes(4, 32, 128, 2)),
        "weight_scale": np.stack([SCALE, SCALE]).view(E4M3),
        "weight_scale_2": np.float32([0.03, 0.05]),
        "input_scale": np.float32([1, 2]),
    }
    got = clean(reading_of(tmp_path, NVFP4, named(tensors, "model.layers.0.mlp.experts.down_proj")))
    np.testing.assert_array_equal(got.value("weight_scale_2"), np.float32([[0.03], [0.05]]))
    assert got.layer.parts == ("model.layers.0.mlp.experts.0.down_proj", "model.layers.0.mlp.experts.1.down_proj")


# ------------------------------------------------------------------ rules
def test_rule_algo_unknown(tmp_path: Path) -> None:
    assert "NVFP5" in reading_of(tmp_path, {**NVFP4, "quant_algo": "NVFP5"}, named(nvfp4())).finding("algo-unknown").message


@pytest.mark.parametrize("algo", ["NVFP4_AWQ", "NVFP4_SVD", "W8A16"])
def test_rule_algo_refused(tmp_path: Path, algo: str) -> None:
    assert algo in reading_of(tmp_path, {**NVFP4, "quant_algo": algo}, named(nvfp4())).finding("algo-refused").message


def test_low_rank_factors_are_refused_by_name(tmp_path: Path) -> None:
    got = reading_of(tmp_path, NVFP4, named(nvfp4(svdquant_lora_a=factors(4, 128))))
    assert got.finding("algo-refused").tensor == f"{MODULE}.svdquant_lora_a" and not got.layers


def test_rule_algo_lies(tmp_path: Path) -> None:
    got = reading_of(tmp_path, {**NVFP4, "quant_algo": "FP8"}, named(nvfp4()), side={"hf_quant_config.json": hf("NVFP4")})
    message = got.finding("algo-lies").message
    assert got.findings.errors and "FP8" in message and "NVFP4" in message


def test_rule_configs_disagree(tmp_path: Path) -> None:
    got = reading_of(tmp_path, NVFP4, named(nvfp4()), side={"hf_quant_config.json": hf("FP8")})
    assert got.codes_found == ["configs-disagree"] and len(got.layers) == 1


@pytest.mark.parametrize(
    "said",
    [
        {"side": {"hf_quant_config.json": hf("NVFP4", group_size=32)}},
        {"q": {"group_size": 128}},
        {"q": {"config_groups": {"group_0": {"weights": {"group_size": 32}, "input_activations": {}}}}},
        {"q": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {MODULE: {"quant_algo": "NVFP4", "group_size": 32}}}},
    ],
)
def test_a_group_size_that_this_writer_does_not_write_is_told(tmp_path: Path, said: dict[str, Any]) -> None:
    got = reading_of(tmp_path, {**NVFP4, **said.get("q", {})}, named(nvfp4()), side=said.get("side"))
    f = got.finding("group-size-lies")
    assert f.severity == "warning" and "groups of 16" in f.message and got.layer.form.scale.k == 16


@pytest.mark.parametrize("size", [16, None, 0])
def test_a_group_size_that_is_right_or_not_said_is_no_news(tmp_path: Path, size: int | None) -> None:
    clean(reading_of(tmp_path, NVFP4, named(nvfp4()), side={"hf_quant_config.json": hf("NVFP4", group_size=size)}))


def test_the_name_of_the_global_decides_under_another_config_too(tmp_path: Path) -> None:
    """weight_scale_2 multiplies, whatever the config says (formats.md 6.2); a divisor under that name gives weights that are told."""
    group = {"targets": ["Linear"], "format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    got = reading_of(tmp_path / "a", config, named(nvfp4()))
    assert "method-lies" in got.codes_found and "weight-implausible" not in got.codes_found
    scale = np.repeat(values("float8e4m3")[SCALE], 16, 1)
    np.testing.assert_array_equal(got.weight(), values("float4e2m1")[codes(4)] * scale * float(np.float32(0.03)))
    got = reading_of(tmp_path / "b", config, named(nvfp4(weight_scale_2=np.float32(2688))))
    assert {"method-lies", "weight-implausible"} <= set(got.codes_found)


def test_rule_algo_not_listed(tmp_path: Path) -> None:
    q = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.9": {"quant_algo": "FP8"}}}
    got = reading_of(tmp_path, q, named(nvfp4()))
    assert got.codes_found == ["algo-not-listed"] and len(got.layers) == 1


def test_rule_listed_not_quantized(tmp_path: Path) -> None:
    plain = "model.layers.0.mlp.down_proj"
    q = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {n: {"quant_algo": "NVFP4"} for n in (MODULE, plain)},
    }
    got = reading_of(tmp_path, q, {**named(nvfp4()), f"{plain}.weight": factors(32, 32)})
    assert got.codes_found == ["listed-not-quantized"] and got.passed == (f"{plain}.weight",)


@pytest.mark.parametrize("entry", [MODULE, "model.layers.0*", "*.mlp.up*", "layers.0.mlp.up_proj", "up_proj"])
def test_an_excluded_module_that_is_packed_is_read_with_a_warning(tmp_path: Path, entry: str) -> None:
    got = reading_of(tmp_path, {**NVFP4, "ignore": [entry]}, named(nvfp4()))
    assert got.codes_found == ["ignored-quantized"] and len(got.layers) == 1


@pytest.mark.parametrize("entry", ["mlp.up", "model.layers.0.mlp.up_proj_2", "lm_head"])
def test_an_entry_that_only_resembles_a_name_excludes_nothing(tmp_path: Path, entry: str) -> None:
    clean(reading_of(tmp_path, {**NVFP4, "ignore": [entry]}, named(nvfp4())))


def test_both_factors_missing_are_said_once_each(tmp_path: Path) -> None:
    got = reading_of(tmp_path, NVFP4, named(nvfp4(weight_scale_2=None)))
    assert [f.tensor for f in got.findings] == [f"{MODULE}.weight_scale_2"]
