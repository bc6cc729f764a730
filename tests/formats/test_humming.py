"""Humming standard folders: fields and aliases, `dynamic`, ignore lists, stacked names; one folder a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.standard.numbers import scale_values, values
from humming_convert.standard.packing import stream_pack
from humming_convert.standard.packing_ct import zero_words
from tests.formats.folders import BF16, E4M3, E5M2, E8M0, MODULE, Array, clean, codes, e4m3_codes, factors, named, reading_of

UINT4 = {"quant_method": "humming", "b_dtype": "uint4", "weight_scale_group_size": 32}


def uint(bits: int = 4, scale: Array | None = None, **more: Any) -> dict[str, Any]:
    return {"weight": stream_pack(codes(bits), bits), "weight_scale": factors(32, 4) if scale is None else scale, **more}


@pytest.mark.parametrize("bits", range(1, 9))
def test_integers_are_offset_binary(tmp_path: Path, bits: int) -> None:
    got = clean(reading_of(tmp_path, {**UINT4, "b_dtype": f"uint{bits}"}, named(uint(bits))))
    np.testing.assert_array_equal(
        got.weight(), (codes(bits).astype(float) - (1 << (bits - 1))) * np.repeat(factors(32, 4).astype(float), 32, 1)
    )
    assert got.layer.family == "humming"


def test_a_signed_integer_is_read_as_the_unsigned_one(tmp_path: Path) -> None:
    assert clean(reading_of(tmp_path, {**UINT4, "b_dtype": "int4"}, named(uint()))).layer.form.number.name == "uint4"


@pytest.mark.parametrize("name", ["float4e2m1", "float4e0m3", "float5e0m4", "float6e2m3", "float6e3m2", "float8e4m3", "float8e5m2"])
def test_floats_are_read_by_their_name(tmp_path: Path, name: str) -> None:
    bits = int(name[5])
    c = e4m3_codes() & 0x7B if name == "float8e5m2" else e4m3_codes() if name == "float8e4m3" else codes(bits)
    tensors = {"weight": stream_pack(c, bits), "weight_scale": factors(32, 4)}
    got = clean(reading_of(tmp_path, {**UINT4, "b_dtype": name}, named(tensors)))
    np.testing.assert_array_equal(got.weight(), values(name)[c] * np.repeat(factors(32, 4).astype(float), 32, 1))


BYTES = (np.arange(128).reshape(32, 4) + 60).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("float8e8m0", BYTES.view(E8M0)),
        ("float8e8m0", BYTES),
        ("float8e4m3", (BYTES % 100).view(E4M3)),
        ("float8e5m2", (BYTES % 100).view(E5M2)),
        ("float8e5m3", BYTES),
        ("bfloat16", factors(32, 4)),
    ],
    ids=["e8m0", "e8m0 bytes", "e4m3", "e5m2", "e5m3", "bf16"],
)
def test_scale_types_are_kept(tmp_path: Path, name: str, stored: Array) -> None:
    got = clean(reading_of(tmp_path, {**UINT4, "bs_dtype": name}, named(uint(scale=stored))))
    assert got.layer.form.scale.dtype == name
    want = scale_values(stored, name)
    np.testing.assert_array_equal(got.weight(), (codes(4).astype(float) - 8) * np.repeat(want, 32, 1))


@pytest.mark.parametrize("floating", [False, True])
def test_zero_points_are_integers_or_floats(tmp_path: Path, floating: bool) -> None:
    z = codes(4, 32, 4)
    stored = z.astype(np.float32).astype(BF16) if floating else zero_words(z, 4)
    q = {**UINT4, "has_zero_point": True, "is_fp_zero_point": floating}
    got = clean(reading_of(tmp_path, q, named(uint(zero_point=stored))))
    assert got.layer.form.zero_point == ("fp" if floating else "int")
    np.testing.assert_array_equal(got.value("zero_point"), stored)


@pytest.mark.parametrize(("kind", "stored"), [("tensor", np.float32([0.3])), ("channel", factors(32))])
def test_second_scales_are_one_or_one_a_row(tmp_path: Path, kind: str, stored: Array) -> None:
    got = clean(reading_of(tmp_path, {**UINT4, "weight_scale_2_type": kind}, named(uint(weight_scale_2=stored))))
    assert got.layer.form.scale_2 == kind
    np.testing.assert_array_equal(got.value("weight_scale_2"), stored)


@pytest.mark.parametrize(
    ("fields", "scale", "kind"),
    [
        ({"weight_scale_group_size": 0}, factors(32, 1), "channel"),
        ({"weight_scale_group_size": 64, "weight_scale_group_size_n": 16}, factors(2, 2, dtype=np.float32), "block"),
        ({"weight_scale_type": "tensor", "weight_scale_group_size": 0}, np.float32([0.5]), "tensor"),
        ({"weight_scale_type": "group", "weight_scale_group_size": 128}, factors(32, 1), "group"),
    ],
)
def test_the_kind_of_scale_follows_from_the_fields(tmp_path: Path, fields: Any, scale: Array, kind: str) -> None:
    got = clean(reading_of(tmp_path, {**UINT4, **fields}, named(uint(scale=scale))))
    assert got.layer.form.scale.kind == kind
    assert got.weight().shape == (32, 128)


def test_aliases_stand_for_canonical_names_which_win(tmp_path: Path) -> None:
    q = {"quant_method": "humming", "weight_dtype": "uint4", "scale_type": "group", "group_size": 64, "weight_scale_group_size": 32}
    got = reading_of(tmp_path, q, named(uint()))
    assert got.layer.form.scale.k == 32


def test_the_first_matching_override_wins_and_others_are_not_merged(tmp_path: Path) -> None:
    dynamic = {
        "+:.*up_proj": {"b_dtype": "uint8"},
        "+:.*mlp.*": {"b_dtype": "uint3", "weight_scale_group_size": 64},
        "-:.*self_attn.*": {},
        "x": {"b_dtype": "uint1"},
    }
    tensors = {**named(uint(8)), **named(uint(3, factors(32, 2)), MODULE.replace("up", "down"))}
    got = clean(reading_of(tmp_path, {**UINT4, "dynamic": dynamic}, tensors))
    assert {n.rpartition(".")[2]: x.form.number.name for n, x in got.layers.items()} == {"up_proj": "uint8", "down_proj": "uint3"}


@pytest.mark.parametrize(
    ("pattern", "module"), [(r"+:.*gate_up_proj$", MODULE), (r"+:.*mlp\.experts$", "model.layers.0.mlp.experts.3.up_proj")]
)
def test_overrides_of_a_fused_layer_reach_its_parts(tmp_path: Path, pattern: str, module: str) -> None:
    got = clean(reading_of(tmp_path, {**UINT4, "dynamic": {pattern: {"b_dtype": "uint8"}}}, named(uint(8), module)))
    assert got.layer.form.number.name == "uint8"


def test_stacked_names_are_layers(tmp_path: Path) -> None:
    experts, c, scale = "model.layers.0.mlp.experts", codes(4, 32, 128, 2), factors(2, 32, 4)
    tensors = {
        f"{experts}.{p}{tail}": x
        for p in ("gate_up_proj", "down_proj")
        for tail, x in (("", stream_pack(c, 4)), ("_scale", scale), ("_bias", factors(2, 32)))
    }
    got = clean(reading_of(tmp_path, UINT4, tensors))
    assert set(got.layers) == {f"{experts}.gate_up_proj", f"{experts}.down_proj"} and got.passed == ()
    for e in range(2):
        np.testing.assert_array_equal(got.codes(f"{experts}.down_proj", e), c[e])


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, None),
        ({"a_dtype": "bfloat16"}, None),
        ({"a_dtype": "float8e4m3"}, ("float8e4m3", "dynamic_token", 0, "float32")),
        ({"a_dtype": "int8", "input_scale_group_size": 128}, ("int8", "dynamic_group", 128, "float32")),
        ({"input_dtype": "float8e4m3", "quant_mode": "static_tensor"}, ("float8e4m3", "static_tensor", 0, "float32")),
    ],
)
def test_activations_come_from_the_fields_of_the_input(tmp_path: Path, fields: Any, want: Any) -> None:
    form = clean(reading_of(tmp_path, {**UINT4, **fields}, named(uint()))).layer.declared
    assert want == (None if form is None else (form.number.name, form.mode, form.group, form.scale_dtype))


@pytest.mark.parametrize("role", ["input_scale", "input_scale_2"])
def test_static_input_scales_are_kept(tmp_path: Path, role: str) -> None:
    got = clean(reading_of(tmp_path, UINT4, named(uint(**{role: np.float32([0.25])}))))
    np.testing.assert_array_equal(got.value(role), np.float32([0.25]))


# ------------------------------------------------------------------ rules
@pytest.mark.parametrize(
    "fields",
    [
        {"b_dtype": "uint4x"},
        {"b_dtype": None},
        {"b_dtype": "float8e8m0"},
        {"b_dtype": "float16"},
        {"bs_dtype": "float9"},
        {"weight_scale_type": "row"},
        {"a_dtype": "int9"},
        {"a_dtype": "int8", "input_quant_mode": "static"},
    ],
)
def test_rule_humming_dtype(tmp_path: Path, fields: Any) -> None:
    got = reading_of(tmp_path, {**UINT4, **fields}, named(uint()))
    said = next(v for v in reversed(fields.values()))
    assert str(said or "b_dtype") in got.finding("humming-dtype").message


@pytest.mark.parametrize(
    ("fields", "second"),
    [
        ({"weight_scale_2_type": "tensor", "weight_scale_group_size": 64, "weight_scale_group_size_n": 16}, np.float32([1])),
        ({"weight_scale_2_type": "channel", "weight_scale_group_size": 0}, factors(32)),
        ({"weight_scale_2_type": "row"}, np.float32([1])),
        ({}, np.float32([1])),
    ],
)
def test_rule_humming_scale_2(tmp_path: Path, fields: Any, second: Array) -> None:
    assert (
        "weight_scale_2" in reading_of(tmp_path, {**UINT4, **fields}, named(uint(weight_scale_2=second))).finding("humming-scale-2").message
    )


def test_rule_humming_block(tmp_path: Path) -> None:
    q = {**UINT4, "weight_scale_group_size": 96, "weight_scale_group_size_n": 16}
    got = reading_of(tmp_path, q, named(uint(scale=factors(2, 2, dtype=np.float32))))
    assert got.finding("humming-block").tensor == f"{MODULE}.weight_scale"


def test_rule_humming_hadamard(tmp_path: Path) -> None:
    reading_of(tmp_path, {**UINT4, "hadamard_block_size": 64}, named(uint())).finding("humming-hadamard")


@pytest.mark.parametrize("fields", [{"dynamic": {"+:(": {"b_dtype": "uint8"}}}, {"ignore": ["re:("]}])
def test_rule_humming_regex(tmp_path: Path, fields: Any) -> None:
    reading_of(tmp_path, {**UINT4, **fields}, named(uint())).finding("humming-regex")


@pytest.mark.parametrize(
    ("fields", "zeros"),
    [
        ({}, zero_words(codes(4, 32, 4), 4)),
        ({"has_zero_point": True, "b_dtype": "float4e2m1"}, zero_words(codes(4, 32, 4), 4)),
        ({"has_zero_point": True, "weight_scale_group_size_n": 32}, zero_words(codes(4, 32, 4), 4)),
    ],
)
def test_rule_humming_zero_point(tmp_path: Path, fields: Any, zeros: Array) -> None:
    scale = factors(1, 4, dtype=np.float32) if "weight_scale_group_size_n" in fields else None
    got = reading_of(tmp_path, {**UINT4, **fields}, named(uint(scale=scale, zero_point=zeros)))
    got.finding("humming-zero-point")
    assert not got.layers


def test_rule_humming_alias(tmp_path: Path) -> None:
    got = reading_of(tmp_path, {"quant_method": "humming", "dtype": "uint4", "group_size": 32}, named(uint()))
    got.finding("humming-alias")
    assert got.layer.form.number.name == "uint4" and got.layer.declared is None


@pytest.mark.parametrize("fields", [{"ignore": ["re:.*up_proj"]}, {"modules_to_not_convert": ["mlp.up"]}, {"dynamic": {"-:.*mlp.*": {}}}])
def test_a_module_that_is_left_out_but_packed_is_read_with_a_warning(tmp_path: Path, fields: Any) -> None:
    got = reading_of(tmp_path, {**UINT4, **fields}, named(uint()))
    assert got.codes_found == ["ignored-quantized"] and len(got.layers) == 1


@pytest.mark.parametrize(
    ("tensors", "suffix"),
    [
        (uint(scale=factors(32, 3)), "weight_scale"),
        (uint(scale=factors(4, 32)), "weight_scale"),
        ({**uint(), "weight": stream_pack(codes(4), 4)[:, :-1]}, "weight"),
        (uint(bias=factors(31)), "bias"),
    ],
    ids=["columns", "transposed", "words", "bias"],
)
def test_shapes_are_those_of_the_fields(tmp_path: Path, tensors: Any, suffix: str) -> None:
    got = reading_of(tmp_path, UINT4, named(tensors))
    assert got.finding("tensor-shape").tensor == f"{MODULE}.{suffix}" and not got.layers
