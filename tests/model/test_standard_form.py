"""The standard form: what stock vLLM can load, exactly where that is possible, with a warning where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from humming_convert.findings import Findings
from humming_convert.model.fuse import FusedModel
from humming_convert.model.options import ModelOptions
from humming_convert.model.standard_form import standard_model
from humming_convert.standard.layer import StandardLayer
from tests.model.making import Memory, checkpoint, names
from tests.model.test_fuse import ATTN, LLAMA, MLP, MOE, attention, experts

NVFP4: dict[str, Any] = {"kind": "float4e2m1", "group": 16, "dtype": "F8_E4M3"}


def standard(
    memory: Memory,
    layers: list[StandardLayer],
    config: dict[str, Any] = LLAMA,
    plain: tuple[str, ...] = (),
    read: bool = True,
    options: ModelOptions = ModelOptions(),
) -> tuple[FusedModel, Findings]:
    findings = Findings()
    model = standard_model(checkpoint(config), layers, plain, options, read=memory.read if read else None, findings=findings)
    return model, findings


def warned(findings: Findings) -> list[str | None]:
    return [f.layer for f in findings if f.code == "vllm-cannot-load"]


def test_modules_stay_apart_under_their_own_names_with_the_fused_prefix() -> None:
    memory = Memory()
    parts = attention(memory)
    model, findings = standard(memory, parts)
    assert sorted(names(model.layers)) == sorted(names(parts)) and not warned(findings)
    assert model.vllm[f"{ATTN}.q_proj"] == f"{ATTN}.qkv_proj"


def test_equal_secondary_scales_fuse_the_module_with_one_value() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {**NVFP4, "scale_2": 0.5} for p in "qkv"})
    model, findings = standard(memory, parts)
    (layer,) = [x for x in model.layers if x.name == f"{ATTN}.qkv_proj"]
    assert (
        layer.form.scale_2 == "tensor"
        and memory.values(layer.tensors["weight_scale_2"]).tolist() == [0.5]
        and layer.stack_n == (64, 32, 32)
    )
    np.testing.assert_array_equal(memory.numbers(layer), np.concatenate([memory.numbers(p) for p in parts[:3]]))
    assert not warned(findings)


@pytest.mark.parametrize("read", [True, False])
def test_unequal_secondary_scales_become_one_a_row(read: bool) -> None:
    memory = Memory()
    parts = attention(memory, q={**NVFP4, "scale_2": 0.5}, k={**NVFP4, "scale_2": 0.25}, v={**NVFP4, "scale_2": 0.25})
    model, findings = standard(memory, parts, read=read)
    layer = {x.name: x for x in model.layers}[f"{ATTN}.q_proj"]
    assert layer.form.scale_2 == "channel" and layer.tensors["weight_scale_2"].dtype == "BF16" and not warned(findings)
    np.testing.assert_array_equal(memory.numbers(layer), memory.numbers(parts[0]))


@pytest.mark.parametrize(("values", "kind"), [((0.5, 0.5, 0.5), "tensor"), ((0.5, 0.25, 0.5), "channel")])
def test_fp8_tensor_scales_fuse_where_equal_and_become_rows_where_not(values: tuple[float, ...], kind: str) -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"kind": "float8e4m3", "scale": "tensor", "value": v} for p, v in zip("qkv", values, strict=True)})
    model, findings = standard(memory, parts)
    forms = {x.name.rpartition(".")[2]: x.form.scale.kind for x in model.layers}
    assert forms["qkv_proj" if kind == "tensor" else "q_proj"] == kind and not warned(findings)


def test_blocks_of_a_fused_module_become_rows_and_stay_blocks_elsewhere() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"kind": "float8e4m3", "scale": "block"} for p in "qkvo"})
    forms = {x.name.rpartition(".")[2]: x.form.scale for x in standard(memory, parts)[0].layers}
    assert {forms[f"{p}_proj"].kind for p in "qkv"} == {"group"} and forms["o_proj"].kind == "block"


@pytest.mark.parametrize("bits", [3, 4, 5])
def test_zero_points_stay_on_linear_modules_but_for_5_bits(bits: int) -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"kind": f"uint{bits}", "zeros": True} for p in "qkvo"})
    model, findings = standard(memory, parts)
    by_name = {x.name: x for x in model.layers}
    q, o = by_name[f"{ATTN}.q_proj"], by_name[f"{ATTN}.o_proj"]
    assert q.recoded == ("uint5+zp->uint6" if bits == 5 else None) and o.recoded is None and not warned(findings)
    np.testing.assert_array_equal(memory.numbers(q), memory.numbers(parts[0]))


def test_symmetric_and_asymmetric_parts_meet_without_zero_points() -> None:
    memory = Memory()
    parts = attention(memory, q={"zeros": True})
    by_name = {x.name: x for x in standard(memory, parts)[0].layers}
    assert by_name[f"{ATTN}.q_proj"].recoded == "uint4+zp->uint5" and by_name[f"{ATTN}.k_proj"].recoded == "uint4->uint5"
    for p in parts:
        np.testing.assert_array_equal(memory.numbers(by_name[p.name]), memory.numbers(p))


def test_experts_lose_their_zero_points_all_together() -> None:
    memory = Memory()
    parts = experts(memory)
    parts[2] = memory.layer(parts[2].name, n=128, k=64, zeros=True)  # one down_proj
    model, findings = standard(memory, parts, MOE)
    assert {x.form.number.name for x in model.layers} == {"uint5"} and {x.form.zero_point for x in model.layers} == {"none"}
    assert not warned(findings) and {x.experts for x in model.layers} == {None}
    for p in parts:
        np.testing.assert_array_equal(memory.numbers({x.name: x for x in model.layers}[p.name]), memory.numbers(p))


def test_w13_and_w2_of_one_mixture_get_the_same_groups() -> None:
    memory = Memory()
    parts = experts(memory)
    parts = [memory.layer(p.name, n=p.n, k=p.k, scale="channel") if p.name.endswith("down_proj") else p for p in parts]
    forms = {x.form for x in standard(memory, parts, MOE)[0].layers}
    assert len(forms) == 1 and next(iter(forms)).scale.k == 64


def test_experts_have_their_secondary_scale_by_rows() -> None:
    memory = Memory()
    model, findings = standard(memory, experts(memory, **NVFP4, scale_2=0.5), MOE)
    assert {x.form.scale_2 for x in model.layers} == {"channel"} and not warned(findings)


def test_experts_without_a_kernel_are_warned_of() -> None:
    memory = Memory()
    _, findings = standard(memory, experts(memory, kind="float8e4m3", group=32, dtype="F32"), MOE)
    assert warned(findings) == [f"{MLP}.experts"]


def test_a_module_with_a_plain_part_is_warned_of() -> None:
    memory = Memory()
    parts = [p for p in attention(memory) if not p.name.endswith("v_proj")]
    _, findings = standard(memory, parts, plain=(f"{ATTN}.v_proj.weight",))
    assert warned(findings) == [f"{ATTN}.qkv_proj"] and not findings.errors


def test_a_module_with_a_plain_part_becomes_plain_where_that_is_allowed() -> None:
    memory = Memory()
    parts = [p for p in attention(memory) if not p.name.endswith("v_proj")]
    options = ModelOptions(on_mixed="dequantize")
    model, findings = standard(memory, parts, plain=(f"{ATTN}.v_proj.weight",), options=options)
    assert not warned(findings) and names(model.layers) == [f"{ATTN}.o_proj"]
    assert [(d.layer.name, d.step) for d in model.dequantize] == [(f"{ATTN}.{p}_proj", "mixed-dequantize") for p in "kq"]


def test_experts_without_a_kernel_are_no_mixture() -> None:
    memory = Memory()
    layers = experts(memory, kind="float8e4m3", group=32, dtype="F32")
    model, findings = standard(memory, layers, MOE, options=ModelOptions(on_mixed="dequantize"))
    assert warned(findings) == [f"{MLP}.experts"] and not model.dequantize


@pytest.mark.parametrize(
    ("model_type", "module", "warns"),
    [
        ("gpt_oss", "model.layers.0.mlp.experts.0.down_proj", True),
        ("gpt_oss", "model.layers.0.self_attn.o_proj", False),
        ("deepseek_v4", "layers.0.attn.wo_a", True),
        ("deepseek_v4", "layers.0.ffn.experts.0.w2", True),
    ],
)
def test_what_a_family_loads_by_code_of_its_own_is_warned_of(model_type: str, module: str, warns: bool) -> None:
    memory = Memory()
    _, findings = standard(memory, [memory.layer(module, n=64)], {"model_type": model_type})
    assert bool(warned(findings)) is warns


def test_blocks_of_a_module_fused_on_disk_become_rows() -> None:
    memory = Memory()
    layer = memory.layer(f"{ATTN}.qkv_proj", n=64, kind="float8e4m3", scale="block", group=32)
    model, findings = standard(memory, [layer], {"model_type": "phi3"})
    assert [(x.form.scale.kind, x.form.scale.k) for x in model.layers] == [("group", 32)] and not warned(findings)
    np.testing.assert_allclose(memory.numbers(model.layers[0]), memory.numbers(layer), rtol=2**-8)  # scales in bfloat16


def test_5_bits_with_zero_points_fused_on_disk_lose_them() -> None:
    memory = Memory()
    layer = memory.layer(f"{ATTN}.qkv_proj", n=64, kind="uint5", zeros=True)
    model, findings = standard(memory, [layer], {"model_type": "phi3"})
    assert [x.form.number.name for x in model.layers] == ["uint6"] and not warned(findings)
    np.testing.assert_array_equal(memory.numbers(model.layers[0]), memory.numbers(layer))


def test_a_kept_head_is_warned_of() -> None:
    memory, findings = Memory(), Findings()
    layers = [*attention(memory), memory.layer("lm_head", n=64)]
    standard_model(checkpoint(LLAMA), layers, (), ModelOptions(lm_head="keep"), read=memory.read, findings=findings)
    assert warned(findings) == ["lm_head"]


def test_nothing_of_an_unknown_family_is_rounded_for_its_neighbours() -> None:
    memory = Memory()
    parts = attention(memory, q={**NVFP4, "scale_2": 0.5}, k={**NVFP4, "scale_2": 0.25}, v={**NVFP4, "scale_2": 0.25})
    model, _ = standard(memory, parts, {"model_type": "brand_new"})
    assert {x.form.scale_2 for x in model.layers if x.name != f"{ATTN}.o_proj"} == {"tensor"} and set(model.vllm.values()) == {None}


@pytest.mark.parametrize(("bits", "warns"), [(4, []), (5, [f"{ATTN}.qkv_proj"])])
def test_what_an_unknown_family_may_fuse_is_warned_of_where_that_would_go_wrong(bits: int, warns: list[str]) -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"kind": f"uint{bits}", "zeros": True} for p in "qkvo"})
    _, findings = standard(memory, parts, {"model_type": "brand_new"})
    assert warned(findings) == warns


def test_an_unknown_family_is_brought_to_fused_forms_where_that_is_asked_for() -> None:
    memory = Memory()
    parts = attention(memory, **{p: {"kind": "uint5", "zeros": True} for p in "qkv"})
    model, findings = standard(memory, parts, {"model_type": "brand_new"}, options=ModelOptions(fuse="vllm"))
    assert {x.form.number.name for x in model.layers if x.name != f"{ATTN}.o_proj"} == {"uint6"} and not warned(findings)


def test_static_input_scales_are_left_out_with_a_note() -> None:
    memory = Memory()
    model, findings = standard(memory, attention(memory, o={"input_scale": 0.5}))
    assert not any("input_scale" in x.tensors for x in model.layers)
    assert [f.code for f in findings] == ["input-scale-dropped"]


def test_kv_scales_are_warned_of() -> None:
    memory = Memory()
    _, findings = standard(memory, attention(memory), plain=(f"{ATTN}.k_proj.k_scale", f"{ATTN}.v_proj.v_scale"))
    (f,) = [f for f in findings if f.code == "kv-scales-unread"]
    assert f.severity == "warning" and f.count == 2


def test_experts_in_one_tensor_are_warned_about_outside_gpt_oss() -> None:
    memory = Memory()
    stack = replace(memory.layer("model.layers.0.mlp.experts.gate_up_proj"), experts=1)
    _, findings = standard(memory, [stack])
    assert warned(findings) == [stack.name]
