"""What people reported about such files, one test a kind of symptom: the whole way, from a folder to a refusal or to equal numbers.

Facts: formats.md 13, by the names of the reports there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert import api
from humming_convert.demo.families import modelopt_nvfp4
from humming_convert.demo.models import Shape, decoder
from humming_convert.findings import Finding
from tests.formats.folders import E4M3, factors, named, pairs, reading_of
from tests.fuzz.folders import Folder, bases, header_of, load, write
from tests.fuzz.judge import judge
from tests.fuzz.mutations import apply

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
QUANTIZATION = "quantization_config"


def changed(base: str, *steps: tuple[str, list[Any]]) -> Folder:
    folder = bases()[f"demo:{base}"].copy()
    for step in steps:
        apply(folder, step)
    return folder


def said(folder: Folder, tmp_path: Path, **options: Any) -> tuple[str, tuple[Finding, ...]]:
    """(`equal` or `refused`, findings) of a conversion to the standard form; the output is compared with the folder."""
    write(folder, tmp_path / "in")
    word = judge(tmp_path / "in", tmp_path / "out", **options).word
    try:
        return word, api.plan(tmp_path / "in", standard=True, **options).findings
    except api.Refused as refused:
        return word, refused.findings


def the(code: str, findings: tuple[Finding, ...]) -> Finding:
    found = [f for f in findings if f.code == code]
    assert found, [str(f) for f in findings]
    return found[0]


def every(leaf: str, folder: Folder) -> list[str]:
    return [name for name in folder.tensors() if name.endswith(f".{leaf}")]


# ------------------------------------------------------------------ zero points that lie
def test_exclamation_marks_from_v2_constants_under_the_label_gptq(tmp_path: Path) -> None:
    """vllm#38966: a symmetric file stores 8s where its label promises 7s; the server printed `!!!!`."""
    folder = bases()["demo:gptq-4bit-v1-sym"].copy()
    for name in every("qzeros", folder):
        apply(folder, ("fill", [name, "88888888", 0.0, 1.0]))
    word, findings = said(folder, tmp_path)
    assert word == "equal" and not [f for f in findings if f.severity == "error"]


def test_every_weight_one_step_off_under_a_label_that_lies(tmp_path: Path) -> None:
    """Asymmetric v2 zero points under the label of v1: not to be told from the words, only from where the codes lie."""
    folder = changed("gptq-4bit-v2-asym", ("set_value", ["config.json", [QUANTIZATION, "checkpoint_format"], "gptq"]))
    word, findings = said(folder, tmp_path)
    assert word == "refused" and "--gptq-zeros" in (the("zeros-label", findings).advice or "")


# ------------------------------------------------------------------ gate against gate_proj
@pytest.mark.parametrize(
    ("base", "key", "entry"),
    [
        ("ct-int4-sym", "ignore", ["mlp.gate", "model.layers.0.mlp.gate"]),
        ("awq-4bit-gemm", "modules_to_not_convert", ["mlp.gate."]),
        ("fp8-block-ragged", "ignored_layers", ["model.layers.0.mlp.gate"]),
        ("nvfp4-modelopt", "ignore", ["*.mlp.gate"]),
        ("ct-int4-qwen3-moe", "ignore", ["lm_head", "re:.*mlp.gate$"]),
    ],
)
def test_a_router_in_the_list_does_not_exclude_gate_proj(tmp_path: Path, base: str, key: str, entry: list[str]) -> None:
    """vllm#48507: `mlp.gate` taken as a part of `mlp.gate_proj` left the projection out."""
    word, findings = said(changed(base, ("set_value", ["config.json", [QUANTIZATION, key], entry])), tmp_path)
    assert word == "equal"
    assert not [f for f in findings if f.code == "ignored-quantized"]


# ------------------------------------------------------------------ exclusions that contradict tensors
@pytest.mark.parametrize(
    ("base", "key", "entry"),
    [
        ("nvfp4-modelopt", "ignore", ["lm_head", "*up_proj*"]),
        ("ct-int4-asym", "ignore", ["re:.*up_proj"]),
        ("ct-int4-asym", "ignore", [f"{MLP}.up_proj"]),
        ("gptq-4bit-v2-asym", "dynamic", {"-:.*up_proj": {}}),
        ("awq-4bit-gemm", "modules_to_not_convert", ["up_proj"]),
        ("fp8-block-ragged", "modules_to_not_convert", [f"{MLP}.up_proj"]),
        ("humming-uint4", "ignore", ["up_proj"]),
    ],
)
def test_a_module_in_the_list_of_exclusions_that_is_packed_all_the_same(tmp_path: Path, base: str, key: str, entry: Any) -> None:
    """vllm#44081, #45132: the scales were dropped and the bytes read as weights."""
    word, findings = said(changed(base, ("set_value", ["config.json", [QUANTIZATION, key], entry])), tmp_path)
    assert word == "equal"
    assert the("ignored-quantized", findings).severity == "warning"


