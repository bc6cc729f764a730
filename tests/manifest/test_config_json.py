"""config.json of the output: the quantization replaced, the dtype followed, nothing else touched."""

from __future__ import annotations

from typing import Any

import pytest

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding
from humming_convert.manifest.config_json import output_config
from humming_convert.manifest.versions import versions
from humming_convert.plan.types import PlannedLayer, Request
from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number
from humming_convert.targets.table import find_target
from tests.manifest.stub import stub_plan

SM90 = find_target("sm90")


def no_reading(_view: TensorView) -> Any:
    raise AssertionError("nothing is to be read")


def packed(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return output_config(stub_plan(config=config, request=Request(target=SM90), **more))


def test_the_section_takes_the_place_of_the_old_one() -> None:
    got = packed({"a": 1, "quantization_config": {"quant_method": "gptq"}, "b": 2})
    assert list(got) == ["a", "quantization_config", "b"] and got["quantization_config"]["quant_method"] == "humming_packed"


def test_a_section_of_a_side_file_is_written_at_the_end() -> None:
    assert list(packed({"a": 1, "b": 2})) == ["a", "b", "quantization_config"]


def test_nested_sections_are_taken_out() -> None:
    got = packed(
        {"text_config": {"x": 1, "quantization_config": {}}, "compression_config": {}, "parts": [{"quantization_config": {}, "y": 2}]}
    )
    assert got["text_config"] == {"x": 1} and got["parts"] == [{"y": 2}] and "compression_config" not in got


@pytest.mark.parametrize(
    ("before", "after"),
    [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("torch.bfloat16", "torch.bfloat16"), ("float16", "bfloat16"), (None, None)],
)
def test_the_dtype_follows_where_one_stands(before: str | None, after: str | None) -> None:
    got = packed({"torch_dtype": before, "text_config": {"dtype": before}, "vision_config": {"dtype": "float16"}})
    assert got["torch_dtype"] == after and got["text_config"]["dtype"] == after and got["vision_config"]["dtype"] == "float16"


def test_no_dtype_is_written_where_none_stood() -> None:
    assert not {"dtype", "torch_dtype"} & set(packed({"a": 1}))


def test_a_kv_cache_scheme_is_kept() -> None:
    scheme = {"num_bits": 8, "type": "float"}
    got = packed({"quantization_config": {}}, sections=[{"kv_cache_scheme": None}, {"kv_cache_scheme": scheme}])
    assert got["quantization_config"]["kv_cache_scheme"] == scheme


def test_a_head_that_differs_is_untied() -> None:
    finding = Finding(severity="warning", code="tied-head-differs", message="x")
    config = {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": True}}
    got = packed(config, findings=[finding])
    assert got["tie_word_embeddings"] is False and got["text_config"]["tie_word_embeddings"] is False
    assert packed(config)["tie_word_embeddings"] is True


def test_a_standard_form_is_the_same_in_every_version() -> None:
    form = WeightForm(number=number("uint4"), scale=ScaleForm(kind="group", dtype="bfloat16", k=96))
    layer = StandardLayer(name="x", family="humming", parts=("x",), n=8, k=96, experts=None, stack_n=(8,), form=form, tensors={})
    plan = stub_plan(layers=[PlannedLayer(layer=layer, vllm=None, recipe=None, outputs={})])
    assert versions(plan, no_reading) == (("0.1.19", "0.1.20"), ("0.1.19", "0.1.20"))


def test_the_version_asked_for_is_always_named() -> None:
    accepted, same = versions(stub_plan(request=Request(target=SM90, humming_version="0.2.0")), no_reading)
    assert accepted == same == ("0.2.0",)
