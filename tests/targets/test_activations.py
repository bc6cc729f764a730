"""Activations by name (architecture.md 9.2)."""

from __future__ import annotations

import pytest

from humming_convert.targets.activations import ACTS, act_name, activation

TABLE = [
    ("bf16", "bfloat16", "none", 0, None),
    ("fp8", "float8e4m3", "dynamic_token", 0, "float32"),
    ("fp8-e5m2", "float8e5m2", "dynamic_token", 0, "float32"),
    ("e3m4", "float8e3m4", "dynamic_token", 0, "float32"),
    ("int8", "int8", "dynamic_token", 0, "float32"),
    ("int4", "int4", "dynamic_token", 0, "float32"),
    ("e0m3", "float4e0m3", "dynamic_token", 0, "float32"),
    ("fp8:128", "float8e4m3", "dynamic_group", 128, None),
    ("int8:static", "int8", "static_tensor", 0, "float32"),
    ("mxfp8", "float8e4m3", "dynamic_group", 32, "float8e8m0"),
    ("mxfp4", "float4e2m1", "dynamic_group", 32, "float8e8m0"),
    ("nvfp4", "float4e2m1", "dynamic_group", 16, "float8e4m3"),
]


@pytest.mark.parametrize(("name", "number", "mode", "group", "scale"), TABLE)
def test_a_name_is_a_form(name: str, number: str, mode: str, group: int, scale: str | None) -> None:
    form = activation(name, "BF16")
    assert (form.number.name, form.mode, form.group, form.scale_dtype) == (number, mode, group, scale)
    assert act_name(form) == name


def test_nvfp4_uses_static_scales_where_every_part_has_one() -> None:
    form = activation("nvfp4", "BF16", static=True)
    assert form.mode == "static_tensor_dynamic_group"
    assert act_name(form) == "nvfp4"


@pytest.mark.parametrize(("name", "dtype"), [("bf16", "F16"), ("fp16", "BF16")])
def test_a_16_bit_activation_other_than_the_model_is_an_error_with_the_way_out(name: str, dtype: str) -> None:
    with pytest.raises(ValueError, match=f"--dtype {name}"):
        activation(name, dtype)


@pytest.mark.parametrize(("name", "suggestion"), [("fp9", "fp8"), ("nvfp", "nvfp4"), ("fp8:x", "fp8"), ("fp8:0", "fp8")])
def test_an_unknown_activation_gets_suggestions(name: str, suggestion: str) -> None:
    with pytest.raises(ValueError, match=suggestion):
        activation(name, "BF16")


def test_every_listed_name_can_be_read_back() -> None:
    for name in ACTS:
        assert act_name(activation(name, "F16" if name == "fp16" else "BF16")) == name