def test_a_suffix_linear_in_the_list_names_the_module_without_it(tmp_path: Path) -> None:
    """sglang#24927: entries written with `.linear` matched nothing."""
    folder = changed("ct-int4-sym", ("set_value", ["config.json", [QUANTIZATION, "ignore"], [f"{MLP}.up_proj.linear"]]))
    word, findings = said(folder, tmp_path)
    assert word == "equal" and the("ignored-quantized", findings).count == 1


# ------------------------------------------------------------------ scales of experts never routed
def moe() -> Any:
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
    return decoder(
        name="nvfp4-moe",
        family="nvfp4",
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        packer=modelopt_nvfp4,
        quantization=section,
        shape=Shape(experts=2),
    )


def test_experts_that_calibration_never_reached_have_no_input_scale(tmp_path: Path) -> None:
    """vllm#45212, #51525: 1 / 0 at load. The weights are all there and convert."""
    folder = load(moe().write(tmp_path))
    apply(folder, ("drop", [f"{MLP}.experts.1.up_proj.input_scale"]))
    word, findings = said(folder, tmp_path)
    assert word == "equal" and not [f for f in findings if f.severity == "error"]


@pytest.mark.parametrize("value", ["00000000", "0000807f", "0000c07f", "000080bf"], ids=["zero", "infinite", "nan", "negative"])
def test_experts_that_calibration_never_reached_have_a_global_of_nothing(tmp_path: Path, value: str) -> None:
    folder = load(moe().write(tmp_path))
    apply(folder, ("fill", [f"{MLP}.experts.1.up_proj.weight_scale_2", value, 0.0, 1.0]))
    word, findings = said(folder, tmp_path)
    found = the("scale-not-positive", findings)
    assert word == "refused" and found.tensor == f"{MLP}.experts.1.up_proj.weight_scale_2" and found.file == "model.safetensors"


