"""One combination explained rule by rule, and the matrix of what is legal, from the rules that conversion decides by."""

from __future__ import annotations

import pytest

from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import RULES, compatible, packable
from humming_convert.targets.refusals import ACCIDENTS, ADVICE, refuse
from humming_convert.targets.report import KINDS, SHOWN, explain, explanation, model_dtype, parse_weight, target_rows, with_dtype
from humming_convert.targets.table import TARGETS, find_target

# weight, activation, target: the rule of layouts.md 10.1 that says no
REFUSED = [
    ("float4e2m1", "fp8", "sm80", 2),
    ("uint4", "e3m4", "sm90", 2),
    ("uint4", "e3m4", "sm110", 3),
    ("uint8", "int4", "sm80", 4),
    ("uint8", "fp8", "sm90", 5),
    ("uint4:64", "e3m4", "sm100", 6),
    ("uint4:64", "fp8:128", "sm90", 7),
    ("uint4:16", "fp8", "sm90", 8),
]


@pytest.mark.parametrize(("weight", "act", "target", "rule"), REFUSED)
def test_the_rule_that_says_no_is_named_and_later_ones_are_not_asked(weight: str, act: str, target: str, rule: int) -> None:
    said = explain(weight, act, target)
    assert not said["legal"] and said["rule"] == rule
    assert [r["ok"] for r in said["rules"]] == [True] * (rule - 1) + [False] + [None] * (len(RULES) - rule)
    assert said["rules"][rule - 1]["reason"] == said["reason"] != ""


def test_every_rule_but_the_first_is_met_by_a_case() -> None:
    """The first asks for the model dtype, which an activation's name settles before."""
    assert {rule for *_, rule in REFUSED} == set(range(2, len(RULES) + 1))


def test_a_legal_pair_says_how_it_is_packed_and_what_else_is_legal() -> None:
    said = explain("uint4:128", "fp8", "h100")
    assert said["legal"] and said["rule"] == 0 and all(r["ok"] for r in said["rules"])
    assert said["layout"]["use_packed_k_layout"] is True and said["target"] == "sm90"
    assert {"bf16", "fp8", "int8"} <= set(said["legal_activations"])


def test_what_auto_would_take_instead_is_told_with_its_reason() -> None:
    said = explain("uint4:128", "fp8", "sm90")["auto"]
    assert said["act"] == "bf16" and "slower" in said["reason"]
    assert explain("uint4", "fp8", "sm90")["auto"] == {"act": "fp8", "reason": ""}


def test_what_the_rules_allow_and_packing_refuses_is_the_last_line() -> None:
    said = explain("float4e2m1+zp:128", "nvfp4", "sm120")
    assert not said["legal"]
    assert "NO" in "\n".join(explanation(said))


@pytest.mark.parametrize("target", [t.name for t in TARGETS])
def test_the_matrix_is_what_conversion_decides(target: str) -> None:
    head, rows = target_rows()
    row = dict(zip(head, next(r for r in rows if r[0] == target), strict=True))
    t = find_target(target)
    assert t is not None
    dtype = model_dtype(t)
    for label, _, form in KINDS:
        acts = [a for a in SHOWN if a != {"BF16": "fp16", "F16": "bf16"}[dtype]]
        legal = [a for a in acts if packable(with_dtype(form, t), activation(a, dtype), t, Environment(), dtype).ok]
        assert row[label].split() == legal, label


def test_explaining_and_deciding_are_one() -> None:
    for target in TARGETS:
        for weight in ("uint4", "uint4+zp:64", "uint8", "float8e4m3", "float4e2m1:32:float8e8m0"):
            for act in ("fp8", "int8", "mxfp8"):
                form = parse_weight(weight, target)
                verdict = compatible(form, activation(act, model_dtype(target)), target, Environment(), model_dtype(target))
                said = explain(weight, act, target.name)
                assert (said["rule"], said["reason"]) == (verdict.rule, verdict.reason) or said["rule"] == len(RULES) + 1


@pytest.mark.parametrize(
    ("arguments", "said"), [(("uint4", "fp8", "sm91"), "sm90"), (("uint4", "fp7", "sm90"), "fp8"), (("uint4-zp", "fp8", "sm90"), "uint4")]
)
def test_an_unknown_word_is_told_with_close_ones(arguments: tuple[str, str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        explain(*arguments)


# ------------------------------------------------------------------ refusals
def test_every_accident_is_a_refusal_with_advice() -> None:
    assert set(ACCIDENTS) <= set(ADVICE)


def test_an_accident_of_the_library_is_told_apart_from_a_limit() -> None:
    assert ACCIDENTS["tensor_dtype"] in str(refuse("tensor_dtype", "x"))
    limit = refuse("interleave_undefined", "x").findings[0]
    assert limit.message == "x" and explain("uint8", "fp8", "sm90")["accident"] is None
