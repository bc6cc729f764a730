"""Each rule of GPTQ, AWQ and Marlin files, one test: the smallest folder that breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.findings import Rule
from humming_convert.formats import adapters, biases, columns, declared, neighbours, plain, zeros
from humming_convert.formats import awq as awq_reader
from humming_convert.formats import gptq as gptq_reader
from humming_convert.formats import marlin as marlin_reader
from humming_convert.standard.packing import stream_pack, stream_unpack
from tests.formats import test_zeros
from tests.formats.gptq_folders import AWQ, GPTQ, MODULE, Reading, awq, fast, folder, gemv, gptq, marlin, matrix, modules, read, reading_of

ASYM = {**GPTQ, "sym": False}
MODULES = (gptq_reader, awq_reader, marlin_reader, plain, neighbours, adapters, biases, columns, declared, zeros)
RULES: tuple[Rule, ...] = tuple(r for m in MODULES for r in m.RULES)
IDENTITY = np.arange(128) // 32


def test_every_rule_has_one_number_one_code_and_one_test() -> None:
    assert len({r.number for r in RULES}) == len(RULES)
    assert len({r.code for r in RULES}) == len(RULES)
    assert all(200 <= r.number < 350 for r in RULES)
    for rule in RULES:
        assert f"test_rule_{rule.code.replace('-', '_')}" in globals() | vars(test_zeros), rule.code


def one(tmp_path: Path, tensors: dict[str, Any], quant: dict[str, Any] | None = GPTQ, **options: Any) -> Reading:
    """A folder of one module."""
    return reading_of(tmp_path, modules(up_proj=tensors), quant, **options)


def error(got: Reading, code: str, *words: str) -> None:
    """An error of that code, with advice, whose text has the words; nothing was read of the layer."""
    f = got.found(code)
    assert f.severity == "error"
    assert f.advice
    text = str(f.as_dict())
    assert all(w in text for w in words), text


def warning(got: Reading, code: str, *words: str) -> None:
    f = got.found(code)
    assert f.severity == "warning"
    assert all(w in str(f.as_dict()) for w in words), f
    assert got.findings.errors == ()


# ------------------------------------------------------------------ config
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bits", True),
        ("bits", 9),
        ("bits", "four"),
        ("bits", 4.5),
        ("group_size", 0),
        ("group_size", -2),
        ("group_size", True),
        ("sym", "yes"),
        ("dynamic", [1]),
        ("modules_to_not_convert", "gate"),
        ("dynamic", {".*": {"bits": True}}),
    ],
)
def test_rule_config_value(tmp_path: Path, key: str, value: object) -> None:
    error(one(tmp_path, gptq(matrix()), {**GPTQ, key: value}), "config-value", key, "config.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pack_dtype", "int16"),
        ("rotation", "hadamard"),
        ("activation", {"bits": 8}),
        ("adapter", {"name": "eora"}),
        ("meta", {"rotation": "hadamard"}),
        ("dynamic", {".*": {"rotation": "hadamard"}}),
    ],
)
def test_rule_config_unsupported(tmp_path: Path, key: str, value: object) -> None:
    error(one(tmp_path, gptq(matrix()), {**GPTQ, key: value}), "config-unsupported", key, "config.json")


def test_keys_that_only_describe_the_calibration_are_let_be(tmp_path: Path) -> None:
    meta = {"gptaq": None, "mse": 0.0, "act_group_aware": True, "rotation": None, "quantizer": ["gptqmodel:7.7.0"]}
    got = one(
        tmp_path, gptq(matrix()), {**GPTQ, "meta": meta, "pack_dtype": "int32", "rotation": None, "adapter": None, "damp_percent": 0.1}
    )
    assert list(got.findings) == []


@pytest.mark.parametrize("extra", [{"data_type": "fp8"}, {"act_bits": 8}, {"extra_config": {"a": {"data_type": "nvfp4"}}}])
def test_auto_round_of_other_numbers_is_refused(tmp_path: Path, extra: dict[str, Any]) -> None:
    error(
        one(tmp_path, gptq(matrix()), {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, **extra}),
        "config-unsupported",
    )


@pytest.mark.parametrize(
    ("quant", "word"),
    [
        ({**GPTQ, "checkpoint_format": "gptq_v9"}, "gptq_v9"),
        ({"quant_method": "auto-round", "packing_format": "tiles", "bits": 4, "sym": True}, "tiles"),
        ({**AWQ, "version": "gemm_turbo"}, "gemm_turbo"),
    ],
)
def test_rule_format_unknown(tmp_path: Path, quant: dict[str, Any], word: str) -> None:
    tensors = awq(matrix()) if quant["quant_method"] == "awq" else gptq(matrix())
    error(one(tmp_path, tensors, quant), "format-unknown", word)


@pytest.mark.parametrize("dynamic", [{"+:model\\.(layers": {"bits": 8}}, {"+:model": 8}])
def test_rule_dynamic_pattern(tmp_path: Path, dynamic: dict[str, Any]) -> None:
    error(one(tmp_path, gptq(matrix()), {**GPTQ, "dynamic": dynamic}), "dynamic-pattern", "dynamic")


def test_rule_config_contradiction(tmp_path: Path) -> None:
    tensors = modules(up_proj=gptq(matrix()))
    for key, value in (("bits", 3), ("group_size", 64), ("quant_method", "awq")):
        got = read(folder(tmp_path / key, tensors, GPTQ, side={**GPTQ, key: value}))
        warning(got, "config-contradiction", "quantize_config.json", key)
        got.holds(matrix())
    got = read(folder(tmp_path / "neither", tensors, {**GPTQ, "bits": 8}, side={**GPTQ, "bits": 3}))
    error(got, "config-contradiction", "quantize_config.json", "bits")


def test_two_labels_of_asymmetric_zero_points_are_an_error(tmp_path: Path) -> None:
    m = matrix(8, sym=False, low=1)
    first = {**ASYM, "bits": 8, "checkpoint_format": "gptq_v2"}
    path = folder(tmp_path, modules(up_proj=gptq(m, "v2")), first, side={**first, "checkpoint_format": "gptq"})
    error(read(path), "config-contradiction", "--gptq-zeros", "quantize_config.json")
    read(path, gptq_zeros="v2").holds(m)


def test_rule_no_config(tmp_path: Path) -> None:
    for sym in (True, False):
        m = matrix(sym=sym, low=1)
        got = one(tmp_path / str(sym), gptq(m), None)
        warning(got, "no-config")
        got.holds(m)


def test_rule_nothing_quantized(tmp_path: Path) -> None:
    error(reading_of(tmp_path, {"model.norm.weight": np.ones(4, np.float16)}, None), "nothing-quantized")


# ------------------------------------------------------------------ tensors and shapes
@pytest.mark.parametrize(
    ("change", "code", "tensor"),
    [
        ({"scales": None}, "tensor-missing", "scales"),
        ({"qweight": None}, "tensor-missing", "qweight"),
        ({"qweight": np.zeros((64, 16), np.int32)}, "tensor-shape", "qweight"),
        ({"qweight": np.zeros((15, 64), np.int32)}, "tensor-shape", "qweight"),
        ({"qweight": np.zeros((16, 64), np.float32)}, "tensor-dtype", "qweight"),
        ({"scales": np.zeros((3, 64), np.float16)}, "tensor-shape", "qzeros"),
        ({"scales": np.zeros((4, 64), np.int16)}, "tensor-dtype", "scales"),
        ({"scales": np.zeros(256, np.float16)}, "tensor-shape", "scales"),
        ({"qzeros": np.zeros((4, 64), np.float16)}, "tensor-dtype", "qzeros"),
        ({"qzeros": np.zeros((4, 9), np.int32)}, "tensor-shape", "qzeros"),
        ({"g_idx": np.zeros(64, np.int32)}, "tensor-shape", "qweight"),
        ({"g_idx": np.zeros((2, 64), np.int32)}, "tensor-shape", "g_idx"),
        ({"bias": np.zeros(32, np.float16)}, "tensor-shape", "bias"),
        ({"factor": np.zeros(32, np.float16)}, "tensor-unknown", "factor"),
    ],
)
def test_what_does_not_fit_in_a_module_is_named(tmp_path: Path, change: dict[str, Any], code: str, tensor: str) -> None:
    tensors = {k: v for k, v in {**gptq(matrix(), g_idx=IDENTITY), **change}.items() if v is not None}
    got = one(tmp_path, tensors)
    # a tensor that is missing stands in no file
    file = () if (code, tensor) == ("tensor-missing", "scales") else ("model.safetensors",)
    error(got, code, f"{MODULE}.{tensor}", "shape" if code == "tensor-shape" else tensor, *file)
    assert MODULE not in got.layers


def test_missing_zero_points_are_an_error_unless_the_layer_is_symmetric(tmp_path: Path) -> None:
    tensors = gptq(matrix())
    del tensors["qzeros"]
    error(one(tmp_path / "asym", tensors, ASYM), "tensor-missing", f"{MODULE}.qzeros")
    unsaid = {k: v for k, v in GPTQ.items() if k != "sym"}
    error(one(tmp_path / "unsaid", tensors, unsaid), "tensor-missing", f"{MODULE}.qzeros")


def test_rule_bits_lie(tmp_path: Path) -> None:
    m = matrix()
    got = one(tmp_path, gptq(m), {**GPTQ, "bits": 8})
    warning(got, "bits-lie", "bits", MODULE)
    got.holds(m)


def test_rule_bits_open(tmp_path: Path) -> None:
    tensors = gptq(matrix())
    del tensors["qzeros"]
    quant = {k: v for k, v in GPTQ.items() if k != "bits"}
    error(one(tmp_path, tensors, quant), "bits-open", "bits")


def test_rule_embedding_quantized(tmp_path: Path) -> None:
    tensors = {f"model.embed_tokens.{k}": v for k, v in gptq(matrix()).items()}
    error(reading_of(tmp_path, tensors), "embedding-quantized", "model.embed_tokens")


def test_rule_planar_ragged(tmp_path: Path) -> None:
    m = matrix(6, n=64, k=48, groups=1)
    tensors = {
        "qweight": np.zeros((9, 64), np.int32),
        "qzeros": np.zeros((1, 12), np.int32),
        "scales": np.ascontiguousarray(m.scales.T),
    }
    error(one(tmp_path, tensors, {**GPTQ, "bits": 6, "group_size": -1}), "planar-ragged")


def test_rows_that_fill_no_whole_words_are_refused(tmp_path: Path) -> None:
    tensors = {"qweight": np.zeros((13, 64), np.int32), "scales": np.ones((1, 64), np.float16), "g_idx": np.zeros(100, np.int32)}
    quant = {**GPTQ, "group_size": -1}
    error(one(tmp_path, {**tensors, "qzeros": stream_pack(np.full((1, 64), 7, np.uint8), 4)}, quant), "row-not-whole-words")


def test_a_group_size_that_lies_is_corrected_by_the_scales(tmp_path: Path) -> None:
    m = matrix()
    got = one(tmp_path, gptq(m), {**GPTQ, "group_size": 64})
    warning(got, "group-size-lies", "group_size", MODULE)
    got.holds(m)


def test_groups_that_cannot_be_split_are_refused(tmp_path: Path) -> None:
    error(one(tmp_path / "8", gptq(matrix(groups=16)), {**GPTQ, "group_size": 8}), "group-too-small")
    error(one(tmp_path / "ragged", gptq(matrix(k=136, groups=2)), {**GPTQ, "group_size": 128}), "group-too-small")


def test_a_lost_shorter_group_is_refused(tmp_path: Path) -> None:
    error(one(tmp_path, gptq(matrix(k=320, groups=2)), {**GPTQ, "group_size": 128}), "tensor-shape", "scales", "lost")


# ------------------------------------------------------------------ g_idx
@pytest.mark.parametrize("value", [-1, 4, 1 << 20])
def test_rule_g_idx_range(tmp_path: Path, value: int) -> None:
    g = IDENTITY.copy()
    g[10] = value
    error(one(tmp_path, gptq(matrix(), g_idx=g)), "g-idx-range", f"{MODULE}.g_idx", "model.safetensors")


def test_rule_g_idx_groups(tmp_path: Path) -> None:
    g = IDENTITY.copy()
    g[0] = 3
    error(one(tmp_path, gptq(matrix(), g_idx=g)), "g-idx-groups", f"{MODULE}.g_idx", "model.safetensors")


def test_rule_g_idx_zero(tmp_path: Path) -> None:
    m = matrix()
    got = one(tmp_path, gptq(m, g_idx=np.zeros(128)))
    warning(got, "g-idx-zero", MODULE)
    got.holds(m)
    assert "g_idx" not in got.layers[MODULE].facts


# ------------------------------------------------------------------ zero points
def test_rule_sym_lies(tmp_path: Path) -> None:
    m = matrix(sym=False, low=1)
    got = one(tmp_path / "gptq", gptq(m), GPTQ)
    warning(got, "sym-lies", "sym", MODULE)
    got.holds(m)
    got = one(tmp_path / "awq", awq(m), {**AWQ, "zero_point": False})
    warning(got, "sym-lies", "zero_point", MODULE)
    got.holds(m)
    wide = matrix(sym=False, groups=2, k=256)
    got = one(tmp_path / "gemv", gemv(wide, 1), {**AWQ, "version": "gemv", "zero_point": False, "group_size": 128})
    warning(got, "sym-lies", "zero_point", MODULE)
    got.holds(wide)


def test_rule_zeros_empty(tmp_path: Path) -> None:
    m = matrix()
    for name, change in (("missing", None), ("zero", np.zeros((4, 8), np.int32))):
        tensors = {k: v for k, v in {**gptq(m), "qzeros": change}.items() if v is not None}
        got = one(tmp_path / name, tensors)
        warning(got, "zeros-empty", f"{MODULE}.qzeros")
        got.holds(m)


@pytest.mark.parametrize(("version", "label"), [("v2", "gptq"), ("v2", None), ("v1", "gptq_v2")])
def test_rule_zeros_label(tmp_path: Path, version: str, label: str | None) -> None:
    m = matrix(sym=False, low=1)
    path = folder(tmp_path, modules(up_proj=gptq(m, version)), {**ASYM, "checkpoint_format": label})
    error(read(path), "zeros-label", "--gptq-zeros", "v1", "v2", f"{MODULE}.qzeros", "model.safetensors")
    got = read(path, gptq_zeros=version)
    got.holds(m)
    assert got.findings.errors == ()


def test_rule_zeros_wrap(tmp_path: Path) -> None:
    m = matrix(sym=False, low=0)
    path = folder(tmp_path, modules(up_proj=gptq(m)), ASYM)
    got = read(path, gptq_zeros="v1")
    error(got, "zeros-wrap", "--gptq-wrap", f"{MODULE}.qzeros")
    assert got.found("zeros-wrap").count == int((m.zeros == 0).sum())
    read(path, gptq_zeros="v1", gptq_wrap="field").holds(m)


@pytest.mark.parametrize("version", ["0.9.0", "6.0.0"])
def test_three_bit_v1_of_old_gptqmodel_is_undecided(tmp_path: Path, version: str) -> None:
    m = matrix(3, sym=False, low=1)
    quant = {**ASYM, "bits": 3, "meta": {"quantizer": f"gptqmodel:{version}"}}
    error(one(tmp_path / "old", gptq(m), quant), "zeros-wrap", "--gptq-wrap")
    quant["meta"] = {"quantizer": "gptqmodel:7.7.0"}
    one(tmp_path / "new", gptq(m), quant).holds(m)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rule_zeros_wrapped(tmp_path: Path, bits: int) -> None:
    m = matrix(bits, sym=False, low=0)
    tensors = gptq(m, "v2")
    step = np.uint32(sum(1 << i for i in range(0, 32, bits)))
    tensors["qzeros"] = (tensors["qzeros"].view(np.uint32) - step).view(np.int32)
    quant = {**ASYM, "bits": bits, "meta": {"quantizer": ["optimum:1.2", "gptqmodel:7.7.0"]}}
    got = one(tmp_path, tensors, quant, gptq_zeros="v1")
    got.holds(m)
    full = int((stream_unpack(tensors["qzeros"], bits, 64) == (1 << bits) - 1).sum())
    assert full > 0
    assert got.found("zeros-wrapped").count == full
    warning(got, "zeros-wrapped", MODULE)


def test_rule_zeros_damaged(tmp_path: Path) -> None:
    m = matrix(3)
    tensors = gptq(m)
    tensors["qzeros"] = np.tile(np.array([0, 0xB6DB6DB7, 0x49249249], np.uint32), (4, 2)).view(np.int32)
    got = one(tmp_path, tensors, {**GPTQ, "bits": 3})
    warning(got, "zeros-damaged", MODULE)
    got.holds(m)


def test_rule_zeros_mixed(tmp_path: Path) -> None:
    m = matrix()
    got = reading_of(tmp_path, modules(up_proj=gptq(m, "v1"), gate_proj=gptq(m, "v2")))
    warning(got, "zeros-mixed", "qzeros")
    got.holds(m)


@pytest.mark.parametrize(("label", "planar"), [("gptq_p", False), ("gptq", True)])
def test_rule_planar_label(tmp_path: Path, label: str, planar: bool) -> None:
    quant = {**GPTQ, "bits": 3, "checkpoint_format": label}
    error(one(tmp_path, gptq(matrix(3), "v2", planar=planar), quant), "planar-label", f"{MODULE}.qzeros", "gptq_p")


# ------------------------------------------------------------------ biases and neighbours
def test_rule_bias_zero(tmp_path: Path) -> None:
    tensors = {**gptq(matrix()), "bias": np.zeros(64, np.float16)}
    got = one(tmp_path, tensors)
    assert got.found("bias-zero").severity == "note"
    assert "bias" not in got.layers[MODULE].tensors
    assert got.passed == ()
    kept = read(folder(tmp_path / "unknown", modules(up_proj=tensors), GPTQ, model_type="nobody_knows"))
    assert "bias" in kept.layers[MODULE].tensors
    assert list(kept.findings) == []


def test_rule_bias_unexpected(tmp_path: Path) -> None:
    got = one(tmp_path, {**gptq(matrix()), "bias": np.ones(64, np.float16)})
    warning(got, "bias-unexpected", f"{MODULE}.bias")
    np.testing.assert_array_equal(got.value("bias"), np.ones(64))
    flagged = read(folder(tmp_path / "flag", modules(up_proj={**gptq(matrix()), "bias": np.ones(64, np.float16)}), GPTQ, mlp_bias=True))
    assert list(flagged.findings) == []


def test_a_packed_module_that_the_config_leaves_out_is_read_with_a_warning(tmp_path: Path) -> None:
    for name, tensors, quant in (
        ("dynamic", gptq(matrix()), {**GPTQ, "dynamic": {"-:.*up_proj": {}}}),
        ("list", awq(matrix()), {**AWQ, "modules_to_not_convert": ["up"]}),
    ):
        got = one(tmp_path / name, tensors, quant)
        warning(got, "ignored-quantized", MODULE)
        assert MODULE in got.layers


def test_rule_adapter_inside(tmp_path: Path) -> None:
    tensors = {**modules(up_proj=gptq(matrix())), f"{MODULE}.lora_A.weight": np.zeros((4, 4), np.float16)}
    error(reading_of(tmp_path, tensors), "adapter-inside", "lora_A")


def test_rule_unverified_variant(tmp_path: Path) -> None:
    got = one(tmp_path, gptq(matrix()), {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True})
    warning(got, "unverified-variant", "auto-round")


def test_rule_listed_plain(tmp_path: Path) -> None:
    tensors = {**modules(up_proj=gptq(matrix())), "model.layers.0.mlp.down_proj.weight": np.zeros((4, 4), np.float16)}
    warning(reading_of(tmp_path, tensors, {**GPTQ, "dynamic": {"+:.*down_proj": {"bits": 8}}}), "listed-plain", "down_proj")


def test_rule_question_open(tmp_path: Path) -> None:
    got = read(folder(tmp_path, modules(up_proj=gptq(matrix())), GPTQ), headers_only=True)
    f = got.found("question-open")
    assert (f.severity, f.count) == ("note", 1)


# ------------------------------------------------------------------ Marlin
def test_rule_marlin_deprecated(tmp_path: Path) -> None:
    warning(
        one(tmp_path, marlin(matrix(groups=1)), {**AWQ, "version": "marlin", "zero_point": False, "group_size": -1}), "marlin-deprecated"
    )


def test_rule_marlin_form(tmp_path: Path) -> None:
    asym = {**GPTQ, "sym": False, "group_size": -1, "is_marlin_format": True}
    error(one(tmp_path / "asym", marlin(matrix(groups=1), ("B", "s")), asym), "marlin-form", MODULE)
    error(one(tmp_path / "bits", marlin(matrix(groups=1), ("B", "s")), {**asym, "sym": True, "bits": 8}), "marlin-form", "8")
    narrow = {"B": np.zeros((8, 64), np.int32), "s": np.ones((1, 32), np.float16)}
    error(one(tmp_path / "narrow", narrow, {**asym, "sym": True}), "marlin-form", "32")


# ------------------------------------------------------------------ AWQ
def test_rule_awq_version_lies(tmp_path: Path) -> None:
    m = matrix(sym=False)
    got = one(tmp_path, awq(m), {**AWQ, "version": "gemv"})
    warning(got, "awq-version-lies", "gemv")
    got.holds(m)
    warning(one(tmp_path / "llm", awq(m), {**AWQ, "version": "llm-awq"}), "awq-version-lies", "llm-awq")


@pytest.mark.parametrize("meta", [None, {"quantizer": "gptqmodel:6.9.0"}])
def test_rule_awq_width(tmp_path: Path, meta: dict[str, Any] | None) -> None:
    error(one(tmp_path, awq(matrix(8, sym=False)), {**AWQ, "bits": 8, "meta": meta}), "awq-width", MODULE)


def test_rule_llm_awq(tmp_path: Path) -> None:
    tensors = fast(matrix(k=256, groups=2, sym=False), 1)
    tensors["scaled_zeros"] = tensors.pop("qzeros")
    error(one(tmp_path, tensors, {**AWQ, "version": "llm-awq", "group_size": 128}), "llm-awq", "scaled_zeros")


def test_rule_awq_padding(tmp_path: Path) -> None:
    m = matrix(k=256, groups=2, sym=False)
    tensors = gemv(m, 1)
    tensors["scales"][3, 5] = 1
    got = one(tmp_path, tensors, {**AWQ, "version": "gemv", "group_size": 128})
    warning(got, "awq-padding", "scales")
    got.holds(m)


@pytest.mark.parametrize("change", [0.5, 20.0])
def test_rule_awq_zero_fraction(tmp_path: Path, change: float) -> None:
    tensors = fast(matrix(k=256, groups=2, sym=False), 1)
    tensors["qzeros"][1, 7] -= tensors["scales"][1, 7] * np.float16(change)
    got = one(tmp_path, tensors, {**AWQ, "version": "gemv_fast", "group_size": 128})
    error(got, "awq-zero-fraction", f"{MODULE}.qzeros")
    assert got.found("awq-zero-fraction").count == 1


def test_rule_pack_words(tmp_path: Path) -> None:
    tensors = {k: v.view(np.int16) if v.dtype == np.int32 else v for k, v in gptq(matrix()).items()}
    error(one(tmp_path, tensors, GPTQ), "pack-words", "I16", MODULE)


def test_rule_awq_gemv_groups(tmp_path: Path) -> None:
    tensors = gemv(matrix(k=256, groups=2, sym=False), 3)
    error(one(tmp_path, tensors, {**AWQ, "version": "gemv", "group_size": 128}), "awq-gemv-groups", "scales", "shape")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["gemv", "gemv_fast"])
def test_groups_of_an_undeclared_size_are_counted_by_their_scales(tmp_path: Path, groups: int, kind: str) -> None:
    """One group of 256 and two of 128 have the same padded shape."""
    m = matrix(k=256, groups=groups, sym=False)
    undeclared = {k: v for k, v in AWQ.items() if k != "group_size"}
    got = one(tmp_path, gemv(m, 1) if kind == "gemv" else fast(m, 1), {**undeclared, "version": kind})
    got.holds(m)


@pytest.mark.parametrize(
    ("change", "code", "tensor"),
    [
        ({"scales": None}, "tensor-missing", "scales"),
        ({"qzeros": None}, "tensor-missing", "qzeros"),
        ({"qweight": np.zeros((8, 128), np.int32)}, "tensor-shape", "qweight"),
        ({"qweight": np.zeros((128, 7), np.int32)}, "tensor-shape", "qweight"),
        ({"qweight": np.zeros((128, 8), np.float32)}, "tensor-dtype", "qweight"),
        ({"qzeros": np.zeros((4, 7), np.int32)}, "tensor-shape", "qzeros"),
        ({"scales": np.zeros((3, 64), np.float16)}, "tensor-shape", "qzeros"),
    ],
)
def test_what_does_not_fit_in_an_awq_module_is_named(tmp_path: Path, change: dict[str, Any], code: str, tensor: str) -> None:
    tensors = {k: v for k, v in {**awq(matrix(sym=False)), **change}.items() if v is not None}
    got = one(tmp_path, tensors, AWQ)
    error(got, code, f"{MODULE}.{tensor}")
    assert MODULE not in got.layers
