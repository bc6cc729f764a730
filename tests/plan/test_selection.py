"""--include and --exclude: excluded layers are passed through byte for byte, checked like the others, and count as dense parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from humming_convert import Refused, api
from tests.samples import sample
from tests.whole import assert_whole


@pytest.mark.parametrize("name", ["gptq-4bit-v1-sym", "ct-nvfp4", "ct-int4-qwen3-moe", "humming-uint4"])
def test_excluded_layers_are_passed_through_unchanged(name: str, tmp_path: Path) -> None:
    made = sample(name)
    model = made.write(tmp_path)
    api.convert(api.plan(model, target="sm90", act="bf16", exclude=r"o_proj$"), out=tmp_path / "out")
    manifest = assert_whole(tmp_path / "out")
    assert not any("o_proj" in part for layer in manifest["layers"] for part in layer["parts"])
    assert not api.verify(tmp_path / "out", source=model).failed
    left = [t for t in made.tensors if ".o_proj." in t]
    assert left
    assert manifest["passthrough"]["tensors"] == sum(
        not any(t.rpartition(".")[0] == part for layer in manifest["layers"] for part in layer["parts"]) for t in made.tensors
    )


def test_only_included_layers_are_converted(tmp_path: Path) -> None:
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    plan = api.plan(model, target="sm90", act="bf16", include=r"\.mlp\.")
    assert {p.layer.name.rpartition(".")[2] for p in plan.layers} == {"gate_up_proj", "down_proj"}


def test_excluding_one_part_of_a_fused_layer_needs_a_decision(tmp_path: Path) -> None:
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    with pytest.raises(Refused, match="on-mixed"):
        api.plan(model, target="sm90", act="bf16", exclude=r"v_proj$")
    plan = api.plan(model, target="sm90", act="bf16", exclude=r"v_proj$", on_mixed="unfuse")
    assert {p.layer.name.rpartition(".")[2] for p in plan.layers} >= {"q_proj", "k_proj"}


def test_what_is_left_quantized_is_said(tmp_path: Path) -> None:
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    for options in ({"target": "sm90", "act": "bf16"}, {"standard": True}):
        found = [f for f in api.plan(model, exclude=r"o_proj$", **options).findings if f.code == "left-quantized"]
        assert [(f.severity, f.count) for f in found] == [("warning", 1)] and "o_proj" in found[0].message


@pytest.mark.parametrize("options", [{"include": "nothing"}, {"exclude": "nothing"}, {"exclude": "."}])
def test_rule_selection_empty(tmp_path: Path, options: dict[str, str]) -> None:
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    with pytest.raises(Refused, match="selection-empty"):
        api.plan(model, target="sm90", act="bf16", **options)


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_pattern_that_could_run_for_ages_is_a_usage_error(tmp_path: Path, option: str) -> None:
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    with pytest.raises(api.UsageError, match="forever"):
        api.plan(model, target="sm90", act="bf16", **{option: r"(.*)*(.*)*(a|a)*$x"})
