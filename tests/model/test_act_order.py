"""Act-order: folding keeps what the model computes; what cannot be folded is refused, written plain, or quantized again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from humming_convert.findings import Findings
from humming_convert.model.act_order import fold_act_order
from humming_convert.model.fuse import fuse_model
from humming_convert.model.options import ModelOptions
from humming_convert.model.requantize import by_columns, requantized
from humming_convert.standard.layer import StandardLayer
from tests.model.making import Memory, checkpoint, names

MLP, ATTN = "model.layers.0.mlp", "model.layers.0.self_attn"
K, GROUP = 128, 32


def shuffled(seed: int = 5) -> Any:
    """The group of every column, groups of equal size in no order."""
    return np.random.default_rng(seed).permutation(np.arange(K) // GROUP)


def in_stored_order(memory: Memory, layer: StandardLayer, g_idx: Any) -> Any:
    """The numbers of an act-order layer, by the definition: column k has the scale and zero point of group g_idx[k]."""
    from humming_convert.standard.expr import Weight
    from humming_convert.standard.packing_ct import zero_codes

    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)
    codes = weight.expert_codes(memory.context(), 0).astype(np.float64)
    zeros = np.full((layer.n, K // GROUP), 1 << (layer.form.number.bits - 1))
    if "zero_point" in layer.tensors:
        zeros = zero_codes(memory.values(layer.tensors["zero_point"]), layer.form.number.bits, layer.n)
    scale = memory.values(layer.tensors["weight_scale"]).astype(np.float64)
    return (codes - zeros[:, g_idx]) * scale[:, g_idx]


def mlp(memory: Memory, g_idx: Any, **each: Any) -> list[StandardLayer]:
    gate, up = (memory.layer(f"{MLP}.{p}_proj", n=K, k=64, group=32, bias=True, **each) for p in ("gate", "up"))
    return [gate, up, memory.layer(f"{MLP}.down_proj", n=48, k=K, group=GROUP, g_idx=g_idx, **each)]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", ["uint4", "uint3"])
def test_columns_are_sorted_and_the_rows_before_follow(zeros: bool, kind: str) -> None:
    memory, g_idx = Memory(), shuffled()
    gate, up, down = mlp(memory, g_idx, zeros=zeros, kind=kind)
    order = np.argsort(g_idx, kind="stable")
    folded = fold_act_order([gate, up, down], on_desc_act="refuse", findings=Findings())
    after = {x.name: x for x in folded.layers}
    np.testing.assert_array_equal(memory.numbers(after[down.name]), in_stored_order(memory, down, g_idx)[:, order])
    for part in (gate, up):
        np.testing.assert_array_equal(memory.numbers(after[part.name]), memory.numbers(part)[order])
        bias = memory.values(after[part.name].tensors["bias"])
        np.testing.assert_array_equal(bias, memory.values(part.tensors["bias"])[order])


def test_a_folded_mlp_computes_what_it_did() -> None:
    memory, g_idx = Memory(), shuffled()
    gate, up, down = mlp(memory, g_idx)
    after = {x.name: memory.numbers(x) for x in fold_act_order([gate, up, down], on_desc_act="refuse", findings=Findings()).layers}
    x = np.random.default_rng(1).normal(size=64)
    before = in_stored_order(memory, down, g_idx) @ (np.maximum(memory.numbers(gate) @ x, 0) * (memory.numbers(up) @ x))
    got = after[down.name] @ (np.maximum(after[gate.name] @ x, 0) * (after[up.name] @ x))
    np.testing.assert_allclose(got, before, rtol=1e-12)


def test_rule_act_order() -> None:
    memory = Memory()
    findings = Findings()
    layers = [memory.layer(f"{ATTN}.q_proj", k=K, group=GROUP, g_idx=shuffled()), *mlp(memory, shuffled())]
    fold_act_order(layers, on_desc_act="refuse", findings=findings)
    (error,) = findings.errors
    assert error.layer == f"{ATTN}.q_proj" and f"{MLP}.down_proj alone could be folded" in error.message
    assert "--on-desc-act dequantize" in (error.advice or "") and "--on-desc-act requant" in (error.advice or "")


def test_parts_with_orders_of_their_own_are_each_refused() -> None:
    memory = Memory()
    parts = [memory.layer(f"{ATTN}.{p}_proj", k=K, group=GROUP, g_idx=shuffled(i)) for i, p in enumerate("qkv", 3)]
    findings = Findings()
    fold_act_order(parts, on_desc_act="refuse", findings=findings)
    assert [f.layer for f in findings.errors] == [p.name for p in parts]


def test_a_producer_in_act_order_cannot_be_permuted() -> None:
    memory = Memory()
    gate, up, down = mlp(memory, shuffled())
    gate = memory.layer(gate.name, n=K, k=K, group=GROUP, g_idx=shuffled(6))
    findings = Findings()
    fold_act_order([gate, up, down], on_desc_act="refuse", findings=findings)
    assert sorted(f.layer or "" for f in findings.errors) == [down.name, gate.name]


def test_a_producer_with_block_scales_cannot_be_permuted() -> None:
    memory = Memory()
    down = memory.layer(f"{MLP}.down_proj", k=K, group=GROUP, g_idx=shuffled())
    blocks = [memory.layer(f"{MLP}.{p}_proj", n=K, k=64, kind="float8e4m3", scale="block") for p in ("gate", "up")]
    findings = Findings()
    fold_act_order([*blocks, down], on_desc_act="refuse", findings=findings)
    assert [f.layer for f in findings.errors] == [down.name]


@pytest.mark.parametrize("zeros", [False, True])
def test_by_columns_gives_every_column_its_own_group(zeros: bool) -> None:
    memory, g_idx = Memory(), shuffled()
    layer = memory.layer("x", k=K, group=GROUP, g_idx=g_idx, zeros=zeros)
    np.testing.assert_array_equal(memory.numbers(by_columns(layer)), in_stored_order(memory, layer, g_idx))


@pytest.mark.parametrize("zeros", [False, True])
def test_a_layer_quantized_again_is_near_in_plain_groups_and_says_how_far(zeros: bool) -> None:
    memory, g_idx = Memory(), shuffled()
    layer = memory.layer("x", k=K, group=GROUP, g_idx=g_idx, zeros=zeros)
    again = requantized(layer, "BF16")
    assert again.form.scale.k == GROUP and again.form.scale.dtype == "bfloat16" and "g_idx" not in again.facts
    want, got = in_stored_order(memory, layer, g_idx), memory.numbers(again)
    context = memory.context()
    scale = again.tensors["weight_scale"].evaluate(context).astype(np.float64)
    # half a step; near the ends of a group's range also what rounding the scale (2^-9) or the zero point (half a step) cuts off
    assert (np.abs(got - want) <= np.repeat(scale, GROUP, 1) * (1.05 if zeros else 0.55)).all()
    measure = context.meter.found["requantize", "weight"]
    assert measure.count == int((got != want).sum()) and measure.max_abs == np.abs(got - want).max()


def attention_in_act_order(memory: Memory) -> list[StandardLayer]:
    return [memory.layer(f"{ATTN}.{p}_proj", k=K, group=GROUP, g_idx=shuffled() if p == "q" else None) for p in "qkvo"]


def test_parts_beside_a_dequantized_one_follow_it() -> None:
    memory, findings = Memory(), Findings()
    options = ModelOptions(on_desc_act="dequantize")
    model = fuse_model(checkpoint({"model_type": "llama"}), attention_in_act_order(memory), (), options, findings=findings)
    assert [d.layer.name.rpartition(".")[2] for d in model.dequantize] == ["k_proj", "q_proj", "v_proj"]
    assert {d.step for d in model.dequantize} == {"act-order-dequantize"} and not findings.errors


def test_requant_fuses_the_parts_again() -> None:
    memory, findings = Memory(), Findings()
    options = ModelOptions(on_desc_act="requant")
    model = fuse_model(checkpoint({"model_type": "llama"}), attention_in_act_order(memory), (), options, findings=findings)
    assert names(model.layers) == [f"{ATTN}.o_proj", f"{ATTN}.qkv_proj"] and not findings.errors and not model.dequantize
