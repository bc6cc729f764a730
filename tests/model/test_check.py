"""Rules about what must be there: one test a rule, named by its code."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from humming_convert.findings import Finding, Findings
from humming_convert.model.check import check_model
from humming_convert.model.families import family_of
from humming_convert.standard.layer import StandardLayer
from tests.model.making import Memory, checkpoint

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "num_hidden_layers": 1,
}
SHAPES = {
    "self_attn.q_proj": (128, 128),
    "self_attn.k_proj": (64, 128),
    "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128),
    "mlp.gate_proj": (64, 128),
    "mlp.up_proj": (64, 128),
    "mlp.down_proj": (128, 64),
}


def decoder(memory: Memory, **changed: tuple[int, int] | None) -> list[StandardLayer]:
    """One llama layer; keyword: another shape of a leaf, None: absent."""
    shapes = {name: changed.get(name.rpartition(".")[2], shape) for name, shape in SHAPES.items()}
    return [memory.layer(f"model.layers.0.{name}", n=s[0], k=s[1], group=32) for name, s in shapes.items() if s is not None]


def found(layers: list[StandardLayer], config: dict[str, Any] = CONFIG, plain: dict[str, tuple[int, int]] | None = None) -> list[Finding]:
    findings = Findings()
    check_model(checkpoint(config, plain), family_of(config["model_type"]), layers, plain or {}, findings)
    return list(findings)


def test_a_whole_model_has_no_findings() -> None:
    assert found(decoder(Memory())) == []


def test_rule_part_missing() -> None:
    (f,) = found(decoder(Memory(), up_proj=None))
    assert (f.severity, f.code, f.layer) == ("error", "part-missing", "model.layers.0.mlp.up_proj")


def test_a_part_that_is_plain_is_not_missing() -> None:
    assert found(decoder(Memory(), up_proj=None), plain={"model.layers.0.mlp.up_proj.weight": (64, 128)}) == []


def test_shared_keys_and_values_are_only_a_warning() -> None:
    (f,) = found(decoder(Memory(), v_proj=None), {**CONFIG, "attention_k_eq_v": True})
    assert (f.severity, f.code) == ("warning", "part-missing")


def test_rule_shape_config() -> None:
    (f,) = found(decoder(Memory(), v_proj=(32, 128)))
    assert f.code == "shape-config" and f.layer == "model.layers.0.self_attn.v_proj"
    assert "N 32" in f.message and "num_key_value_heads 1 x head_dim 64" in f.message


def test_a_wrong_hidden_size_is_named() -> None:
    assert {f.code for f in found(decoder(Memory()), {**CONFIG, "hidden_size": 300})} == {"shape-config"}
    assert any("hidden_size 300" in f.message for f in found(decoder(Memory()), {**CONFIG, "hidden_size": 300}))


def test_an_intermediate_size_padded_by_the_author_is_a_warning() -> None:
    layers = decoder(Memory(), gate_proj=(96, 128), up_proj=(96, 128), down_proj=(128, 96))
    assert {(f.severity, f.code) for f in found(layers)} == {("warning", "shape-config")}


def test_shapes_of_plain_matrices_are_checked_too() -> None:
    layers = decoder(Memory(), o_proj=None)
    (f,) = found(layers, plain={"model.layers.0.self_attn.o_proj.weight": (128, 64)})
    assert f.code == "shape-config" and f.layer == "model.layers.0.self_attn.o_proj"


def test_rule_layer_missing() -> None:
    (f,) = found(decoder(Memory()), {**CONFIG, "num_hidden_layers": 3})
    assert (f.code, f.count) == ("layer-missing", 2)


def test_rule_fused_shapes() -> None:
    got = found(decoder(Memory(), k_proj=(64, 96)))
    (f,) = [f for f in got if f.code == "fused-shapes"]
    assert "q_proj has K 128" in f.message and "k_proj has K 96" in f.message


MOE = {"model_type": "qwen3_moe", "num_experts": 3}


def experts(memory: Memory, drop: tuple[str, ...] = (), count: int = 3) -> list[StandardLayer]:
    names = [f"model.layers.0.mlp.experts.{e}.{p}_proj" for e in range(count) for p in ("gate", "up", "down")]
    return [memory.layer(n, n=128, k=128) for n in names if not n.endswith(drop or ("none",))]


def test_rule_expert_missing() -> None:
    (f,) = found(experts(Memory(), ("1.up_proj",)), MOE)
    assert f.code == "expert-missing" and f.layer == "model.layers.0.mlp.experts.1.up_proj" and "up_proj" in f.message


def test_a_gap_in_the_numbers_is_named() -> None:
    (f,) = found(experts(Memory(), ("1.up_proj", "1.gate_proj", "1.down_proj")), MOE)
    assert f.code == "expert-missing" and "expert 1 of model.layers.0.mlp.experts is not in the checkpoint" in f.message


def test_rule_expert_count() -> None:
    (f,) = found(experts(Memory()), {**MOE, "num_experts": 5})
    assert f.code == "expert-count" and "num_experts 5" in f.message and "hold 3" in f.message
    (f,) = found(experts(Memory(), count=2), MOE)
    assert f.code == "expert-count" and "experts 2 are missing" in f.message


def test_rule_matrix_stacked() -> None:
    """A numbered expert, and a part of attention, whose tensor has a first axis of its own."""
    memory = Memory()
    whole = decoder(memory)
    odd = [replace(x, experts=1) if x.name.endswith("q_proj") else x for x in whole]
    (f,) = found(odd)
    assert (f.severity, f.code, f.layer) == ("error", "matrix-stacked", "model.layers.0.self_attn.q_proj")
    expert = memory.layer("model.layers.0.mlp.experts.0.down_proj", n=128, k=64, group=32)
    codes = [x.code for x in found([*whole, replace(expert, experts=1)])]
    assert "matrix-stacked" in codes


@pytest.mark.parametrize(("leaf", "shape"), [("gate_proj", (32, 128)), ("up_proj", (96, 128)), ("down_proj", (128, 32))])
def test_rule_mlp_shapes(leaf: str, shape: tuple[int, int]) -> None:
    config = {k: v for k, v in CONFIG.items() if k != "intermediate_size"}
    (f,) = found(decoder(Memory(), **{leaf: shape}), config)
    assert (f.severity, f.code) == ("error", "mlp-shapes") and str(shape[leaf == "down_proj"]) in f.message


def test_an_expert_of_another_size_than_its_neighbours_is_named() -> None:
    memory = Memory()
    layers = []
    for e, inner in enumerate((64, 64, 32)):
        for p, (n, k) in {"gate_proj": (inner, 128), "up_proj": (inner, 128), "down_proj": (128, inner)}.items():
            layers.append(memory.layer(f"model.layers.0.mlp.experts.{e}.{p}", n=n, k=k, group=32))
    config = {"model_type": "qwen3_moe", "hidden_size": 128, "num_experts": 3, "num_hidden_layers": 1}
    odd = [f for f in found(layers, config) if f.code == "mlp-shapes"]
    assert [f.layer for f in odd] == ["model.layers.0.mlp.experts.2.gate_proj"] and "experts.0 has 64" in odd[0].message


def test_rule_bias_missing() -> None:
    """Qwen2 has biases on q, k and v whatever its config says; Llama has none."""
    codes = [f.code for f in found(decoder(Memory()), {**CONFIG, "model_type": "qwen2"})]
    assert codes == ["bias-missing"] * 3
    assert found(decoder(Memory())) == []


@pytest.mark.parametrize("fused", ["self_attn.qkv_proj", "mlp.gate_up_proj"])
@pytest.mark.parametrize("is_plain", [False, True])
def test_rule_fused_twice(fused: str, is_plain: bool) -> None:
    memory, name = Memory(), f"model.layers.0.{fused}"
    layers = decoder(memory) + ([] if is_plain else [memory.layer(name, n=128, k=128, group=32)])
    codes = [(f.code, f.layer) for f in found(layers, plain={f"{name}.weight": (128, 128)} if is_plain else None)]
    assert ("fused-twice", name) in codes


def test_rule_fused_twice_for_experts() -> None:
    memory = Memory()
    stack = replace(memory.layer("model.layers.0.mlp.experts.down_proj", n=128, k=64, group=32), experts=1)
    assert "fused-twice" in [f.code for f in found([*experts(memory), stack], MOE)]


@pytest.mark.parametrize("count", [10**5, 10**12])
def test_huge_numbers_of_a_config_take_no_time(count: int) -> None:
    assert [f.code for f in found(experts(Memory()), {**MOE, "num_experts": count})] == ["expert-count"]
    assert [f.code for f in found(decoder(Memory()), {**CONFIG, "num_hidden_layers": count})] == ["layer-missing"]


def test_a_huge_number_in_a_name_takes_no_time() -> None:
    memory = Memory()
    far = [
        replace(x, name=x.name.replace("experts.1.", f"experts.{10**12}."), parts=(x.name.replace("experts.1.", f"experts.{10**12}."),))
        for x in experts(memory)
    ]
    assert {"expert-count", "expert-missing"} == {f.code for f in found(far, MOE)}


GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": 2, "num_hidden_layers": 1}


def gpt_oss_gaps(config: dict[str, Any], *biases: str) -> list[str]:
    """Names without a bias in a layer of gpt-oss: two stacks of experts, an attention and a router that are plain."""
    memory, layer = Memory(), "model.layers.0"
    stacks = [replace(memory.layer(f"{layer}.mlp.experts.{name}", n=64, k=64), experts=2) for name in ("gate_up_proj", "down_proj")]
    plain = {f"{layer}.self_attn.{name}.weight": (64, 64) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    plain |= {f"{layer}.mlp.router.weight": (2, 64), **{f"{layer}.{name}": (64,) for name in biases}}
    lost = [f for f in found(stacks, config, plain) if f.code == "bias-missing"]
    return [str(f.tensor).removeprefix(f"{layer}.") for f in lost]


def test_experts_attention_and_router_of_gpt_oss_have_biases() -> None:
    attention = [f"self_attn.{name}.bias" for name in ("k_proj", "o_proj", "q_proj", "v_proj")]
    others = ["mlp.experts.down_proj_bias", "mlp.experts.gate_up_proj_bias", "mlp.router.bias"]
    assert gpt_oss_gaps(GPT_OSS) == [*others, *attention]
    assert gpt_oss_gaps(GPT_OSS, *others, *attention) == []
    assert gpt_oss_gaps({**GPT_OSS, "attention_bias": False}, *others) == []
    for name in [*others, *attention]:
        assert gpt_oss_gaps(GPT_OSS, *({*others, *attention} - {name})) == [name]


@pytest.mark.parametrize("leaf", ["gate", "router"])
def test_rule_router_shape(leaf: str) -> None:
    name = f"model.layers.0.mlp.{leaf}.weight"
    assert found(experts(Memory()), MOE, plain={name: (3, 128)}) == []
    (f,) = found(experts(Memory()), MOE, plain={name: (2, 128)})
    assert (f.severity, f.code, f.tensor) == ("error", "router-shape", name) and "2 rows" in f.message


@pytest.mark.parametrize("count", [0, -1, "two", 1.5, True])
def test_a_number_of_layers_that_is_none_is_refused(count: object) -> None:
    assert [f.code for f in found(decoder(Memory()), {**CONFIG, "num_hidden_layers": count})] == ["config-invalid"]
