"""All that the rules say of combinations: one of them rule by rule, and the matrix of what is legal. `targets`, the docs and the grid read it.

In: forms, target, environment, or their names.  Out: plain values.
Facts: golden/README.md (flags.jsonl.gz), layouts.md 4, 10.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from humming_convert.findings import Refused
from humming_convert.standard.forms import InputForm, ScaleForm, ScaleKind, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES, number
from humming_convert.targets.activations import act_name, activation
from humming_convert.targets.configure import channel_for_int8, check_schema, check_zero_points, configure, model_scales, split_group
from humming_convert.targets.environment import Environment
from humming_convert.targets.fallback import fall_back
from humming_convert.targets.legality import RULES, compatible, kernel_warnings, legal_activations, packable
from humming_convert.targets.pair import Pair, as_integer, flags, pair_of
from humming_convert.targets.refusals import ACCIDENTS
from humming_convert.targets.table import TARGETS, Target, find_target, suggest_targets


def configured(p: Pair) -> Pair:
    """The pair as it is stored, no data looked at. Raises Refused as the library does."""
    return configure(split_group(channel_for_int8(as_integer(model_scales(p)))))


def report(
    form: WeightForm,
    input: InputForm,  # noqa: A002
    target: Target,
    env: Environment,
    param_dtype: str,
    *,
    n_padded: int = 256,
) -> dict[str, Any]:
    """status: `ok`, `schema_refused` (no tensors can be described), `config_refused`; `reason` then says why. No data is looked at."""
    out: dict[str, Any] = {"status": "schema_refused", "compatible": None, "rule": 0, "why": "", "reason": None}
    p = pair_of(form, input, target, env, param_dtype)
    try:
        check_schema(p)
        check_zero_points(p)
        verdict = compatible(form, input, target, env, param_dtype)
        out |= {"status": "config_refused", "compatible": verdict.ok, "rule": verdict.rule, "why": verdict.reason}
        p = configured(p)
    except Refused as refused:
        return out | {"reason": refused.findings[0].code}
    return (
        out
        | dict(flags(p, n_padded))
        | {
            "status": "ok",
            "b_dtype": p.b.name,
            "bs_dtype": p.bs,
            "as_dtype": p.as_,
            "weight_scale_group_size": p.gw,
            "weight_scale_type": p.kind,
            "weight_scale_2_type": p.scale_2,
            "input_quant_mode": p.mode,
        }
    )


# ------------------------------------------------------------------ the matrix
def _weight(name: str, kind: ScaleKind, k: int = 0, dtype: str = "", n: int = 0) -> WeightForm:
    return WeightForm(number=number(name), scale=ScaleForm(kind=kind, dtype=dtype, k=k, n=n))


INT4 = _weight("uint4", "group", 128)
NVFP4 = _weight("float4e2m1", "group", 16, "float8e4m3")
KINDS: tuple[tuple[str, str, WeightForm], ...] = (
    ("int4 g128", "4-bit integers, groups of 128 (GPTQ, AWQ, compressed-tensors)", INT4),
    ("int4 zp g128", "the same with zero points", replace(INT4, zero_point="int")),
    ("int3 g128", "3-bit integers, groups of 128", _weight("uint3", "group", 128)),
    ("int8 channel", "8-bit integers, channel", _weight("uint8", "channel")),
    ("fp8 channel", "FP8, channel", _weight("float8e4m3", "channel")),
    ("fp8 block", "FP8, blocks of 128 x 128", _weight("float8e4m3", "block", 128, "float32", 128)),
    ("mxfp4", "MXFP4", _weight("float4e2m1", "group", 32, "float8e8m0")),
    ("nvfp4", "NVFP4", replace(NVFP4, scale_2="tensor")),
    ("mxfp8", "MXFP8", _weight("float8e4m3", "group", 32, "float8e8m0")),
)
"""Typical weights: short name, in words, form; the scale dtype "" stands for the model's."""
SHOWN = ("bf16", "fp16", "fp8", "int8", "int4", "mxfp8", "mxfp4", "nvfp4")  # activations of the overview


def model_dtype(target: Target) -> str:
    return "BF16" if target.sm >= 80 else "F16"


