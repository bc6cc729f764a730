"""Shapes that have the right number of elements and the wrong order, and modules that no reader explains: each once converted wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.formats.assemble import same_but_ones
from tests.formats.folders import BF16, E4M3, MODULE, codes, e4m3_codes, factors, named, pairs, reading_of


def ct_config(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("shape", "other", "same"),
    [
        ((4,), (4, 1), True),
        ((1, 4), (4,), True),
        ((), (1, 1), True),
        ((4, 2), (2, 4), False),
        ((8,), (4, 2), False),
        ((2, 1, 4), (2, 4), True),
    ],
)
def test_shapes_are_the_same_but_for_axes_of_one(shape: tuple[int, ...], other: tuple[int, ...], same: bool) -> None:
    assert same_but_ones(shape, other) is same


def test_a_transposed_bias_of_stacked_experts_is_refused(tmp_path: Path) -> None:
    experts, n, k = 2, 32, 64
    blocks = pairs(codes(4, n, k, experts)).reshape(experts, n, k // 32, 16)
    scales = np.full((experts, n, k // 32), 120, np.uint8)
    tensors: dict[str, Any] = {}
    for p in ("gate_up_proj", "down_proj"):
        tensors |= {f"{p}_blocks": blocks, f"{p}_scales": scales, f"{p}_bias": np.zeros((n, experts), BF16)}
    named_tensors = named(tensors, "model.layers.0.mlp.experts")
    got = reading_of(tmp_path, {"quant_method": "mxfp4"}, named_tensors, model_type="gpt_oss", num_local_experts=experts)
    assert str(got.finding("tensor-shape").tensor).endswith("_proj_bias")
    assert not got.layers


@pytest.mark.parametrize("value", [-0.5, 0.0, 1e-31, 1e31, float("nan")])
@pytest.mark.parametrize("family", ["fp8", "int8", "pack"])
def test_the_scale_of_a_matrix_is_above_0_and_not_huge(tmp_path: Path, family: str, value: float) -> None:
    scale = np.array([value], np.float32)
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor"}
    config, tensors = {
        "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, {"weight": e4m3_codes().view(E4M3), "weight_scale": scale}),
        "int8": (ct_config("int-quantized", weights), {"weight": codes(8).view(np.int8), "weight_scale": scale}),
        "pack": (
            ct_config("pack-quantized", {**weights, "num_bits": 4}),
            {"weight_packed": pairs(codes(4)).view("<i4"), "weight_scale": scale, "weight_shape": np.array([32, 128])},
        ),
    }[family]
    got = reading_of(tmp_path, config, named(tensors))
    assert got.finding("scale-not-positive").tensor == f"{MODULE}.weight_scale"


def test_unpacked_zero_points_of_the_other_orientation_are_refused(tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
    tensors = {
        "weight_packed": pairs(codes(4)).view("<i4"),
        "weight_scale": factors(32, 4),
        "weight_shape": np.array([32, 128]),
        "weight_zero_point": np.zeros((4, 32), np.int8),
    }
    got = reading_of(tmp_path, ct_config("pack-quantized", weights), named(tensors))
    assert got.finding("tensor-shape").tensor == f"{MODULE}.weight_zero_point"


def test_nan_codes_inside_words_are_seen(tmp_path: Path) -> None:
    """Humming's own form holds four FP8 codes a word; each of them counts."""
    for place in range(4):
        weight = e4m3_codes()
        weight[3, place] = 0x7F
        config = {"quant_method": "humming", "b_dtype": "float8e4m3", "weight_scale_group_size": 0}
        got = reading_of(tmp_path / str(place), config, named({"weight": weight.view("<i4"), "weight_scale": factors(32, 1)}))
        assert got.finding("weight-nan").count == 1


