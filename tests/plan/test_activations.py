"""Which activation a layer gets: the one asked for or declared, another where the serving caller takes another, and the note that says why."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from humming_convert.findings import Findings
from humming_convert.formats.source import ReadOptions
from humming_convert.model.parallel import Heads
from humming_convert.plan.recipe import Packing, plan_packed
from humming_convert.plan.types import Request
from humming_convert.standard.forms import InputForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number
from humming_convert.targets.activations import activation
from humming_convert.targets.table import find_target
from tests.model.making import Memory

FP8 = activation("fp8", "BF16")
MXFP8 = activation("mxfp8", "BF16")
INT8 = activation("int8", "BF16")


def settled(memory: Memory, layer: StandardLayer, target: str, **asked: Any) -> tuple[InputForm | None, Findings]:
    """The activation that the layer is packed for (None: refused), and what was said."""
    row = find_target(target)
    assert row is not None
    request = Request(target=row, **asked)
    findings = Findings()
    planned = plan_packed(
        layer, None, Packing(request=request, target=row, read=memory.read, findings=findings, headers_only=False, heads=Heads())
    )
    assert bool(planned) is not bool(findings.errors)
    return (planned[0].recipe.input if planned and planned[0].recipe else None), findings


def declaring(memory: Memory, declared: InputForm | None, **form: Any) -> StandardLayer:
    return replace(memory.layer("x", **form), declared=declared)


# declared activation, form of the weight, target -> activation, words of the note (None: taken as it is)
AUTO: list[tuple[InputForm | None, dict[str, Any], str, str, str | None]] = [
    (None, {}, "sm90", "bf16", None),
    (FP8, {"scale": "channel"}, "sm90", "fp8", None),
    (FP8, {"scale": "channel", "kind": "float8e4m3"}, "sm89", "fp8", None),
    (FP8, {}, "sm90", "bf16", "group scales are slower"),
    (FP8, {"scale": "channel"}, "sm80", "int8", "need sm89"),
    (FP8, {"scale": "channel", "kind": "float8e4m3"}, "sm80", "bf16", "need sm89"),
    (FP8, {"scale": "channel"}, "sm100", "bf16", "slow on sm100"),
    (FP8, {"scale": "channel", "kind": "uint8"}, "sm90", "int8", "cannot take uint8"),
    (INT8, {"scale": "channel", "kind": "uint8"}, "sm90", "int8", None),
    (INT8, {"scale": "channel", "kind": "uint8"}, "sm103", "bf16", "slow on sm103"),
    (MXFP8, {"scale": "channel", "kind": "float8e4m3"}, "sm120", "mxfp8", None),
    (MXFP8, {"scale": "channel", "kind": "float8e4m3"}, "sm90", "bf16", "group scales are slower"),
    (activation("int4", "BF16"), {"scale": "channel"}, "sm90", "int8", "int4 activations are slow"),
    (activation("int4", "BF16"), {"scale": "channel"}, "sm86", "int4", None),
]


@pytest.mark.parametrize(("declared", "form", "target", "want", "note"), AUTO)
def test_auto_takes_what_the_checkpoint_declares_or_says_why_not(
    declared: InputForm | None, form: dict[str, Any], target: str, want: str, note: str | None
) -> None:
    memory = Memory()
    got, findings = settled(memory, declaring(memory, declared, **form), target, act="auto")
    assert got is not None and (got.number, got.mode, got.group) == (
        (w := activation(want, "BF16")).number,
        w.mode,
        w.group,
    )
    said = [f for f in findings if f.code == "act-fallback"]
    assert len(said) == (note is not None)
    if note is not None:
        assert said[0].severity == "note" and said[0].layer == "x" and note in said[0].message
        assert f"-> {want}:" in said[0].message


def test_a_declared_static_scale_that_is_not_there_becomes_a_dynamic_one() -> None:
    memory = Memory()
    layer = declaring(memory, activation("fp8:static", "BF16"), scale="channel")
    got, _ = settled(memory, layer, "sm90", act="auto")
    assert got is not None and got.mode == "dynamic_token"


def test_a_static_scale_that_is_not_used_is_dropped_with_a_note() -> None:
    memory = Memory()
    got, findings = settled(memory, declaring(memory, None, scale="channel", input_scale=0.5), "sm90", act="fp8")
    assert got is not None and got.mode == "dynamic_token"
    assert [f.code for f in findings] == ["input-scale-dropped"]


def test_a_slow_activation_that_was_asked_for_is_taken() -> None:
    memory = Memory()
    got, findings = settled(memory, memory.layer("x", scale="channel"), "sm100", act="fp8")
    assert got is not None and got.number == number("float8e4m3") and not list(findings)


def test_an_illegal_activation_is_refused_with_the_legal_ones() -> None:
    memory = Memory()
    got, findings = settled(memory, memory.layer("x", scale="channel", kind="uint8"), "sm90", act="fp8")
    (error,) = findings.errors
    assert got is None and (error.code, error.layer) == ("act-illegal", "x")
    assert "bf16" in error.message and "int8" in error.message and "--act-fallback" in str(error.advice)


def test_with_act_fallback_an_illegal_activation_falls_back_layer_by_layer() -> None:
    memory = Memory()
    got, findings = settled(memory, memory.layer("x", scale="channel", kind="uint8"), "sm90", act="fp8", act_fallback=True)
    assert got is not None and got.number == number("int8")
    assert [(f.severity, f.code, f.layer) for f in findings] == [("note", "act-fallback", "x")]


def test_a_legal_activation_does_not_fall_back_although_it_may() -> None:
    memory = Memory()
    got, findings = settled(memory, memory.layer("x"), "sm90", act="fp8", act_fallback=True)
    assert got is not None and got.number == number("float8e4m3") and not list(findings)


def test_what_packing_refuses_is_an_error_with_a_code_that_can_be_searched() -> None:
    memory = Memory()
    got, findings = settled(memory, memory.layer("x", k=40, scale="channel", low=1), "sm90", act="bf16", humming_version="0.1.19")
    (error,) = findings.errors
    assert got is None and error.code == "e0m-k-not-multiple-of-32" and error.layer == "x" and error.advice


@pytest.mark.parametrize(("option", "severity"), [("refuse", "error"), ("max", "warning")])
def test_rule_input_scale_missing(option: str, severity: str) -> None:
    """A part without a static scale: its own may have been larger than those of its siblings."""
    memory = Memory()
    layer = declaring(memory, None, scale="channel", input_scale=0.5)
    lacking = replace(layer, facts={"missing_input_scale": {"input_scale": ("x.q_proj",)}})
    _, findings = settled(memory, lacking, "sm90", act="fp8:static", read=ReadOptions(missing_input_scale=option))
    assert [(f.code, f.severity) for f in findings] == [("input-scale-missing", severity)]
    got, findings = settled(memory, lacking, "sm90", act="fp8")
    assert got is not None and [f.code for f in findings] == ["input-scale-dropped"]
