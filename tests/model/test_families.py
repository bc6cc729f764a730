"""The tables of families: names only."""

from __future__ import annotations

import pytest

from humming_convert.model.families import FAMILIES, dimensions, expert_of, family_of, fused_name, vllm_name

LLAMA = family_of("llama")


def test_no_model_type_has_two_rows() -> None:
    types = [t for family in FAMILIES for t in family.types]
    assert len(types) == len(set(types))


@pytest.mark.parametrize("leaf", ["q_proj", "k_proj", "v_proj"])
def test_a_part_of_attention_is_asked_for_under_the_fused_name(leaf: str) -> None:
    assert vllm_name(LLAMA, f"model.layers.3.self_attn.{leaf}") == "model.layers.3.self_attn.qkv_proj"


def test_every_expert_is_asked_for_under_one_name() -> None:
    family = family_of("qwen3_moe")
    for name in ("model.layers.0.mlp.experts.7.up_proj", "model.layers.0.mlp.experts.w13", "model.layers.0.mlp.experts.w2"):
        assert vllm_name(family, name) == "model.layers.0.mlp.experts"


def test_a_shared_expert_is_a_linear_layer() -> None:
    assert expert_of("model.layers.0.mlp.shared_experts.up_proj") is None
    assert (
        fused_name(family_of("deepseek_v3"), "model.layers.1.mlp.shared_experts.up_proj")
        == "model.layers.1.mlp.shared_experts.gate_up_proj"
    )


def test_nested_names_are_mapped_in_both_spellings() -> None:
    family = family_of("qwen2_5_vl")
    want = "language_model.model.layers.0.mlp.down_proj"
    assert vllm_name(family, "model.language_model.layers.0.mlp.down_proj") == want
    assert vllm_name(family, "model.layers.0.mlp.down_proj") == want
    assert vllm_name(family, "model.visual.blocks.0.attn.proj") == "visual.blocks.0.attn.proj"


def test_names_of_an_unknown_family_are_not_known_to_vllm() -> None:
    family = family_of("brand_new")
    assert not family.known
    assert vllm_name(family, "model.layers.0.mlp.down_proj") is None


def test_a_text_part_has_the_family_of_its_model() -> None:
    assert family_of("qwen3_vl_text") is family_of("qwen3_vl")
    assert "gemma3_text" in family_of("gemma3_text").types


def test_w1_and_w3_fuse_in_a_shared_expert_and_stay_apart_elsewhere() -> None:
    family = family_of("deepseek_v4")
    assert fused_name(family, "layers.0.ffn.shared_experts.w1") == "layers.0.ffn.shared_experts.gate_up_proj"
    assert fused_name(family, "layers.0.ffn.w1") == "layers.0.ffn.w1"


def test_vllm_renames_inside_a_name() -> None:
    family = family_of("deepseek_v4")
    assert vllm_name(family, "layers.0.ffn.shared_experts.w2") == "model.layers.0.ffn.shared_experts.down_proj"
    assert vllm_name(family, "layers.0.ffn.experts.3.w2") == "model.layers.0.ffn.experts"


def test_sizes_come_from_heads_and_head_dim_where_both_are_stated() -> None:
    sizes = dimensions({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32})
    assert (sizes["heads"].size, sizes["kv"].size) == (128, 64)
    assert dimensions({"hidden_size": 64, "num_attention_heads": 4})["heads"].size == 64