def test_a_quantized_module_that_the_config_does_not_explain_is_not_passed_through(tmp_path: Path) -> None:
    """Words of Humming's own form under another method: nothing says how wide the codes are."""
    good = {"weight": codes(8).view(np.int8), "weight_scale": factors(32, 1)}
    odd = {"weight": codes(8).view("<i4"), "weight_scale": factors(32, 1)}
    tensors = named(good) | named(odd, "model.layers.0.mlp.gate_proj")
    got = reading_of(tmp_path, ct_config("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}), tensors)
    assert "b_dtype is missing" in got.finding("humming-dtype").message


def test_overrides_of_a_humming_config_count_under_another_method(tmp_path: Path) -> None:
    """`dynamic` says that one module has other codes; a wrong quant_method must not make it unread."""
    plain = {"weight": pairs(codes(4)).view("<i4"), "weight_scale": factors(32, 4)}
    config = {"b_dtype": "uint4", "weight_scale_group_size": 32, "dynamic": {"+:.*gate_proj": {"b_dtype": "float4e2m1"}}}
    tensors = named(plain) | named(plain, "model.layers.0.mlp.gate_proj")
    for i, method in enumerate(("humming", "mxfp4", "gptq", "fp8")):
        got = reading_of(tmp_path / str(i), {"quant_method": method, **config}, tensors)
        assert not got.findings.errors, [str(f) for f in got.findings]
        assert {n.rpartition(".")[2]: x.form.number.name for n, x in got.layers.items()} == {"up_proj": "uint4", "gate_proj": "float4e2m1"}


def test_words_lost_in_one_module_of_a_group_are_no_other_width(tmp_path: Path) -> None:
    """24 of 32 words hold as many 3-bit codes as 32 hold 4-bit ones; that the config's bits fit the other modules tells which it is."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}
    words = np.zeros((32, 32), "<i4")
    shape = np.array([32, 256])
    good = {"weight_packed": words, "weight_scale": factors(32, 4), "weight_shape": shape}
    cut = {**good, "weight_packed": np.ascontiguousarray(words[:, :24])}
    alone = reading_of(tmp_path / "a", ct_config("pack-quantized", weights), named(cut))
    assert alone.layer.form.number.bits == 3 and alone.finding("ct-bits-lie").severity == "warning"
    beside = reading_of(tmp_path / "b", ct_config("pack-quantized", weights), named(good) | named(cut, "model.layers.0.mlp.gate_proj"))
    assert beside.finding("ct-words").layer == "model.layers.0.mlp.gate_proj"


@pytest.mark.parametrize("strategy", ["channel", "group"])
@pytest.mark.parametrize("family", ["fp8", "int8", "pack"])
def test_one_scale_where_the_config_says_one_a_row_is_refused(tmp_path: Path, family: str, strategy: str) -> None:
    scale = np.array([[0.5]], np.float32)
    kind = {"num_bits": 4 if family == "pack" else 8, "type": "float" if family == "fp8" else "int", "symmetric": True}
    form = {"fp8": "float-quantized", "int8": "int-quantized", "pack": "pack-quantized"}[family]
    tensors = {
        "fp8": {"weight": e4m3_codes().view(E4M3), "weight_scale": scale},
        "int8": {"weight": codes(8).view(np.int8), "weight_scale": scale},
        "pack": {"weight_packed": pairs(codes(4)).view("<i4"), "weight_scale": scale, "weight_shape": np.array([32, 128])},
    }[family]
    for said, refused in ((strategy, True), ("tensor", False)):
        weights = {**kind, "strategy": said, "group_size": 32 if said == "group" else None}
        got = reading_of(tmp_path / said, ct_config(form, weights), named(tensors))
        assert (not got.layers) is refused
        if refused:
            assert got.finding("tensor-shape").tensor == f"{MODULE}.weight_scale"


@pytest.mark.parametrize(("dtype", "shape"), [("<f4", (2, 1)), (np.uint8, (32, 4))])
def test_scales_whose_weight_is_not_there_are_no_plain_tensors(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    """DeepSeek V4 calls them `scale`, as others call the vector of a norm."""
    good = named({"weight": e4m3_codes().view(E4M3), "scale": np.ones((1, 1), np.float32)})
    lost = {"model.layers.0.mlp.w2.scale": np.ones(shape, dtype)}
    norm = {"model.norm.scale": np.ones(128, np.float32)}
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    got = reading_of(tmp_path / "a", config, good | lost | norm)
    assert got.finding("module-unknown").tensor == "model.layers.0.mlp.w2.scale"
    assert reading_of(tmp_path / "b", config, good | norm).passed == ("model.norm.scale",)
