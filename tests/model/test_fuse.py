"""Fusing and stacking: the fused layer stands for the parts' numbers, row by row."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from humming_convert.findings import Findings
from humming_convert.model.fuse import FusedModel, fuse_model, natural
from humming_convert.model.options import ModelOptions
from humming_convert.standard.layer import StandardLayer
from tests.model.making import Memory, checkpoint, names

LLAMA = {"model_type": "llama"}
MOE = {"model_type": "qwen3_moe"}
ATTN = "model.layers.0.self_attn"
MLP = "model.layers.0.mlp"


def attention(memory: Memory, **each: dict[str, Any]) -> list[StandardLayer]:
    """q, k, v, o; keyword: what differs in a part."""
    shapes = {"q": 64, "k": 32, "v": 32, "o": 128}
    return [memory.layer(f"{ATTN}.{p}_proj", n=n, **each.get(p, {})) for p, n in shapes.items()]


def fused(
    memory: Memory, layers: list[StandardLayer], config: dict[str, Any] = LLAMA, plain: tuple[str, ...] = (), **options: Any
) -> tuple[FusedModel, Findings]:
    findings = Findings()
    return fuse_model(checkpoint(config), layers, plain, ModelOptions(**options), findings=findings), findings


def only(model: FusedModel, name: str) -> StandardLayer:
    (layer,) = [x for x in model.layers if x.name == name]
    return pickle.loads(pickle.dumps(layer))


def assert_same(memory: Memory, whole: StandardLayer, parts: list[StandardLayer]) -> None:
    np.testing.assert_array_equal(memory.numbers(whole), np.concatenate([memory.numbers(p) for p in parts]))


def test_qkv_are_stacked_in_this_order_whatever_the_order_on_disk() -> None:
    memory = Memory()
    parts = attention(memory)
    model, findings = fused(memory, parts[::-1])
    layer = only(model, f"{ATTN}.qkv_proj")
    assert layer.parts == tuple(names(parts[:3])) and layer.stack_n == (64, 32, 32) and layer.n == 128
    assert_same(memory, layer, parts[:3])
    assert names(model.layers) == [f"{ATTN}.o_proj", f"{ATTN}.qkv_proj"] and not findings.errors


def test_groups_of_different_sizes_become_their_greatest_common_divisor() -> None:
    memory = Memory()
    parts = attention(memory, k={"group": 32}, v={"scale": "channel"})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert (layer.form.scale.kind, layer.form.scale.k) == ("group", 32)
    assert_same(memory, layer, parts[:3])


def test_groups_without_a_common_divisor_of_16_are_refused() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"k": 96, "group": 48} for p in "qv"}, k={"k": 96, "group": 32})
    parts[0] = memory.layer(f"{ATTN}.q_proj", n=64, k=96, group=24)
    _, findings = fused(memory, parts)
    assert [f.code for f in findings.errors] == ["parts-differ"]
    assert "groups of 24" in findings.errors[0].message and "--on-mixed" in (findings.errors[0].advice or "")


def test_narrower_symmetric_integers_are_widened() -> None:
    memory = Memory()
    parts = attention(memory, v={"kind": "uint8"})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert layer.form.number.name == "uint8" and layer.recoded == "uint4->uint8"
    assert_same(memory, layer, parts[:3])


def test_symmetric_parts_get_the_zero_point_that_the_others_have() -> None:
    memory = Memory()
    parts = attention(memory, q={"zeros": True}, k={"zeros": True})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert layer.form.zero_point == "int"
    assert_same(memory, layer, parts[:3])


def test_zero_points_that_end_inside_a_word_are_packed_again() -> None:
    memory = Memory()
    parts = [memory.layer(f"{MLP}.{p}_proj", n=20, kind="uint3", zeros=True) for p in ("gate", "up")] + [
        memory.layer(f"{MLP}.down_proj", n=128)
    ]
    layer = only(fused(memory, parts)[0], f"{MLP}.gate_up_proj")
    assert layer.tensors["zero_point"].shape == (4, 2)  # 40 codes of 3 bits: 120 bits
    assert_same(memory, layer, parts[:2])


def test_tensor_scales_of_parts_stay_one_value_a_part() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"scale": "tensor", "kind": "float8e4m3"} for p in "qkvo"})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert layer.form.scale.kind == "tensor" and layer.tensors["weight_scale"].shape == (3,)
    assert_same(memory, layer, parts[:3])


def test_a_tensor_scale_beside_rows_becomes_a_scale_for_every_row() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"scale": "channel", "kind": "float8e4m3"} for p in "kv"}, q={"scale": "tensor", "kind": "float8e4m3"})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert layer.form.scale.kind == "channel" and layer.form.scale.dtype == "float32"
    assert_same(memory, layer, parts[:3])


def test_whole_blocks_stay_blocks() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"scale": "block", "kind": "float8e4m3"} for p in "qkv"})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert layer.form.scale.kind == "block" and layer.tensors["weight_scale"].shape == (4, 2)
    assert_same(memory, layer, parts[:3])


def test_blocks_that_do_not_fit_every_part_become_rows() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"scale": "block", "kind": "float8e4m3", "rows": 64} for p in "qkv"})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert layer.form.scale.kind == "group" and layer.facts["scales_from"] == "block"
    assert_same(memory, layer, parts[:3])


def test_secondary_scales_stay_one_value_a_part() -> None:
    memory = Memory()
    form = {"kind": "float4e2m1", "group": 16, "dtype": "F8_E4M3"}
    parts = attention(memory, q={**form, "scale_2": 0.5}, k={**form, "scale_2": 0.25}, v={**form, "scale_2": 2.0})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert layer.form.scale_2 == "tensor" and memory.values(layer.tensors["weight_scale_2"]).tolist() == [0.5, 0.25, 2.0]
    assert_same(memory, layer, parts[:3])


def test_a_missing_bias_is_zero() -> None:
    memory = Memory()
    parts = attention(memory, q={"bias": True}, k={"bias": True})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    bias = memory.values(layer.tensors["bias"])
    assert bias.shape == (128,) and not bias[96:].any() and bias[:96].any()


def test_the_largest_input_scale_counts_and_parts_without_one_are_named() -> None:
    memory = Memory()
    parts = attention(memory, q={"input_scale": 0.5}, k={"input_scale": 2.0})
    layer = only(fused(memory, parts)[0], f"{ATTN}.qkv_proj")
    assert memory.values(layer.tensors["input_scale"]).tolist() == [2.0]
    assert layer.facts["missing_input_scale"] == {"input_scale": (f"{ATTN}.v_proj",)}


def test_a_part_with_a_first_axis_of_its_own_is_no_part() -> None:
    memory = Memory()
    parts = [replace(p, experts=1) if p.name.endswith("q_proj") else p for p in attention(memory)]
    _, findings = fused(memory, parts)
    assert [f.code for f in findings.errors if f.layer == f"{ATTN}.qkv_proj"] == ["parts-differ"]
    assert [f.code for f in findings.errors if f.layer == f"{ATTN}.q_proj"] == ["matrix-stacked"]


def test_rule_parts_differ() -> None:
    memory = Memory()
    parts = attention(memory, q={"kind": "float8e4m3", "scale": "channel"})
    _, findings = fused(memory, parts)
    (error,) = findings.errors
    assert error.layer == f"{ATTN}.qkv_proj" and "q_proj has float8e4m3 codes" in error.message


# ------------------------------------------------------------------ mixed with plain parts
def mixed(memory: Memory) -> list[StandardLayer]:
    return [p for p in attention(memory) if not p.name.endswith("v_proj")]


PLAIN = (f"{ATTN}.v_proj.weight",)


def test_rule_part_unquantized() -> None:
    memory = Memory()
    _, findings = fused(memory, mixed(memory), plain=PLAIN)
    (error,) = findings.errors
    assert error.code == "part-unquantized" and error.layer == f"{ATTN}.qkv_proj" and "v_proj is not quantized" in error.message


def test_on_mixed_dequantize_writes_the_quantized_parts_as_plain_matrices() -> None:
    memory = Memory()
    model, findings = fused(memory, mixed(memory), plain=PLAIN, on_mixed="dequantize")
    assert [d.layer.name for d in model.dequantize] == [f"{ATTN}.k_proj", f"{ATTN}.q_proj"]
    assert {d.step for d in model.dequantize} == {"mixed-dequantize"}
    assert names(model.layers) == [f"{ATTN}.o_proj"] and not findings.errors


def test_on_mixed_unfuse_keeps_the_parts_apart_and_unnamed_to_vllm() -> None:
    memory = Memory()
    model, findings = fused(memory, mixed(memory), plain=PLAIN, on_mixed="unfuse")
    assert model.vllm == {f"{ATTN}.k_proj": None, f"{ATTN}.o_proj": f"{ATTN}.o_proj", f"{ATTN}.q_proj": None} and not findings.errors


# ------------------------------------------------------------------ experts
def experts(memory: Memory, count: int = 2, **each: Any) -> list[StandardLayer]:
    out = []
    for e in range(count):
        out += [memory.layer(f"{MLP}.experts.{e}.{p}_proj", n=64, k=128, **each) for p in ("gate", "up")]
        out += [memory.layer(f"{MLP}.experts.{e}.down_proj", n=128, k=64, **each)]
    return out


def test_experts_are_stacked_expert_by_expert_gate_before_up() -> None:
    memory = Memory()
    parts = experts(memory, 11)
    model, findings = fused(memory, parts, MOE)
    w13, w2 = only(model, f"{MLP}.experts.w13"), only(model, f"{MLP}.experts.w2")
    by_name = {p.name: p for p in parts}
    for e in range(11):
        np.testing.assert_array_equal(
            memory.numbers(w13, e), np.concatenate([memory.numbers(by_name[f"{MLP}.experts.{e}.{p}_proj"]) for p in ("gate", "up")])
        )
        np.testing.assert_array_equal(memory.numbers(w2, e), memory.numbers(by_name[f"{MLP}.experts.{e}.down_proj"]))
    assert w13.parts[:3] == tuple(f"{MLP}.experts.{x}_proj" for x in ("0.gate", "0.up", "1.gate")) and w13.parts[-1].endswith("10.up_proj")
    assert model.vllm[w13.name] == model.vllm[w2.name] == f"{MLP}.experts" and not findings.errors


def test_experts_with_zero_points_secondary_scales_and_tensor_scales_keep_their_numbers() -> None:
    for each in (
        {"zeros": True},
        {"kind": "float4e2m1", "group": 16, "dtype": "F8_E4M3", "scale_2": 0.5},
        {"kind": "float8e4m3", "scale": "tensor"},
    ):
        memory = Memory()
        parts = experts(memory, 3, **each)
        model, _ = fused(memory, parts, MOE)
        w13 = only(model, f"{MLP}.experts.w13")
        np.testing.assert_array_equal(memory.numbers(w13, 1), np.concatenate([memory.numbers(p) for p in parts[3:5]]))
        w2 = only(model, f"{MLP}.experts.w2")
        np.testing.assert_array_equal(memory.numbers(w2, 2), memory.numbers(parts[8]))
        for layer in (w13, w2):
            for expr in layer.tensors.values():
                assert memory.values(expr).shape == expr.shape


def test_a_tensor_scale_of_one_part_an_expert_has_the_shape_of_the_library() -> None:
    memory = Memory()
    model, _ = fused(memory, experts(memory, 3, kind="float8e4m3", scale="tensor"), MOE)
    assert only(model, f"{MLP}.experts.w13").tensors["weight_scale"].shape == (3, 2)
    assert only(model, f"{MLP}.experts.w2").tensors["weight_scale"].shape == (3,)


# ------------------------------------------------------------------ what is not fused
def test_a_quantized_head_becomes_a_plain_matrix_unless_it_is_kept() -> None:
    memory = Memory()
    parts = [*attention(memory), memory.layer("lm_head", n=64)]
    model, findings = fused(memory, parts)
    assert [(d.layer.name, d.step) for d in model.dequantize] == [("lm_head", "lm-head-dequantize")]
    assert [f.code for f in findings if f.severity == "warning"] == ["dequantized"]
    model, _ = fused(memory, parts, lm_head="keep")
    assert "lm_head" in names(model.layers) and not model.dequantize


@pytest.mark.parametrize("name", ["model.embed_tokens", "model.layers.0.mlp.gate"])
def test_embeddings_and_routers_become_plain_matrices(name: str) -> None:
    memory = Memory()
    model, _ = fused(memory, [*attention(memory), memory.layer(name, n=8)], lm_head="keep")
    assert [d.layer.name for d in model.dequantize] == [name]


def test_an_unknown_family_is_proposed_and_not_fused() -> None:
    memory = Memory()
    parts = attention(memory)
    model, findings = fused(memory, parts, {"model_type": "brand_new"})
    assert names(model.layers) == sorted(names(parts)) and set(model.vllm.values()) == {None}
    (note,) = [f for f in findings if f.code == "unknown-architecture"]
    assert note.count == 1 and f"{ATTN}.qkv_proj" in note.message


def test_fuse_vllm_fuses_an_unknown_family_by_the_generic_names() -> None:
    memory = Memory()
    model, _ = fused(memory, attention(memory), {"model_type": "brand_new"}, fuse="vllm")
    assert names(model.layers) == [f"{ATTN}.o_proj", f"{ATTN}.qkv_proj"]


def test_fuse_none_keeps_every_projection() -> None:
    memory = Memory()
    parts = [*attention(memory), *experts(memory)]
    model, _ = fused(memory, parts, MOE, fuse="none")
    assert sorted(names(model.layers)) == sorted(names(parts)) and all(x.experts is None for x in model.layers)


def test_layers_are_in_the_order_of_their_numbers() -> None:
    assert sorted(["layers.10.a", "layers.9.b", "layers.9.a"], key=natural) == ["layers.9.a", "layers.9.b", "layers.10.a"]
