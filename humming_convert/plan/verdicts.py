"""What each target could do: the tables of `targets` and of `inspect`, from the rules that conversion decides by."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES, number
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import compatible, legal_activations
from humming_convert.targets.table import TARGETS, Target, find_target


def _form(name: str, g: int, dtype: str, zero: Literal["none", "int"]) -> WeightForm:
    return WeightForm(number=number(name), scale=ScaleForm(kind="group" if g else "channel", dtype=dtype, k=g), zero_point=zero)


KINDS: tuple[tuple[str, WeightForm], ...] = (
    ("int4 g128", _form("uint4", 128, "", "none")),
    ("int4 zp g128", _form("uint4", 128, "", "int")),
    ("int8 channel", _form("uint8", 0, "", "none")),
    ("fp8 channel", _form("float8e4m3", 0, "", "none")),
    ("mxfp4", _form("float4e2m1", 32, "float8e8m0", "none")),
    ("nvfp4", _form("float4e2m1", 16, "float8e4m3", "none")),
    ("mxfp8", _form("float8e4m3", 32, "float8e8m0", "none")),
)
"""Typical weights for the overview; dtype "" stands for the model dtype."""
SHOWN = ("bf16", "fp16", "fp8", "int8", "int4", "mxfp8", "mxfp4", "nvfp4")  # activations of the overview


def model_dtype(target: Target) -> str:
    return "BF16" if target.sm >= 80 else "F16"


def with_dtype(form: WeightForm, target: Target) -> WeightForm:
    return form if form.scale.dtype else replace(form, scale=replace(form.scale, dtype=MODEL_DTYPES[model_dtype(target)]))


def target_rows(env: Environment | None = None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(head, rows): a row a target; a column a typical weight, its cells the legal activations of SHOWN."""
    env = env or Environment()
    head = ("target", "also", "seen", *(label for label, _ in KINDS))
    rows = []
    for t in TARGETS:
        cells = [" ".join(a for a in SHOWN if a in legal_activations(with_dtype(f, t), t, env, model_dtype(t))) for _, f in KINDS]
        rows.append((t.name, " ".join(t.names), t.seen, *cells))
    return head, rows


def parse_weight(text: str, target: Target) -> WeightForm:
    """`uint4`, `uint4+zp`, `uint4:128`, `float4e2m1:32:float8e8m0`: type, zero points, group, scale type. ValueError if it is none."""
    name, _, rest = text.partition(":")
    name, plus, zero = name.partition("+")
    group, _, dtype = rest.partition(":")
    if (plus and zero != "zp") or not re.fullmatch(r"\d*", group):
        raise ValueError(f"{text!r} is no weight; write TYPE[+zp][:GROUP[:SCALE_TYPE]], e.g. uint4+zp:128 or float4e2m1:32:float8e8m0")
    g = int(group or 0)
    scale = ScaleForm(kind="group" if g else "channel", dtype=dtype, k=g)
    return with_dtype(WeightForm(number=number(name), scale=scale, zero_point="int" if plus else "none"), target)


def explain(weight: str, act: str, target_name: str, env: Environment | None = None) -> dict[str, Any]:
    """One verdict of the legality rules, with the rule that decided. ValueError names what is not known."""
    env = env or Environment()
    target = find_target(target_name)
    if target is None:
        raise ValueError(f"no target {target_name!r}")
    dtype = model_dtype(target)
    form = parse_weight(weight, target)
    verdict = compatible(form, activation(act, dtype), target, env, dtype)
    return {
        "weight": weight,
        "act": act,
        "target": target.name,
        "legal": verdict.ok,
        "rule": verdict.rule,
        "reason": verdict.reason,
        "legal_activations": list(legal_activations(form, target, env, dtype)),
    }
