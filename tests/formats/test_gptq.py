"""GPTQ folders of known codes, read to standard layers."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.formats.gptq_folders import GPTQ, MODULE, folder, gptq, matrix, modules, read, reading_of

ASYM = {**GPTQ, "sym": False}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_symmetric_files_are_read_alike_whatever_constant_they_store(tmp_path: Path, bits: int, version: str) -> None:
    m = matrix(bits)
    got = reading_of(tmp_path, modules(up_proj=gptq(m, version)), {**GPTQ, "bits": bits})
    got.holds(m)
    assert list(got.findings) == []
    layer = got.layers[MODULE]
    assert (layer.form.number.name, layer.form.zero_point, layer.form.scale.kind, layer.form.scale.k) == (
        f"uint{bits}",
        "none",
        "group",
        32,
    )
    assert (layer.n, layer.k, layer.stack_n, layer.parts, layer.family) == (64, 128, (64,), (MODULE,), "gptq")
    assert got.passed == ()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("version", "label"), [("v1", "gptq"), ("v2", "gptq_v2")])
def test_asymmetric_zero_points_follow_the_label(tmp_path: Path, bits: int, version: str, label: str) -> None:
    m = matrix(bits, sym=False, low=1 if version == "v1" else 0)
    got = reading_of(tmp_path, modules(up_proj=gptq(m, version)), {**ASYM, "bits": bits, "checkpoint_format": label})
    assert [f.code for f in got.findings] == ["zeros-unmeasured"] * (bits == 8)
    got.holds(m)
    assert got.layers[MODULE].form.zero_point == "int"
    assert got.value("zero_point").shape == (64 * bits // 32, 4)


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize("sym", [True, False])
def test_split_planes_are_read_and_are_always_v2(tmp_path: Path, bits: int, sym: bool) -> None:
    m = matrix(bits, sym=sym)
    quant = {**GPTQ, "bits": bits, "sym": sym, "checkpoint_format": "gptq_p"}
    got = reading_of(tmp_path, modules(up_proj=gptq(m, "v2", planar=True)), quant)
    got.holds(m)
    assert list(got.findings) == []


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_widths_of_split_planes_alone_need_no_label(tmp_path: Path, bits: int) -> None:
    m = matrix(bits, sym=False)
    got = reading_of(tmp_path, modules(up_proj=gptq(m, "v2", planar=True)), {**ASYM, "bits": bits})
    got.holds(m)


@pytest.mark.parametrize(
    ("declared", "k", "groups", "kind", "size"),
    [
        (-1, 128, 1, "channel", 0),
        (256, 128, 1, "channel", 0),
        (128, 128, 1, "group", 128),
        (64, 128, 2, "group", 64),
        (32, 128, 4, "group", 32),
    ],
)
def test_group_size_minus_one_or_beyond_k_is_channel_any_other_is_group(
    tmp_path: Path, declared: int, k: int, groups: int, kind: str, size: int
) -> None:
    m = matrix(k=k, groups=groups)
    got = reading_of(tmp_path, modules(up_proj=gptq(m)), {**GPTQ, "group_size": declared})
    got.holds(m)
    assert (got.layers[MODULE].form.scale.kind, got.layers[MODULE].form.scale.k) == (kind, size)
    assert list(got.findings) == []


def test_a_shorter_last_group_becomes_equal_smaller_groups(tmp_path: Path) -> None:
    m = matrix(k=320, groups=3, sym=False, low=1)
    got = reading_of(tmp_path, modules(up_proj=gptq(m)), {**ASYM, "group_size": 128})
    layer = got.layers[MODULE]
    assert layer.form.scale.k == 64
    np.testing.assert_array_equal(got.value("weight_scale"), m.scales[:, [0, 0, 1, 1, 2]])
    np.testing.assert_array_equal(got.zeros(), m.zeros[:, [0, 0, 1, 1, 2]])
    np.testing.assert_array_equal(got.codes(), m.codes)


def test_groups_that_are_no_power_of_two_are_split_exactly(tmp_path: Path) -> None:
    m = matrix(k=192, groups=2)
    got = reading_of(tmp_path, modules(up_proj=gptq(m)), {**GPTQ, "group_size": 96})
    got.holds(m)
    assert got.layers[MODULE].form.scale.k == 32


IDENTITY = np.arange(128) // 32


@pytest.mark.parametrize("g_idx", [None, np.zeros(0), np.full(128, -1), IDENTITY], ids=["absent", "empty", "minus one", "identity"])
def test_only_the_content_of_g_idx_decides(tmp_path: Path, g_idx: np.ndarray | None) -> None:
    m = matrix()
    got = reading_of(tmp_path, modules(up_proj=gptq(m, g_idx=g_idx)), {**GPTQ, "desc_act": True})
    got.holds(m)
    assert "g_idx" not in got.layers[MODULE].facts
    assert list(got.findings) == []
    assert got.passed == ()


def test_a_true_act_order_is_handed_on_with_the_layer(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(IDENTITY)
    got = reading_of(tmp_path, modules(up_proj=gptq(matrix(), g_idx=order)), GPTQ)
    view = got.layers[MODULE].facts["g_idx"]
    assert view.name == f"{MODULE}.g_idx"
    assert got.findings.errors == ()
    assert view in got.layers[MODULE].source


def test_one_group_knows_no_order(tmp_path: Path) -> None:
    m = matrix(groups=1)
    got = reading_of(tmp_path, modules(up_proj=gptq(m, g_idx=np.zeros(128))), {**GPTQ, "group_size": -1})
    got.holds(m)
    assert got.layers[MODULE].facts == {}


def test_dynamic_overrides_by_the_first_key_that_matches_at_the_start(tmp_path: Path) -> None:
    eight, four = matrix(8, groups=2), matrix()
    dynamic = {
        "-:.*down_proj": {},
        "+:model\\.layers\\.0\\.mlp\\.up": {"bits": 8, "group_size": 64},
        ".*up_proj": {"bits": 2},
        "up_proj": {"bits": 3},
    }
    tensors = modules(up_proj=gptq(eight), gate_proj=gptq(four))
    got = reading_of(tmp_path, tensors, {**GPTQ, "dynamic": dynamic})
    got.holds(eight)
    got.holds(four, MODULE.replace("up", "gate"))
    assert list(got.findings) == []


def test_what_dynamic_skips_and_is_plain_passes_through(tmp_path: Path) -> None:
    tensors = {**modules(up_proj=gptq(matrix())), "model.layers.0.mlp.gate_proj.weight": np.zeros((4, 4), np.float16)}
    got = reading_of(tmp_path, tensors, {**GPTQ, "dynamic": {"-:.*gate_proj": {}}})
    assert list(got.findings) == []
    assert got.passed == ("model.layers.0.mlp.gate_proj.weight",)


def test_bits_may_be_a_string_and_sym_may_be_missing(tmp_path: Path) -> None:
    m = matrix()
    quant = {"quant_method": "gptq", "bits": "4", "group_size": "32"}
    got = reading_of(tmp_path, modules(up_proj=gptq(m)), quant)
    got.holds(m)
    assert list(got.findings) == []
    asym = matrix(sym=False, low=1)
    got = reading_of(tmp_path / "asym", modules(up_proj=gptq(asym)), quant)
    got.holds(asym)
    assert got.layers[MODULE].form.zero_point == "int"


def test_a_config_of_auto_gptq_alone_in_its_side_file_is_read(tmp_path: Path) -> None:
    m = matrix()
    side = {
        "bits": 4,
        "group_size": 32,
        "damp_percent": 0.01,
        "desc_act": False,
        "sym": True,
        "quant_method": "gptq",
        "is_marlin_format": False,
    }
    got = read(folder(tmp_path, modules(up_proj=gptq(m)), None, side=side))
    got.holds(m)
    assert list(got.findings) == []


def test_bfloat16_scales_and_a_bias_are_kept(tmp_path: Path) -> None:
    m = matrix()
    tensors = gptq(m)
    tensors["scales"] = tensors["scales"].astype(ml_dtypes.bfloat16)
    tensors["bias"] = np.linspace(-1, 1, 64).astype(np.float16).reshape(1, 64)
    got = read(folder(tmp_path, modules(q_proj=tensors), GPTQ, model_type="qwen2"))
    name = MODULE.replace("up_proj", "q_proj")
    assert got.layers[name].form.scale.dtype == "bfloat16"
    np.testing.assert_array_equal(got.value("weight_scale", name), tensors["scales"].T)
    np.testing.assert_array_equal(got.value("bias", name), tensors["bias"][0])
    assert list(got.findings) == []


def test_scales_in_float64_are_rounded_to_float32(tmp_path: Path) -> None:
    m = matrix()
    tensors = gptq(m)
    tensors["scales"] = tensors["scales"].astype(np.float64) * (1 + 2.0**-40)
    got = reading_of(tmp_path, modules(up_proj=tensors))
    assert got.layers[MODULE].form.scale.dtype == "float32"
    np.testing.assert_array_equal(got.value("weight_scale"), tensors["scales"].T.astype(np.float32))
    assert [x.step for x in got.context.meter.found.values()] == ["scale-cast"]


def test_every_layer_asks_for_finite_scales(tmp_path: Path) -> None:
    got = reading_of(tmp_path, modules(up_proj=gptq(matrix())))
    assert {c.what for c in got.layers[MODULE].checks} == {"finite", "scale-not-all-zero", "signs"}


def test_by_headers_alone_no_data_is_read_and_the_open_question_is_said(tmp_path: Path) -> None:
    tensors = modules(up_proj=gptq(matrix(sym=False, low=1), g_idx=IDENTITY), gate_proj=gptq(matrix()))
    got = read(folder(tmp_path, tensors, ASYM), headers_only=True)
    assert len(got.layers) == 2
    assert got.found("question-open").severity == "note"
    assert got.findings.errors == ()


def test_auto_round_says_v1_or_v2_by_its_packing(tmp_path: Path) -> None:
    base = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "data_type": "int"}
    one, two = matrix(sym=False, low=1), matrix(sym=False)
    got = reading_of(tmp_path / "1", modules(up_proj=gptq(one)), {**base, "packing_format": "auto_round:auto_gptq"})
    got.holds(one)
    got = reading_of(tmp_path / "2", modules(up_proj=gptq(two, "v2")), {**base, "packing_format": "auto_round:gptqmodel"})
    got.holds(two)


def test_auto_round_overrides_by_module(tmp_path: Path) -> None:
    quant = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 32,
        "sym": True,
        "extra_config": {MODULE: {"bits": 8, "group_size": 64}},
    }
    m = matrix(8, groups=2)
    got = reading_of(tmp_path, modules(up_proj=gptq(m)), quant)
    got.holds(m)
    assert got.findings.errors == ()


@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
def test_the_label_counts_under_another_method_too(tmp_path: Path, label: str) -> None:
    """8 bits, where the codes cannot tell v1 from v2."""
    m = matrix(bits=8, sym=False, low=1)
    version = "v2" if label == "gptq_v2" else "v1"
    config = {"quant_method": "fp8", "checkpoint_format": label}
    got = reading_of(tmp_path, modules(up_proj=gptq(m, version)), config)
    got.holds(m)


def test_options_decide_v1_or_v2_and_the_wrap(tmp_path: Path) -> None:
    m = matrix(sym=False, low=0)
    quant = {**ASYM, "checkpoint_format": "gptq_v2"}
    path = folder(tmp_path, modules(up_proj=gptq(m, "v1")), quant)
    got = read(path, gptq_zeros="v1", gptq_wrap="field")
    got.holds(m)
    assert got.findings.errors == ()


def test_two_modules_without_own_method_are_read_by_their_tensors(tmp_path: Path) -> None:
    m = matrix()
    got = reading_of(tmp_path, modules(up_proj=gptq(m)), None)
    got.holds(m)
    assert got.findings.errors == ()
