"""Names of unquantized tensors."""

from __future__ import annotations

import pytest

from humming_convert.serve.names import has_kv_scales, holds_module, tail


@pytest.mark.parametrize(
    ("prefix", "want"),
    [
        ("model.layers.5.mlp.experts", "layers.5.mlp.experts"),
        ("language_model.model.layers.0.mlp.experts", "layers.0.mlp.experts"),
        ("lm_head", "lm_head"),
        ("model.visual.merger.linear_fc1", "merger.linear_fc1"),
        ("3.experts", "3.experts"),
    ],
)
def test_the_tail_of_a_prefix_begins_before_its_first_number(prefix: str, want: str) -> None:
    assert tail(prefix) == want


def test_a_module_is_held_if_a_tensor_of_it_is_there_under_any_beginning() -> None:
    names = ["model.language_model.layers.15.mlp.experts.0.gate_proj.weight"]
    assert holds_module(names, "language_model.model.layers.15.mlp.experts")
    assert not holds_module(names, "language_model.model.layers.5.mlp.experts")
    assert not holds_module(names, "model.layers.15.mlp.experts_of_others")


def test_scales_of_the_kv_cache_are_known_by_their_last_word() -> None:
    assert has_kv_scales(["model.layers.0.self_attn.k_proj.k_scale"]) and has_kv_scales(["x.attn.v_scale"])
    assert not has_kv_scales(["model.layers.0.self_attn.k_proj.weight_scale", "k_scale_of.weight"])
