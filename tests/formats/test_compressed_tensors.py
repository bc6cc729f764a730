"""compressed-tensors folders of known numbers, read to standard layers; one folder a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.formats.ct_config import Group, assign, input_form, named_by, spellings
from humming_convert.formats.excluded import Names
from humming_convert.standard.packing import stream_pack
from humming_convert.standard.packing_ct import padded_pack, zero_codes, zero_words
from tests.formats.folders import E4M3, MODULE, Array, Got, clean, codes, e4m3_codes, factors, named, pairs, reading_of

TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}


def config(
    fmt: str = "pack-quantized", *, targets: Any = ("Linear",), inputs: Any = None, top: Any = None, **weights: Any
) -> dict[str, Any]:
    w = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False, **weights}
    group = {"targets": list(targets), "weights": w, "input_activations": inputs, "format": fmt}
    return {"quant_method": "compressed-tensors", "format": fmt, "config_groups": {"group_0": group}, "ignore": [], **(top or {})}


def packed(c: Array, scale: Array, bits: int = 4, *, layout: str = "dense", zeros: Array | None = None, **more: Any) -> dict[str, Any]:
    """Tensors of one module; zeros: words as they are stored."""
    pack = padded_pack if layout == "padded" else stream_pack
    shape = np.array(c.shape[-2:], np.int64)
    return {"weight_packed": pack(c, bits), "weight_scale": scale, "weight_shape": shape, "weight_zero_point": zeros, **more}


def weights_of(c: Array, scale: Array, zero: Any) -> Array:
    """[n, k] float64 from codes, scales [n, groups] and zero point codes."""
    k, groups = c.shape[1], scale.shape[1]
    z = np.repeat(zero, -(-k // groups), 1)[:, :k] if isinstance(zero, np.ndarray) else zero
    return (c.astype(float) - z) * np.repeat(scale.astype(float), -(-k // groups), 1)[:, :k]


# ------------------------------------------------------------------ pack-quantized
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("layout", ["dense", "padded"])
def test_every_width_is_read_in_both_layouts(tmp_path: Path, bits: int, layout: str) -> None:
    c, scale = codes(bits), factors(32, 4)
    got = clean(reading_of(tmp_path, config(num_bits=bits), named(packed(c, scale, bits, layout=layout))))
    np.testing.assert_array_equal(got.codes(), c)
    np.testing.assert_array_equal(got.weight(), weights_of(c, scale, 1 << (bits - 1)))
    assert (got.layer.family, got.layer.form.number.name, got.layer.form.scale.k) == ("compressed-tensors", f"uint{bits}", 32)
    assert got.passed == ()


@pytest.mark.parametrize("bits", [3, 4, 5, 8])
@pytest.mark.parametrize("storage", ["dense", "padded", "int8", "float"])
def test_zero_points_are_read_however_they_are_stored(tmp_path: Path, bits: int, storage: str) -> None:
    c, scale, z = codes(bits), factors(32, 4), codes(bits, 32, 4)
    signed = z.astype(np.int16) - (1 << (bits - 1))
    stored = {
        "dense": zero_words(z, bits),
        "padded": np.ascontiguousarray(padded_pack(z.T, bits).T),
        "int8": signed.astype(np.int8),
        "float": signed.astype(np.float32),
    }[storage]
    got = clean(reading_of(tmp_path, config(num_bits=bits, symmetric=False), named(packed(c, scale, bits, zeros=stored))))
    np.testing.assert_array_equal(zero_codes(got.value("zero_point"), bits, 32), z)
    np.testing.assert_array_equal(got.weight(), weights_of(c, scale, z))


def test_weight_and_zero_points_choose_their_layouts_independently(tmp_path: Path) -> None:
    c, scale, z = codes(3), factors(32, 4), codes(3, 32, 4)
    tensors = packed(c, scale, 3, layout="padded", zeros=zero_words(z, 3))
    got = clean(reading_of(tmp_path, config(num_bits=3, symmetric=False), named(tensors)))
    np.testing.assert_array_equal(got.weight(), weights_of(c, scale, z))


def test_one_scale_a_row_is_channel(tmp_path: Path) -> None:
    c, scale = codes(4), factors(32, 1)
    got = clean(reading_of(tmp_path, config(strategy="channel", group_size=None), named(packed(c, scale))))
    assert got.layer.form.scale.kind == "channel"
    np.testing.assert_array_equal(got.weight(), weights_of(c, scale, 8))


def test_one_group_that_is_declared_stays_a_group(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, config(group_size=128), named(packed(codes(4), factors(32, 1)))))
    assert (got.layer.form.scale.kind, got.layer.form.scale.k) == ("group", 128)


def test_one_scale_for_the_matrix_is_a_float32_factor(tmp_path: Path) -> None:
    c, scale = codes(4), factors(1)
    got = clean(reading_of(tmp_path, config(strategy="tensor", group_size=None), named(packed(c, scale))))
    assert (got.layer.form.scale.kind, got.layer.form.scale.dtype, got.value("weight_scale").shape) == ("tensor", "float32", (1,))
    np.testing.assert_array_equal(got.weight(), (c.astype(float) - 8) * float(scale[0]))


def test_a_shorter_last_group_becomes_even_ones(tmp_path: Path) -> None:
    c, scale, z = codes(4, 32, 160), factors(32, 2), codes(4, 32, 2)
    got = clean(reading_of(tmp_path, config(group_size=128, symmetric=False), named(packed(c, scale, zeros=zero_words(z, 4)))))
    assert got.layer.form.scale.k == 32
    wide, zeros = np.repeat(scale, 4, 1)[:, :5], np.repeat(z, 4, 1)[:, :5]
    np.testing.assert_array_equal(got.weight(), weights_of(c, wide, zeros))


def test_groups_that_are_no_power_of_two_are_split(tmp_path: Path) -> None:
    c, scale = codes(4, 32, 192), factors(32, 2)
    got = clean(reading_of(tmp_path, config(group_size=96), named(packed(c, scale))))
    assert got.layer.form.scale.k == 32
    np.testing.assert_array_equal(got.weight(), weights_of(c, scale, 8))


def test_stacked_experts_are_one_layer_with_a_part_each(tmp_path: Path) -> None:
    c, scale = codes(4, 32, 128, 3), factors(3, 32, 4)
    z = codes(4, 32, 4, 3)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    got = clean(reading_of(tmp_path, config(symmetric=False), named(packed(c, scale, zeros=zero_words(z, 4)), name)))
    assert got.layer.experts == 3
    assert got.layer.parts == tuple(f"model.layers.0.mlp.experts.{e}.gate_up_proj" for e in range(3))
    for e in range(3):
        np.testing.assert_array_equal(got.weight(expert=e), weights_of(c[e], scale[e], z[e]))


def test_zero_points_that_say_nothing_are_dropped_beside_symmetric(tmp_path: Path) -> None:
    z = np.zeros((32, 4), np.int8)
    got = clean(reading_of(tmp_path, config(), named(packed(codes(4), factors(32, 4), zeros=z))))
    assert got.layer.form.zero_point == "none" and got.passed == ()


@pytest.mark.parametrize("g_idx", [np.arange(128) // 32, np.full(128, -1)], ids=["identity", "minus one"])
def test_an_order_of_columns_that_is_none_is_ignored(tmp_path: Path, g_idx: Array) -> None:
    tensors = packed(codes(4), factors(32, 4), weight_g_idx=g_idx.astype(np.int32))
    got = clean(reading_of(tmp_path, config(actorder="group"), named(tensors)))
    assert got.layer.facts == {} and got.passed == ()


def test_a_true_act_order_is_handed_on_with_the_layer(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(np.arange(128) // 32).astype(np.int32)
    got = clean(reading_of(tmp_path, config(actorder="group"), named(packed(codes(4), factors(32, 4), weight_g_idx=order))))
    np.testing.assert_array_equal(got.layer.facts["g_idx"].evaluate(got.context), order)


def test_headers_alone_give_the_layer_where_the_group_tells_k(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, config(), named(packed(codes(4), factors(32, 4))), headers_only=True))
    assert (got.layer.n, got.layer.k) == (32, 128)


def test_a_bias_is_kept_whatever_its_shape(tmp_path: Path) -> None:
    bias = factors(1, 32)
    got = clean(reading_of(tmp_path, config(), named(packed(codes(4), factors(32, 4), bias=bias)), model_type="unheard_of"))
    np.testing.assert_array_equal(got.value("bias"), bias[0])


def test_cache_scales_pass_by_the_layer(tmp_path: Path) -> None:
    tensors = packed(codes(4), factors(32, 4), k_scale=factors(1), weight_observer_min=factors(1))
    got = clean(reading_of(tmp_path, config(), named(tensors)))
    assert got.passed == (f"{MODULE}.k_scale",)


# ------------------------------------------------------------------ FP4, FP8, int8
def nvfp4(c: Array, scale: Array, glob: float, **more: Any) -> dict[str, Any]:
    return {"weight_packed": pairs(c), "weight_scale": scale, "weight_global_scale": np.array([glob], np.float32), **more}


NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def test_nvfp4_globals_are_divisors(tmp_path: Path) -> None:
    c, scale = codes(4), np.full((32, 8), 2.0).astype(E4M3)
    inputs = {**NVFP4, "dynamic": "local", "symmetric": True}
    got = clean(
        reading_of(
            tmp_path,
            config("nvfp4-pack-quantized", inputs=inputs, **NVFP4),
            named(nvfp4(c, scale, 3.0, input_global_scale=np.float32([7]))),
        )
    )
    np.testing.assert_array_equal(got.codes(), c)
    np.testing.assert_array_equal(got.value("weight_scale_2"), np.float32(1) / np.float32([3]))
    np.testing.assert_array_equal(got.value("input_scale_2"), np.float32(1) / np.float32([7]))
    declared = got.layer.declared
    assert declared is not None and (declared.mode, declared.group, declared.scale_dtype) == (
        "static_tensor_dynamic_group",
        16,
        "float8e4m3",
    )


def test_mxfp4_bytes_are_e8m0(tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "float", "group_size": 32, "scale_dtype": "torch.uint8"}
    scale = np.arange(120, 124, dtype=np.uint8)[None].repeat(32, 0)
    got = clean(
        reading_of(tmp_path, config("mxfp4-pack-quantized", **weights), named({"weight_packed": pairs(codes(4)), "weight_scale": scale}))
    )
    assert (got.layer.form.scale.dtype, got.layer.tensors["weight_scale"].dtype) == ("float8e8m0", "F8_E8M0")
    assert got.layer.family == "compressed-tensors"


def test_fp8_blocks_follow_block_structure(tmp_path: Path) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "group_size": None, "block_structure": "16x32"}
    tensors = {"weight": e4m3_codes().view(E4M3), "weight_scale": factors(2, 4)}
    got = clean(reading_of(tmp_path, config("float-quantized", **weights), named(tensors)))
    assert (got.layer.form.scale.kind, got.layer.form.scale.n, got.layer.form.scale.k, got.layer.form.scale.dtype) == (
        "block",
        16,
        32,
        "float32",
    )
    assert got.layer.family == "compressed-tensors"


def test_a_group_of_the_config_speaks_for_its_modules_only(tmp_path: Path) -> None:
    q = config(targets=["re:.*down_proj$"], num_bits=8)
    q["config_groups"]["group_1"] = config()["config_groups"]["group_0"]
    down = MODULE.replace("up_proj", "down_proj")
    tensors = {**named(packed(codes(4), factors(32, 4))), **named(packed(codes(8), factors(32, 4), 8), down)}
    got = clean(reading_of(tmp_path, q, tensors))
    assert {x.name: x.form.number.name for x in got.layers.values()} == {MODULE: "uint4", down: "uint8"}


def test_a_preset_name_with_targets_is_a_group(tmp_path: Path) -> None:
    q = {"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}}
    got = clean(reading_of(tmp_path, q, named(packed(codes(4), factors(32, 1)))))
    assert got.layer.form.scale.k == 128


# ------------------------------------------------------------------ names and activations
@pytest.mark.parametrize(
    ("entry", "name", "hit"),
    [
        ("re:.*mlp.*", MODULE, True),
        ("re:mlp", MODULE, False),
        ("model.layers.0.mlp.up", MODULE, False),
        (MODULE, MODULE, True),
        (MODULE + ".linear", MODULE, True),
        ("model.layers.0.q", "model.language_model.layers.0.q", True),
        ("language_model.model.layers.0.q", "model.language_model.layers.0.q", True),
        ("re:(", MODULE, False),
    ],
)
def test_entries_name_modules_at_the_start_or_in_full(entry: str, name: str, hit: bool) -> None:
    assert named_by(entry, Names([name, "lm_head"], spellings)) == ([name] if hit else [])


def test_a_pattern_wins_over_a_class_whatever_their_order() -> None:
    by_class = Group(name="a", format="", targets=("Linear",), weights={}, inputs=None)
    by_name = Group(name="b", format="", targets=("re:.*up_proj",), weights={}, inputs=None)
    assert assign(Names([MODULE, "model.x"]), [by_class, by_name]) == {MODULE: by_name, "model.x": by_class}
    assert assign(Names(["model.x"]), [by_name]) == {"model.x": None}


@pytest.mark.parametrize(
    ("inputs", "want"),
    [
        (None, None),
        ({"num_bits": 16, "type": "float"}, None),
        (TOKEN, ("int8", "dynamic_token", 0, "float32")),
        ({**TOKEN, "type": "float"}, ("float8e4m3", "dynamic_token", 0, "float32")),
        ({**TOKEN, "strategy": "tensor", "dynamic": False}, ("int8", "static_tensor", 0, "float32")),
        ({**TOKEN, "type": "float", "strategy": "group", "group_size": 128}, ("float8e4m3", "dynamic_group", 128, "float32")),
        (
            {**TOKEN, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
            ("float8e4m3", "dynamic_group", 32, "float8e8m0"),
        ),
    ],
)
def test_activations_that_a_group_asks_for(inputs: Any, want: Any) -> None:
    form = input_form(inputs, "group_0")
    assert want == (None if form is None else (form.number.name, form.mode, form.group, form.scale_dtype))  # type: ignore[union-attr]


# ------------------------------------------------------------------ rules
def broken(path: Path, code: str, q: dict[str, Any], tensors: dict[str, Array], **more: Any) -> Got:
    got = reading_of(path, q, tensors, **more)
    got.finding(code)
    return got


GOOD = named(packed(codes(4), factors(32, 4)))


def test_rule_ct_transform(tmp_path: Path) -> None:
    body = {"config_groups": {"R1": {"type": "hadamard", "apply": []}}}
    assert "hadamard" in broken(tmp_path, "ct-transform", config(top={"transform_config": body}), GOOD).finding("ct-transform").message


@pytest.mark.parametrize("key", ["sparsity_config", "moe_sparsity_config"])
def test_rule_ct_sparsity(tmp_path: Path, key: str) -> None:
    broken(tmp_path, "ct-sparsity", config(top={key: {"format": "sparse-24-bitmask"}}), GOOD)
    clean(reading_of(tmp_path / "dense", config(top={"sparsity_config": {"format": "dense"}}), GOOD))


@pytest.mark.parametrize("fmt", ["marlin-24", "sparse-bitmask", "mxfp6-pack-quantized"])
def test_rule_ct_format_refused(tmp_path: Path, fmt: str) -> None:
    assert fmt in broken(tmp_path, "ct-format-refused", config(fmt), GOOD).finding("ct-format-refused").message


def test_rule_ct_format_unknown(tmp_path: Path) -> None:
    broken(tmp_path, "ct-format-unknown", config("zip-quantized"), GOOD)


@pytest.mark.parametrize("groups", [None, {"group_0": {"weights": {}}}])
def test_rule_ct_config_invalid(tmp_path: Path, groups: Any) -> None:
    broken(tmp_path, "ct-config-invalid", {**config(), "config_groups": groups}, GOOD)


def test_rule_ct_group_unused(tmp_path: Path) -> None:
    q = config()
    q["config_groups"]["group_1"] = config(targets=["re:.*nothing$"])["config_groups"]["group_0"]
    got = broken(tmp_path, "ct-group-unused", q, GOOD)
    assert "group_1" in got.finding("ct-group-unused").message and len(got.layers) == 1


@pytest.mark.parametrize("q", [config(targets=["re:("]), config(targets=["Linear", "re:*"]), config(top={"ignore": ["re:["]})])
def test_rule_entry_regex(tmp_path: Path, q: Any) -> None:
    """Nobody knows whom a broken pattern means; the server stops at it too."""
    broken(tmp_path, "entry-regex", q, GOOD)


def test_rule_ct_group_none(tmp_path: Path) -> None:
    got = broken(tmp_path, "ct-group-none", config(targets=["re:.*nothing$"]), GOOD)
    assert (got.layer.form.number.name, got.layer.form.scale.k) == ("uint4", 32)


def test_rule_ignored_quantized(tmp_path: Path) -> None:
    got = broken(tmp_path, "ignored-quantized", config(top={"ignore": ["re:.*up_proj$"]}), GOOD)
    assert MODULE in got.finding("ignored-quantized").message and len(got.layers) == 1


def test_rule_ct_format_lies(tmp_path: Path) -> None:
    got = broken(tmp_path, "ct-format-lies", config("nvfp4-pack-quantized", **NVFP4), GOOD)
    np.testing.assert_array_equal(got.codes(), codes(4))


@pytest.mark.parametrize(
    ("q", "says"),
    [
        (config(type="float"), "type float"),
        (config("dense"), "dense"),
        (config("fakequant"), "fakequant"),
        (config(""), None),
    ],
)
def test_a_group_that_describes_other_numbers_than_its_modules_hold_is_told(tmp_path: Path, q: Any, says: str | None) -> None:
    got = reading_of(tmp_path, q, GOOD)
    assert got.codes_found == ["ct-format-lies"] * (says is not None) and (says or "") in str([*got.findings])
    np.testing.assert_array_equal(got.codes(), codes(4))


def test_a_width_that_fp8_does_not_have_is_told(tmp_path: Path) -> None:
    q = config("float-quantized", num_bits=4, type="float", strategy="tensor", group_size=None)
    got = reading_of(tmp_path, q, named({"weight": e4m3_codes().view(E4M3), "weight_scale": np.float32(0.3)}))
    assert got.codes_found == ["ct-format-lies"] and len(got.layers) == 1


def test_a_class_of_no_matrices_is_told_and_gives_way_to_one_of_matrices(tmp_path: Path) -> None:
    got = reading_of(tmp_path / "a", config(targets=["Conv2d"]), GOOD)
    assert got.codes_found == ["ct-group-unused"] and "Conv2d" in got.finding("ct-group-unused").message
    q = config(targets=["Conv2d"], num_bits=8)
    q["config_groups"]["group_1"] = config()["config_groups"]["group_0"]
    got = reading_of(tmp_path / "b", q, GOOD)
    assert got.codes_found == ["ct-group-unused"] and got.layer.form.number.name == "uint4"


def test_output_activations_are_not_made(tmp_path: Path) -> None:
    q = config()
    q["config_groups"]["group_0"]["output_activations"] = {"num_bits": 8, "type": "int", "symmetric": True}
    got = reading_of(tmp_path, q, GOOD)
    assert got.codes_found == ["input-unsupported"] and "output_activations" in got.finding("input-unsupported").message


@pytest.mark.parametrize(
    "q", [config(symmetric="false"), config(symmetric=0), config(dynamic="true"), config(inputs={**TOKEN, "symmetric": "false"})]
)
def test_a_flag_in_quotes_is_none(tmp_path: Path, q: Any) -> None:
    """bool("false") is true."""
    f = broken(tmp_path, "config-invalid", q, GOOD).finding("config-invalid")
    assert f.severity == "error" and "true or false" in f.message


@pytest.mark.parametrize(
    "inputs", [{**TOKEN, "symmetric": False}, {**TOKEN, "num_bits": 6}, {**TOKEN, "strategy": "channel", "dynamic": False}]
)
def test_rule_input_unsupported(tmp_path: Path, inputs: Any) -> None:
    assert broken(tmp_path, "input-unsupported", config(inputs=inputs), GOOD).layer.declared is None


def test_rule_ct_bits_lie(tmp_path: Path) -> None:
    got = broken(tmp_path, "ct-bits-lie", config(num_bits=8), GOOD)
    np.testing.assert_array_equal(got.codes(), codes(4))


def test_two_claims_without_a_judge_are_refused(tmp_path: Path) -> None:
    channel = named(packed(codes(4), factors(32, 1)))
    got = reading_of(tmp_path, config(num_bits=8, strategy="channel", group_size=None), channel)
    assert got.codes_found == ["ct-words"] and not got.layers


@pytest.mark.parametrize("shape", [[32, 160], [64, 128], [32], [32, 0], [32, 128, 128]])
def test_rule_weight_shape_lies(tmp_path: Path, shape: list[int]) -> None:
    tensors = {**packed(codes(4), factors(32, 4)), "weight_shape": np.array(shape)}
    got = broken(tmp_path, "weight-shape-lies", config(), named(tensors))
    np.testing.assert_array_equal(got.codes(), codes(4))


@pytest.mark.parametrize("shape", [{}, {"weight_shape": np.array([32])}])
def test_full_words_tell_k_only_where_the_scales_do_not_contradict(tmp_path: Path, shape: dict[str, np.ndarray]) -> None:
    tensors = {k: v for k, v in packed(codes(4), factors(32, 1)).items() if k != "weight_shape"} | shape
    got = reading_of(tmp_path, config(), named(tensors))  # groups of 32, one column of scales
    assert "ct-words" in got.codes_found and not got.layers


@pytest.mark.parametrize("layout", ["dense", "padded"])
def test_a_short_column_of_zero_points_has_the_layout_of_the_weight(tmp_path: Path, layout: str) -> None:
    c, scale, z = codes(3, 20), factors(20, 4), codes(3, 20, 4)
    stored = zero_words(z, 3) if layout == "dense" else np.ascontiguousarray(padded_pack(z.T, 3).T)
    assert stored.shape == (2, 4)
    got = clean(reading_of(tmp_path, config(num_bits=3, symmetric=False), named(packed(c, scale, 3, layout=layout, zeros=stored))))
    np.testing.assert_array_equal(got.weight(), weights_of(c, scale, z))


def test_rule_ct_words(tmp_path: Path) -> None:
    tensors = {**packed(codes(3), factors(32, 4), 3), "weight_packed": stream_pack(codes(3, 32, 96), 3)}
    got = broken(tmp_path, "ct-words", config(num_bits=3), named(tensors))
    assert not got.layers and got.finding("ct-words").layer == MODULE


def test_rule_ct_symmetric_lies(tmp_path: Path) -> None:
    z = codes(4, 32, 4)
    got = broken(tmp_path, "ct-symmetric-lies", config(), named(packed(codes(4), factors(32, 4), zeros=zero_words(z, 4))))
    np.testing.assert_array_equal(got.weight(), weights_of(codes(4), factors(32, 4), z))


@pytest.mark.parametrize("wrong", [np.r_[np.arange(127) // 32, 9], np.r_[np.zeros(64), np.arange(64) // 16]], ids=["range", "sizes"])
def test_rule_ct_g_idx(tmp_path: Path, wrong: Array) -> None:
    tensors = packed(codes(4), factors(32, 4), weight_g_idx=wrong.astype(np.int32))
    assert not broken(tmp_path, "ct-g-idx", config(actorder="group"), named(tensors)).layers


def test_rule_ct_zero_point_missing(tmp_path: Path) -> None:
    assert (
        "weight_zero_point"
        in broken(tmp_path, "ct-zero-point-missing", config(symmetric=False), GOOD).finding("ct-zero-point-missing").message
    )


def test_rule_tensor_missing(tmp_path: Path) -> None:
    tensors = {k: v for k, v in GOOD.items() if not k.endswith("weight_scale")}
    assert broken(tmp_path, "tensor-missing", config(), tensors).finding("tensor-missing").tensor == f"{MODULE}.weight_scale"


@pytest.mark.parametrize(
    "scale", [factors(4, 32), factors(32, 3, dtype=np.float32), factors(32)[:16]], ids=["transposed", "columns", "short"]
)
def test_rule_tensor_shape(tmp_path: Path, scale: Array) -> None:
    other = named(packed(codes(4), factors(32, 4)), "model.layers.0.mlp.gate_proj")
    got = broken(tmp_path, "tensor-shape", config(), {**named(packed(codes(4), scale)), **other})
    assert got.finding("tensor-shape").tensor == f"{MODULE}.weight_scale"


def test_rule_tensor_dtype(tmp_path: Path) -> None:
    broken(tmp_path, "tensor-dtype", config(), named(packed(codes(4), np.ones((32, 4), np.int8))))


def test_rule_tensor_unknown(tmp_path: Path) -> None:
    got = broken(tmp_path, "tensor-unknown", config(), named(packed(codes(4), factors(32, 4), smooth_factor=factors(128))))
    assert not got.layers and got.finding("tensor-unknown").tensor == f"{MODULE}.smooth_factor"


def test_rule_row_not_whole_words(tmp_path: Path) -> None:
    c = codes(4, 32, 20)
    broken(tmp_path, "row-not-whole-words", config(strategy="channel", group_size=None), named(packed(c, factors(32, 1))))


@pytest.mark.parametrize(("k", "group"), [(136, 128), (128, 8)])
def test_rule_group_too_small(tmp_path: Path, k: int, group: int) -> None:
    broken(tmp_path, "group-too-small", config(group_size=group), named(packed(codes(4, 32, k), factors(32, -(-k // group)))))


def test_rule_group_size_lies(tmp_path: Path) -> None:
    got = broken(tmp_path, "group-size-lies", config(group_size=64), GOOD)
    assert got.layer.form.scale.k == 32


def test_scales_of_the_last_columns_must_be_there(tmp_path: Path) -> None:
    got = reading_of(tmp_path, config(group_size=128), named(packed(codes(4, 32, 320), factors(32, 2))))
    assert "missing" in got.finding("tensor-shape").message