# ------------------------------------------------------------------ inverse globals
def test_a_global_is_a_divisor_or_a_factor_by_its_name_and_never_by_its_size(tmp_path: Path) -> None:
    """modular#6600: compressed-tensors divides by its global, ModelOpt multiplies with it."""
    rng = np.random.default_rng(0)
    words, scale = pairs(rng.integers(0, 16, (32, 64), np.uint8)), rng.integers(0x28, 0x7F, (32, 4)).astype(np.uint8).view(E4M3)
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    ct = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": group}, "ignore": []}
    for size in (2.0**-12, 1.0, 2.0**12):
        divided = {"weight_packed": words, "weight_scale": scale, "weight_global_scale": np.array([size], np.float32)}
        times = {"weight": words, "weight_scale": scale, "weight_scale_2": np.array(1 / size, np.float32)}
        one = reading_of(tmp_path / f"a{size}", ct, named(divided))
        other = reading_of(tmp_path / f"b{size}", {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, named(times))
        np.testing.assert_array_equal(one.weight(), other.weight())


# ------------------------------------------------------------------ NaN bytes in scales
@pytest.mark.parametrize("base", ["ct-nvfp4", "nvfp4-modelopt"])
def test_a_nan_byte_among_e4m3_scales(tmp_path: Path, base: str) -> None:
    """A single 0x7F poisons every output row that its group touches."""
    word, findings = said(changed(base, ("poke", [f"{MLP}.up_proj.weight_scale", 0.5, "7f"])), tmp_path)
    found = the("scale-nonfinite", findings)
    assert word == "refused" and found.tensor == f"{MLP}.up_proj.weight_scale" and found.count == 1


# ------------------------------------------------------------------ files
def test_a_shard_that_is_shorter_than_its_header_says(tmp_path: Path) -> None:
    """An interrupted download: the header is whole, the data is not."""
    folder = changed("fp8-block-ragged")
    file = list(folder.weights)[1]
    size = 8 + len(header_of(folder.weights[file])) + sum(len(t.raw) for t in folder.weights[file].values()) - 4
    apply(folder, ("late", ["cut", [file, size]]))
    word, findings = said(folder, tmp_path)
    assert word == "refused" and the("file-truncated", findings).file == file


def test_an_index_that_names_a_shard_which_is_not_there(tmp_path: Path) -> None:
    folder = changed("fp8-block-ragged")
    file = list(folder.weights)[1]
    apply(folder, ("late", ["remove", [file]]))
    word, findings = said(folder, tmp_path)
    assert word == "refused" and the("shard-missing", findings).file == file


def test_a_stale_tensor_in_a_second_shard_loses_against_the_index(tmp_path: Path) -> None:
    """vllm#54230: shards of an older export left in the folder, with the same names in them."""
    name = f"{MLP}.up_proj.weight_scale"
    folder = changed(
        "ct-int4-sym",
        ("make_index", []),
        ("twice", [name, "stale.safetensors"]),
        ("twice", [f"{MLP}.up_proj.weight_shape", "stale.safetensors"]),
    )
    apply(folder, ("index_to", [f"{MLP}.up_proj.weight_shape", "stale.safetensors"]))
    apply(folder, ("fill", [name, "00", 0.0, 1.0]))  # the first of the two, which the index names, is the one that counts
    word, findings = said(folder, tmp_path)
    assert word == "refused" and the("scale-all-zero", findings).file == "model.safetensors"
    assert "stale.safetensors" in [f.file for f in findings if f.code == "tensor-twice"]


def test_a_tensor_in_two_shards_without_an_index(tmp_path: Path) -> None:
    """Nothing says which of the two is meant."""
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    folder = changed("ct-int4-sym")
    folder.weights = {names[0]: folder.weights["model.safetensors"]}
    apply(folder, ("twice", [f"{MLP}.up_proj.weight_scale", names[1]]))
    word, findings = said(folder, tmp_path)
    assert word == "refused" and the("tensor-ambiguous", findings).tensor == f"{MLP}.up_proj.weight_scale"


@pytest.mark.parametrize(
    ("base", "file"),
    [("gptq-4bit-v2-asym", "quantize_config.json"), ("awq-4bit-gemm", "quant_config.json"), ("ct-int4-asym", "quant_config.json")],
)
def test_a_config_that_stands_in_the_side_file_alone(tmp_path: Path, base: str, file: str) -> None:
    word, findings = said(changed(base, ("only_side", [file])), tmp_path)
    assert word == "equal" and not [f for f in findings if f.code == "no-config"]


def test_a_modelopt_export_with_hf_quant_config_alone(tmp_path: Path) -> None:
    word, findings = said(changed("nvfp4-modelopt", ("delete_key", ["config.json", [QUANTIZATION]])), tmp_path)
    assert word == "equal" and not [f for f in findings if f.code == "no-config"]


# ------------------------------------------------------------------ other symptoms of formats.md 13
def test_16_bit_scales_of_another_kind_than_the_model_are_cast_and_measured(tmp_path: Path) -> None:
    """vllm#1114, GPTQModel#2722: float16 scales in a bfloat16 model."""
    folder = bases()["demo:gptq-4bit-v2-asym"]
    assert folder.weights["model.safetensors"][f"{MLP}.up_proj.scales"].dtype == "F16"
    word, _ = said(folder.copy(), tmp_path)
    assert word == "equal"


def test_e8m0_bytes_that_were_copied_as_numbers(tmp_path: Path) -> None:
    """vllm#51946: block scales of 120.0 where 2^-7 was meant gave garbage."""
    folder = bases()["demo:fp8-block-ragged"].copy()
    for name in every("weight_scale_inv", folder):
        apply(folder, ("fill", [name, "0000f042", 0.0, 1.0]))  # 120.0
    word, findings = said(folder, tmp_path)
    assert word == "refused" and "factor" in str(the("e8m0-as-number", findings))


def test_a_grid_of_blocks_over_576_rows_is_rounded_up(tmp_path: Path) -> None:
    """transformers#36026: kv_a_proj_with_mqa of DeepSeek has 576 rows, four and a half blocks."""
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 0x7E, (576, 256)).astype(np.uint8).view(E4M3)
    scale = factors(5, 2, dtype=np.float32)
    tensors = named({"weight": weight, "weight_scale_inv": scale}, f"{ATTENTION}.kv_a_proj_with_mqa")
    got = reading_of(tmp_path, {"quant_method": "fp8", "weight_block_size": [128, 128]}, tensors)
    want = weight.astype(np.float64) * np.repeat(np.repeat(scale.astype(np.float64), 128, 0), 128, 1)[:576]
    np.testing.assert_array_equal(got.weight(), want)