def with_dtype(form: WeightForm, target: Target) -> WeightForm:
    return form if form.scale.dtype else replace(form, scale=replace(form.scale, dtype=MODEL_DTYPES[model_dtype(target)]))


def legal_of(form: WeightForm, target: Target, env: Environment, shown: Sequence[str]) -> list[str]:
    """The activations among `shown` that run with a form of KINDS on a target."""
    legal = legal_activations(with_dtype(form, target), target, env, model_dtype(target))
    return [a for a in shown if a in legal]


def target_rows(env: Environment | None = None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(head, rows): a row a target; a column a typical weight, its cells the legal activations of SHOWN."""
    env = env or Environment()
    head = ("target", "also", "seen", *(label for label, _, _ in KINDS))
    rows = [(t.name, " ".join(t.names), t.seen, *(" ".join(legal_of(f, t, env, SHOWN)) for _, _, f in KINDS)) for t in TARGETS]
    return head, rows


# ------------------------------------------------------------------ one combination, rule by rule
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
    """One combination: every rule with its answer, what packing and the serving caller say, what is legal instead.

    ValueError names what is not known. A rule after the first no is not asked: `ok` is None there.
    """
    env = env or Environment()
    target = find_target(target_name)
    if target is None:
        raise ValueError(f"no target {target_name!r}; did you mean {' or '.join(suggest_targets(target_name))}?")
    dtype = model_dtype(target)
    form, given = parse_weight(weight, target), activation(act, dtype)
    said = report(form, given, target, env, dtype)
    last = said["rule"] or len(RULES)
    rules = [
        {"rule": i, "what": what, "ok": i != said["rule"] if i <= last else None, "reason": said["why"] if i == said["rule"] else ""}
        for i, (what, _) in enumerate(RULES, 1)
    ]
    verdict = packable(form, given, target, env, dtype)
    instead = fall_back(form, given, target, env, dtype)
    p = pair_of(form, given, target, env, dtype)
    return {
        "weight": weight,
        "act": act,
        "target": target.name,
        "legal": verdict.ok,
        "rule": verdict.rule,
        "reason": verdict.reason,
        "rules": rules,
        # rule 9: what packing refuses though a kernel could be asked for it, or the serving caller does
        "refused": said["reason"] if said["reason"] is not None else "equal_bits_zero_point" if verdict.rule == len(RULES) + 1 else None,
        "accident": ACCIDENTS.get(said["reason"] or ""),
        "layout": {k: v for k, v in said.items() if k.startswith(("use_", "weight_scale_")) or k in ("b_dtype", "default_mma")},
        "warnings": [f.message for f in kernel_warnings(configured(p))] if verdict.ok else [],
        "auto": {"act": None if instead.input is None else act_name(instead.input), "reason": instead.reason},
        "legal_activations": list(legal_activations(form, target, env, dtype)),
    }


def explanation(said: dict[str, Any]) -> list[str]:
    """`explain` for people: a line a rule."""
    marks = {True: "yes", False: "NO", None: "-"}
    lines = [f"{said['weight']} weights with {said['act']} activations on {said['target']}: {'legal' if said['legal'] else 'not legal'}"]
    lines += [f"  {r['rule']} {marks[r['ok']]:<4}{r['what']}{': ' + r['reason'] if r['reason'] else ''}" for r in said["rules"]]
    if said["rule"] == len(RULES) + 1:
        lines.append(f"  {said['rule']} {marks[False]:<4}packing and serving take it: {said['reason']}")
    if said["accident"]:
        lines.append(f"  this is how the library is written, not a limit of the kernels: {said['accident']}")
    if said["legal"]:
        layout = said["layout"]
        used = [k for k, v in layout.items() if k.startswith("use_") and v]
        lines.append(f"  packed as {layout['b_dtype']}, {layout['weight_scale_type']} scales{', ' + ', '.join(used) if used else ''}")
    lines += [f"  warning: {w}" for w in said["warnings"]]
    auto = said["auto"]
    if auto["reason"]:
        lines.append(f"  --act auto would take {auto['act'] or 'nothing'}: {auto['reason']}")
    lines.append(f"legal: {' '.join(said['legal_activations']) or 'none'}")
    return lines
