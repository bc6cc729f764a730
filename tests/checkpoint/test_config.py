"""Where configs stand, what they are called, and where they contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from humming_convert.checkpoint import ConfigSection, disagreements, method_of, normalise_method
from humming_convert.checkpoint.config import PLACES, place_of
from tests.checkpoint.making import folder, opened, weights


@pytest.mark.parametrize(
    ("body", "method"),
    [
        ({"quant_method": "GPTQ"}, "gptq"),
        ({"quant_method": "gptq_marlin"}, "gptq"),
        ({"quant_method": "gptqmodel"}, "gptq"),
        ({"method": "gptq"}, "gptq"),
        ({"quant_method": "awq", "method": "gptq"}, "awq"),
        ({"quant_method": "compressed_tensors"}, "compressed-tensors"),
        ({"quant_method": "intel/auto-round"}, "auto-round"),
        ({"quant_method": "auto_round"}, "auto-round"),
        ({"quant_method": "modelopt_fp4"}, "modelopt"),
        ({"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": {}}, "modelopt"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "modelopt"),
        ({"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}, "awq"),
        ({"bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ({"quant_method": "bitsandbytes", "bits": 4, "group_size": 64}, "bitsandbytes"),
        ({"quant_method": None, "bits": 4, "group_size": 128}, "gptq"),
        ({"version": "GEMM"}, ""),
        ({"bits": 4}, ""),
        ({}, ""),
    ],
)
def test_a_method_has_one_name(body: dict[str, Any], method: str) -> None:
    assert normalise_method(body) == method
    assert normalise_method(ConfigSection(place="quantize_config.json", body=body)) == method


def test_no_section_is_no_method() -> None:
    assert normalise_method(None) == ""
    assert method_of(()) == ""


def test_an_old_compression_config_is_compressed_tensors() -> None:
    body = {"config_groups": {}, "format": "pack-quantized"}
    assert normalise_method(ConfigSection(place="config.json: compression_config", body=body)) == "compressed-tensors"
    assert normalise_method(body) == ""


def test_sections_come_in_the_order_of_their_places(tmp_path: Path) -> None:
    config: dict[str, Any] = {"dtype": "float16"}
    side: dict[str, str] = {}
    for i, (file, keys) in enumerate(PLACES):
        body: dict[str, Any] = {"quant_method": f"method-{i}"}
        if not keys:
            side[file] = json.dumps(body)
            continue
        at = config
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = body
    folder(tmp_path, side, config=config)
    checkpoint, findings = opened(tmp_path)
    assert checkpoint is not None, [*map(str, findings)]
    assert [s.place for s in checkpoint.sections] == [place_of(*p) for p in PLACES]
    assert [s.body["quant_method"] for s in checkpoint.sections] == [f"method-{i}" for i in range(len(PLACES))]
    assert method_of(checkpoint.sections) == "method-0"


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_null_or_empty_section_is_none(tmp_path: Path, nothing: object) -> None:
    folder(
        tmp_path, {"quantize_config.json": '{"bits": 4, "group_size": 128}'}, config={"dtype": "float16", "quantization_config": nothing}
    )
    checkpoint, _ = opened(tmp_path)
    assert checkpoint is not None
    assert [s.place for s in checkpoint.sections] == ["quantize_config.json"]


def test_a_broken_side_file_is_an_error(tmp_path: Path) -> None:
    folder(tmp_path, {"quantize_config.json": "{"})
    assert opened(tmp_path)[0] is None


def two(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    sections = (ConfigSection(place="config.json: quantization_config", body=a), ConfigSection(place="hf_quant_config.json", body=b))
    return [(d.key, d.a, d.b) for d in disagreements(sections)]


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        ({"quant_method": "gptq", "bits": 4}, {"bits": 3, "group_size": 128}, [("bits", 4, 3)]),
        ({"quant_method": "gptq", "bits": 4}, {"quant_method": "awq", "w_bit": "4"}, [("method", "gptq", "awq")]),
        ({"quant_method": "gptq", "bits": "4"}, {"bits": 4}, []),
        ({"quant_method": "awq", "group_size": 64}, {"q_group_size": 128, "version": "GEMM", "w_bit": 4}, [("group_size", 64, 128)]),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, {"quantization": {"quant_algo": "NVFP4"}}, [("quant_algo", "FP8", "NVFP4")]),
        ({"quant_method": "modelopt", "quant_algo": "nvfp4"}, {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}, []),
        (
            {"quant_method": "modelopt", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 16}}}},
            {"producer": {"name": "modelopt"}, "quantization": {"group_size": 32}},
            [("group_size", 16, 32)],
        ),
        ({"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}}, {"bits": 3}, []),
    ],
)
def test_sections_disagree_where_both_say_one_thing_and_it_differs(a: dict[str, Any], b: dict[str, Any], differ: list[Any]) -> None:
    assert two(a, b) == differ


@pytest.mark.parametrize(
    ("config", "dtype", "written"),
    [
        ({"dtype": "bfloat16"}, "BF16", "bfloat16"),
        ({"torch_dtype": "float16"}, "F16", "float16"),
        ({"torch_dtype": "torch.bfloat16"}, "BF16", "torch.bfloat16"),
        ({"dtype": "float32"}, "BF16", "float32"),
        ({"dtype": "float16", "text_config": {"dtype": "bfloat16"}}, "BF16", "bfloat16"),
        ({"dtype": "float16", "text_config": {"hidden_size": 1}}, "F16", "float16"),
        ({"dtype": "float16", "thinker_config": {"text_config": {"torch_dtype": "bfloat16"}}}, "BF16", "bfloat16"),
    ],
)
def test_the_model_dtype_is_that_of_the_text_model(tmp_path: Path, config: dict[str, Any], dtype: str, written: str) -> None:
    folder(tmp_path, config=config)
    checkpoint, findings = opened(tmp_path)
    assert checkpoint is not None
    assert not len(findings)
    assert (checkpoint.dtype, checkpoint.declared_dtype) == (dtype, written)


def test_scales_do_not_decide_the_model_dtype(tmp_path: Path) -> None:
    folder(tmp_path, config={}, model=weights({"norm.weight": ("BF16", (2,)), "q.scales": ("F16", (2,)), "r.weight": ("F32", (2,))}))
    checkpoint, _ = opened(tmp_path)
    assert checkpoint is not None
    assert checkpoint.dtype == "BF16"
