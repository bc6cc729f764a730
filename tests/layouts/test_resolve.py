"""Recipes: questions, entries, pads, versions and refusals."""

from __future__ import annotations

from typing import Any

import layer_maker as make
import pytest

from humming_convert.findings import Refused
from humming_convert.layouts import Answers, prepare, questions, resolve
from humming_convert.layouts.config import LayerRecipe
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.table import TARGETS, find_target


def recipe(
    form: Any,
    act: str = "bf16",
    target: str = "sm90",
    *,
    n: int = 128,
    k: int = 256,
    param: str = "BF16",
    static: bool = False,
    **more: Any,
) -> LayerRecipe:
    options: dict[str, Any] = {
        "experts": None,
        "stack_n": (n,),
        "env": Environment(),
        "has_bias": False,
        "answers": Answers(no_zero_code=False, tensor_scales_equal=True, range_fit=False, fp16_range=False, zero_points_shift=False),
        "pad_n": 256,
        "pad_k": 128,
        "entry": "vllm",
        "e0m": True,
    }
    made = activation(act, param, static=static)
    return resolve(n=n, k=k, form=form, input=made, target=find_target(target), param_dtype=param, **(options | more))


def code(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(Refused) as refused:
        recipe(*args, **kwargs)
    finding = refused.value.findings[0]
    assert finding.advice
    return finding.code


def asked(form: Any, act: str, target: str = "sm90", entry: str = "vllm", param: str = "BF16", **more: Any) -> tuple[str, ...]:
    return questions(form, activation(act, param), find_target(target), more.pop("env", Environment()), entry, param_dtype=param, **more)


MXFP4 = make.form("float4e2m1", k=32, dtype="float8e8m0")
NVFP4 = make.form("float4e2m1", k=16, dtype="float8e4m3", scale_2="tensor")


@pytest.mark.parametrize(
    ("form", "act", "entry", "more", "want"),
    [
        (make.form("uint4"), "bf16", "vllm", {}, ("no_zero_code",)),
        (make.form("uint4"), "bf16", "vllm", {"e0m": False}, ()),
        (make.form("uint1"), "bf16", "vllm", {}, ()),
        (make.form("uint4"), "int8", "vllm", {}, ("no_zero_code",)),
        (make.form("uint4"), "int8", "humming-layer", {}, ()),
        (make.form("uint4", zero_point="int"), "bf16", "vllm", {}, ()),
        (make.form("uint4", zero_point="fp"), "bf16", "vllm", {}, ()),
        (NVFP4, "bf16", "vllm", {"parts": 3}, ("tensor_scales_equal",)),
        (NVFP4, "bf16", "vllm", {"parts": 1}, ()),
        (MXFP4, "fp8", "vllm", {}, ("range_fit",)),
        (MXFP4, "int8", "vllm", {}, ()),
        (MXFP4, "bf16", "vllm", {}, ()),
    ],
)
def test_a_layer_asks_only_what_its_bytes_depend_on(form: Any, act: str, entry: str, more: dict[str, Any], want: tuple[str, ...]) -> None:
    assert asked(form, act, entry=entry, **more) == want


def test_0_1_19_asks_whether_floating_zero_points_can_be_shifted() -> None:
    old = Environment(humming_version="0.1.19")
    assert asked(make.form("uint4", zero_point="fp"), "bf16", env=old) == ("zero_points_shift", "no_zero_code")
    assert asked(MXFP4, "fp8", env=old) == ()


def test_only_the_layer_entry_moves_scales_into_the_range_of_float16() -> None:
    assert asked(MXFP4, "fp16", entry="humming-layer", param="F16") == ("fp16_range",)
    assert asked(MXFP4, "fp16", entry="vllm", param="F16") == ()


def test_an_open_question_is_named() -> None:
    with pytest.raises(ValueError, match="no_zero_code"):
        recipe(make.form("uint4"), answers=Answers())


OLD = Environment(humming_version="0.1.19")


@pytest.mark.parametrize(
    ("want", "form", "act", "more"),
    [
        ("schema_incompatible", make.form("uint8"), "fp8", {}),
        ("equal_bits_zero_point", make.form("uint8", zero_point="int"), "int8", {}),
        ("interleave_undefined", make.form("uint8", "channel"), "nvfp4", {"target": "sm120", "entry": "direct"}),
        ("split_group_below_mma_k", make.form("uint4", k=48), "int8", {"k": 384, "entry": "direct"}),
        ("split_group_with_group_input_scale", make.form("uint4", k=96), "int8:32", {"k": 384, "entry": "direct"}),
        ("k_not_multiple_of_group", make.form("uint4"), "bf16", {"k": 192}),
        ("n_not_multiple_of_64", make.form("uint4"), "bf16", {"n": 96, "pad_n": 1}),
        ("n_not_multiple_of_64", make.form("float8e4m3", "channel"), "fp8", {"n": 96, "pad_n": 1}),  # flat
        ("k_not_multiple_of_tile", make.form("uint4", "channel"), "bf16", {"k": 144, "pad_k": 1}),
        ("e0m_k_not_multiple_of_32", make.form("uint4", k=48), "bf16", {"k": 144, "env": OLD, "answers": Answers(no_zero_code=False)}),
        ("zero_point_groups_uneven", make.form("uint4", k=48, zero_point="int"), "fp8", {"k": 192, "pad_k": 256, "env": OLD}),
        ("row_not_whole_codes", make.form("uint3", "channel"), "bf16", {"k": 100}),
        ("tensor_dtype", make.form("uint4", dtype="float16"), "int8", {}),
        ("tensor_dtype", make.form("float4e2m1", k=32, dtype="float8e8m0", scale_2="tensor"), "int8", {}),
        ("scale_group_not_legal", make.form("uint4", "group", 0), "bf16", {}),
        ("zero_point_needs_group_or_channel", make.form("uint4", "tensor", dtype="float32", zero_point="int"), "bf16", {}),
        ("secondary_scale_not_legal", make.form("uint4", "channel", scale_2="channel"), "bf16", {}),
        ("secondary_input_scale_needs_block_scaled_mma", NVFP4, "nvfp4", {"target": "sm90", "entry": "direct", "static": True}),
        (
            "e5m2_activation_needs_bf16_output",
            make.form("uint4", "channel", dtype="float16"),
            "fp8-e5m2",
            {"param": "F16", "entry": "direct"},
        ),
        ("tensor_shape", NVFP4, "bf16", {"stack_n": (64, 64), "entry": "humming-layer"}),
        ("tensor_shape", NVFP4, "bf16", {"stack_n": (64, 32)}),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(want: str, form: Any, act: str, more: dict[str, Any]) -> None:
    assert code(form, act, **more) == want


def test_shapes_are_padded_to_the_multiples_and_recorded() -> None:
    r = recipe(make.form("uint4"), n=300, k=128, has_bias=True)
    c = r.config
    assert (c.shape_n, c.shape_k, c.pad_shape_n, c.pad_shape_k) == (512, 128, 212, 0)
    assert r.outputs == {"weight": ("I32", (8, 1024)), "weight_scale": ("BF16", (1, 512)), "bias": ("BF16", (512,))}


def test_outputs_lead_with_the_experts_axis() -> None:
    r = recipe(NVFP4, experts=5, stack_n=(64, 64))
    assert r.outputs["weight"][1][0] == r.outputs["weight_scale"][1][0] == 5
    assert r.outputs["weight_scale_2"] == ("F32", (5,))
    assert r.config.num_experts == 5


@pytest.mark.parametrize("target", [t.name for t in TARGETS if t.sm >= 80])
def test_outputs_of_every_target_are_what_prepare_makes(target: str) -> None:
    layer = make.layer(make.form("uint4", zero_point="int"), 128, 256, bias=True, experts=2)
    packed = prepare(layer, find_target(target), activation("bf16", "BF16"))
    for role, (_, shape) in packed.recipe.outputs.items():
        assert packed.tensors[role].shape == shape


def test_the_compiler_version_decides_native_dequantization() -> None:
    form = make.form("float4e2m1", k=32, dtype="float8e8m0")
    flags = [recipe(form, target="sm120", env=Environment(compiler=c)).flags["use_native_dequant"] for c in ((13, 0), (13, 2))]
    assert flags == [False, True]


def test_cubin_patching_decides_ldmatrix_dequantization() -> None:
    flags = [recipe(make.form("uint4"), "int8", env=Environment(cubin_patch=p)).flags["use_ldmatrix_dequant"] for p in (True, False)]
    assert flags == [True, False]


def test_groups_of_128_with_fp8_are_packed_along_k_on_hopper_only() -> None:
    assert recipe(make.form("uint4"), "fp8").weight.place == "packed_k"
    assert recipe(make.form("uint4", k=64), "fp8").weight.place == "standard"
    assert recipe(make.form("uint4"), "fp8", "sm89").weight.place == "standard"


def test_the_stored_configuration_has_the_fields_of_the_library_only() -> None:
    fields = (
        "sm_version shape_n shape_k pad_shape_n pad_shape_k num_experts b_dtype a_dtype c_dtype bs_dtype as_dtype input_quant_mode "
        "input_scale_group_size weight_scale_group_size weight_scale_group_size_n weight_scale_type weight_scale_2_type "
        "use_int_weight_scale use_fused_e8m0_scale has_zero_point is_fp_zero_point has_bias use_packed_k_layout"
    )
    assert list(recipe(make.form("uint4")).config.as_dict()) == fields.split()
