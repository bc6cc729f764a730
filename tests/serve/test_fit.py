"""Modules of vLLM against packed layers: sizes, types, biases, the order of gate and up, which experts."""

from __future__ import annotations

from typing import Any

import pytest
from codes import codes

from humming_convert.serve.fit import ExpertsModule, LinearModule, experts_findings, held_experts, linear_findings, rows_of_experts
from humming_convert.serve.folder import Group, PackedFolder
from tests.serve.conftest import EXPERTS, Packed

ONE = {"tp_size": 1, "tp_rank": 0, "ep_size": 1, "ep_rank": 0}


@pytest.fixture
def qkv(packed: Packed) -> Group:
    return PackedFolder.open(packed()).rank(0, 0).groups["model.layers.0.self_attn.qkv_proj"]


@pytest.fixture
def experts(packed: Packed) -> Group:
    return PackedFolder.open(packed(EXPERTS)).rank(0, 0).groups["model.layers.0.mlp.experts"]


def linear(**more: Any) -> LinearModule:
    return LinearModule(**{"n": (256, 128, 128), "k": 256, "dtype": "bfloat16", "bias": False, **more})


def moe(**more: Any) -> ExpertsModule:
    base = {"hidden": 256, "intermediate": 128, "gated": True, "activation": "silu", "dtype": "bfloat16", "bias": False}
    return ExpertsModule(**{**base, "local": (0, 1, 2, 3), "total": 4, **more})


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"n": (128, 64, 64)}, "layer-shape"),
        ({"n": (128, 128, 256)}, "layer-shape"),
        ({"k": 128}, "layer-shape"),
        ({"dtype": "float16"}, "layer-dtype"),
        ({"bias": True}, "bias"),
    ],
)
def test_a_linear_module_of_another_make_is_refused(qkv: Group, more: dict[str, Any], code: str) -> None:
    assert not codes(linear_findings(qkv, linear()))
    assert codes(linear_findings(qkv, linear(**more))) == [code]


def test_a_module_that_is_fused_on_disk_is_compared_by_its_rows(qkv: Group) -> None:
    entry = {**qkv.one, "shape": {**qkv.one["shape"], "stack_n": [512]}}
    assert not codes(linear_findings(Group(qkv.vllm, {"qkv_proj": entry}), linear()))


def test_a_bias_that_the_model_adds_later_cannot_be_packed(qkv: Group) -> None:
    entry = {**qkv.one, "config": {**qkv.one["config"], "has_bias": True}}
    group = Group(qkv.vllm, {"qkv_proj": entry})
    assert not codes(linear_findings(group, linear(bias=True)))
    assert codes(linear_findings(group, linear(bias=True, later_bias=True))) == ["bias"]


def test_experts_and_linear_layers_do_not_stand_for_each_other(qkv: Group, experts: Group) -> None:
    assert codes(linear_findings(experts, linear())) == ["layer-kind"]
    assert codes(experts_findings(qkv, moe(), ONE)) == ["layer-kind"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"hidden": 512}, "layer-shape"),
        ({"intermediate": 64}, "layer-shape"),
        ({"gated": False}, "layer-shape"),
        ({"dtype": "float16"}, "layer-dtype"),
        ({"bias": True}, "bias"),
        ({"activation": "swigluoai"}, "row-order"),
        ({"local": (3, 4), "total": 8}, "experts"),
    ],
)
def test_experts_of_another_make_are_refused(experts: Group, more: dict[str, Any], code: str) -> None:
    assert not codes(experts_findings(experts, moe(), ONE))
    assert set(codes(experts_findings(experts, moe(**more), ONE))) == {code}


def test_static_input_scales_of_experts_are_refused(experts: Group) -> None:
    entries = {leaf: {**e, "config": {**e["config"], "input_quant_mode": "static_tensor"}} for leaf, e in experts.entries.items()}
    assert set(codes(experts_findings(Group(experts.vllm, entries), moe(), ONE))) == {"static-experts"}


# ------------------------------------------------------------------ which experts
def test_parts_tell_which_experts_a_rank_holds(packed: Packed) -> None:
    folder = PackedFolder.open(packed(EXPERTS, tp=2, ep=2))
    for rank in (0, 1):
        layers = folder.rank(rank, rank)
        for entry in layers.groups["model.layers.0.mlp.experts"].entries.values():
            assert held_experts(entry, layers.manifest["parallel"], 4) == (2 * rank, 2 * rank + 1)


def test_experts_that_were_stacked_are_a_run_as_even_as_can_be() -> None:
    def entry(experts: int) -> dict[str, Any]:
        return {"shape": {"experts": experts}, "parts": ["model.layers.0.mlp.experts.gate_up_proj"]}

    assert held_experts(entry(5), ONE, 5) == (0, 1, 2, 3, 4)
    shared = [held_experts(entry(n), {**ONE, "ep_size": 2, "ep_rank": r}, 5) for r, n in ((0, 3), (1, 2))]
    assert shared == [(0, 1, 2), (3, 4)]


def test_rows_are_taken_in_the_order_of_the_rank() -> None:
    assert rows_of_experts((4, 5, 6, 7), (6, 4)) == [2, 0]
