"""The standard section as stock vLLM reads it: every module resolves to its own keys, every plain one to none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from humming_convert.manifest.section import Keys, Unit, form_keys, input_keys, plain_modules, resolve, standard_section, units
from humming_convert.model.families import Family, family_of, vllm_name
from humming_convert.plan.types import PlannedLayer
from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number
from humming_convert.targets.activations import activation


def form(kind: str, group: int = 128, dtype: str = "bfloat16") -> WeightForm:
    return WeightForm(number=number(kind), scale=ScaleForm(kind="group" if group else "channel", dtype=dtype, k=group))


def planned(name: str, family: Family, weight: WeightForm) -> PlannedLayer:
    layer = StandardLayer(name=name, family="humming", parts=(name,), n=1, k=1, experts=None, stack_n=(1,), form=weight, tensors={})
    return PlannedLayer(layer=layer, vllm=vllm_name(family, name), recipe=None, outputs={})


def section(model_type: str, layers: dict[str, WeightForm], plain: list[str], act: str | None = None) -> dict[str, Any]:
    family = family_of(model_type)
    found = units(family, [planned(n, family, f) for n, f in layers.items()], plain)
    return standard_section(found, activation(act, "BF16") if act else None)


U4, U8, NV = form("uint4"), form("uint8", 0), form("float4e2m1", 16, "float8e4m3")
LAYER = "model.layers.7"
MIXED = (
    {f"{LAYER}.self_attn.{p}_proj": U8 for p in "qkv"}
    | {f"{LAYER}.mlp.{p}_proj": U4 for p in ("gate", "up", "down")}
    | {f"{LAYER}.self_attn.o_proj": U4}
)


def test_the_most_common_form_stands_at_the_top_and_the_other_in_dynamic() -> None:
    got = section("llama", MIXED, [])
    assert got["b_dtype"] == "uint4" and got["weight_scale_group_size"] == 128
    ((pattern, keys),) = got["dynamic"].items()
    assert keys["b_dtype"] == "uint8" and keys["weight_scale_type"] == "channel" and keys["weight_scale_group_size"] == 0
    assert pattern == r"+:(?:.*\.)?layers\.7\.self_attn\.(?:q_proj|k_proj|v_proj|qkv_proj)$"


@pytest.mark.parametrize("prefix", ["model.", "", "language_model.model."])
def test_patterns_hold_for_fused_and_unfused_names_in_any_nesting(prefix: str) -> None:
    got = section("llama", MIXED, [])
    for leaf in ("qkv_proj", "q_proj"):
        keys = resolve(got, f"{prefix}layers.7.self_attn.{leaf}")
        assert keys is not None and keys["b_dtype"] == "uint8"
    other = resolve(got, f"{prefix}layers.17.self_attn.qkv_proj")
    assert other is not None and other["b_dtype"] == "uint4"


def test_a_layer_number_does_not_hit_another_that_begins_with_it() -> None:
    layers = {f"model.layers.{i}.mlp.down_proj": U8 if i == 1 else U4 for i in (1, 10, 11)}
    got = section("llama", layers, [])
    for name, weight in layers.items():
        assert resolve(got, name) == form_keys(weight)


def test_plain_modules_are_ignored_by_closed_patterns_under_the_fused_name() -> None:
    got = section("llama", {f"{LAYER}.mlp.gate_up_proj": U4}, [f"{LAYER}.self_attn.{p}_proj" for p in "qkv"] + [f"{LAYER}.mlp.gate"])
    assert all(x.startswith("re:") and x.endswith("$") for x in got["ignore"])
    assert resolve(got, f"{LAYER}.self_attn.qkv_proj") is None and resolve(got, f"{LAYER}.mlp.gate") is None
    assert resolve(got, f"{LAYER}.mlp.gate_up_proj") == form_keys(U4)


def test_all_experts_resolve_by_one_pattern() -> None:
    experts = {f"{LAYER}.mlp.experts.{e}.{p}_proj": NV for e in range(3) for p in ("gate", "up", "down")}
    got = section("qwen3_moe", {**experts, f"{LAYER}.self_attn.o_proj": U4, f"{LAYER}.self_attn.qkv_proj": U4}, [f"{LAYER}.mlp.gate"])
    for name in (f"{LAYER}.mlp.experts", f"{LAYER}.mlp.experts.2.up_proj"):
        assert resolve(got, name) == form_keys(NV)
    assert len(got["dynamic"]) == 1


def test_plain_experts_are_ignored_since_vllm_would_quantize_them() -> None:
    got = section("qwen3_moe", {f"{LAYER}.self_attn.o_proj": U4}, [f"{LAYER}.mlp.experts.{e}.up_proj" for e in range(2)])
    assert resolve(got, f"{LAYER}.mlp.experts") is None


def test_a_key_that_only_the_top_has_is_null_in_dynamic() -> None:
    got = section("llama", {f"model.layers.{i}.mlp.down_proj": U4 if i == 2 else NV for i in range(3)}, [])
    assert got["bs_dtype"] == "float8e4m3"
    ((_, keys),) = got["dynamic"].items()
    assert keys["bs_dtype"] is None and resolve(got, "model.layers.2.mlp.down_proj") == form_keys(U4)


def test_a_vision_tower_with_the_same_tail_makes_the_patterns_exact() -> None:
    text, vision = "model.language_model.layers.0.mlp", "model.vision_tower.encoder.layers.0.mlp"
    got = section("mistral3", {f"{text}.down_proj": U4, f"{vision}.down_proj": U8}, [f"{text}.gate"])
    assert resolve(got, "language_model.model.layers.0.mlp.down_proj") == form_keys(U4)
    assert resolve(got, "vision_tower.encoder.layers.0.mlp.down_proj") == form_keys(U8)


def test_every_spelling_of_a_nested_name_resolves() -> None:
    got = section("qwen2_5_vl", {"model.language_model.layers.0.mlp.down_proj": U4}, ["model.visual.blocks.0.attn.qkv"])
    for name in ("language_model.model.layers.0.mlp.down_proj", "model.language_model.layers.0.mlp.down_proj"):
        assert resolve(got, name) == form_keys(U4)
    assert resolve(got, "visual.blocks.0.attn.qkv") is None


def test_the_renamed_attention_of_gpt_oss_is_ignored_in_both_spellings() -> None:
    got = section("gpt_oss", {f"{LAYER}.mlp.experts.w13": form("float4e2m1", 32, "float8e8m0")}, [f"{LAYER}.self_attn.q_proj"])
    assert resolve(got, f"{LAYER}.self_attn.qkv_proj") is None and resolve(got, f"{LAYER}.attn.qkv_proj") is None


def test_a_model_without_a_quantized_layer_ignores_everything() -> None:
    got = section("llama", {}, [f"{LAYER}.mlp.down_proj"])
    assert got["b_dtype"] and resolve(got, f"{LAYER}.mlp.down_proj") is None


def test_no_key_has_a_short_name() -> None:
    got = section("llama", MIXED, [])
    short = {
        "dtype",
        "weight_dtype",
        "scale_dtype",
        "weight_scale_dtype",
        "group_size",
        "group_size_n",
        "scale_type",
        "scale_2_type",
        "quant_mode",
    }
    assert not short & set(got) and not any(short & set(keys) for keys in got["dynamic"].values())


def test_an_activation_that_was_asked_for_must_not_fall_back() -> None:
    assert "allow_fallback" not in section("llama", MIXED, [])
    got = section("llama", MIXED, [], "fp8")
    assert got["allow_fallback"] is False and got["a_dtype"] == "float8e4m3" and got["input_quant_mode"] == "dynamic_token"
    assert input_keys(activation("bf16", "BF16")) == {"allow_fallback": False}


def test_matrices_are_plain_modules_and_heads_embeddings_and_vectors_are_not() -> None:
    tensors = {
        "model.embed_tokens.weight": (8, 8),
        "lm_head.weight": (8, 8),
        "model.norm.weight": (8,),
        f"{LAYER}.mlp.gate.weight": (4, 8),
        f"{LAYER}.mlp.experts.gate_up_proj": (4, 8, 8),
        "model.visual.patch_embed.proj.weight": (8, 3, 2, 2, 2),
    }
    assert plain_modules(tensors.items()) == [f"{LAYER}.mlp.gate", f"{LAYER}.mlp.experts.gate_up_proj"]


def test_patterns_are_valid_regular_expressions() -> None:
    keys: Keys = form_keys(U4)
    got = standard_section([Unit("a.b-c+d", ("a.b-c+d",), (), keys), Unit("a.bbc", ("a.bbc",), (), form_keys(U8))], None)
    for pattern in got["dynamic"]:
        re.compile(pattern[2:])


def test_parts_that_differ_have_a_pattern_each() -> None:
    """vLLM cannot load such a module; who reads the folder by its parts must not take one form for all of them."""
    for odd in ("q", "k", "v"):
        parts = {f"{LAYER}.self_attn.{p}_proj": U8 if p == odd else U4 for p in "qkv"}
        got = section("llama", {**parts, f"{LAYER}.mlp.down_proj": U4}, [])
        for name, weight in parts.items():
            assert resolve(got, name) == form_keys(weight), (odd, name)
            assert any(re.match(p[2:], name) for p in got["dynamic"]), "a reader that tries the fused name next must have found this one"
        assert resolve(got, f"{LAYER}.self_attn.qkv_proj") == form_keys(parts[f"{LAYER}.self_attn.q_proj"])
        assert resolve(got, f"{LAYER}.mlp.down_proj") == form_keys(U4)


def test_experts_that_differ_have_a_pattern_each() -> None:
    experts = {f"{LAYER}.mlp.experts.{e}.{p}_proj": U8 if e == 1 else U4 for e in range(3) for p in ("gate", "up", "down")}
    got = section("qwen3_moe", experts, [])
    assert all(resolve(got, name) == form_keys(weight) for name, weight in experts.items())
