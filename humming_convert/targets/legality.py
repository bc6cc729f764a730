"""Which weight times which activation runs on which target: a question that packing itself does not ask.

In: forms, a target, the environment.  Out: a Verdict; the legal activations by name; what the GEMM kernel refuses later.
Facts: layouts.md 10.1 (the eight rules, in order), 10.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from humming_convert.findings import Finding, Refused
from humming_convert.standard.forms import InputForm, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES
from humming_convert.targets import activations
from humming_convert.targets.configure import check_schema, check_types, check_zero_points, configure
from humming_convert.targets.environment import Environment
from humming_convert.targets.pair import (
    E4M3,
    E8M0,
    FP4,
    UNDOCUMENTED,
    Pair,
    as_integer,
    is_umma_supported,
    mma_b_dtype,
    mxmma_supported,
    pair_of,
    undocumented_usable,
    use_block_scaled_mma,
    use_flat_weight,
    use_raw_weight,
)
from humming_convert.targets.table import Target

FIRST_SM = {  # layouts.md 10.1, rule 2
    "float16": 75,
    "bfloat16": 80,
    "int8": 75,
    "int4": 75,
    "float8e4m3": 89,
    "float8e5m2": 89,
    "float8e3m4": 100,
    "float4e2m1": 100,
    "float4e0m3": 100,
}


class Verdict(Struct, frozen=True):
    """`rule`: the number in layouts.md 10.1 of the rule that says no, 0 for yes."""

    ok: bool
    rule: int = 0
    reason: str = ""


def _types(p: Pair) -> str | None:
    try:
        check_types(p)
    except Refused as refused:
        return refused.findings[0].message
    return None


def _first_sm(p: Pair) -> str | None:
    first = FIRST_SM.get(p.a.name)
    if first is None:
        return f"{p.a} is no activation type"
    return f"{p.a} activations need sm{first} or later" if p.target.sm < first else None


def _undocumented(p: Pair) -> str | None:
    mb = mma_b_dtype(p)
    if undocumented_usable(p):
        return None
    if p.a.name in UNDOCUMENTED:
        return f"{p.a} activations need sm100, 103, 120 or 121 with patched cubins"
    if mb.name in UNDOCUMENTED and mb.bits == p.a.bits:
        return f"{mb} operands need sm100, 103, 120 or 121 with patched cubins"
    return None


def _width(p: Pair) -> str | None:
    widest = min(8, p.a.bits)
    return f"{p.b} is wider than {widest} bits" if p.b.bits > widest else None


def _values(p: Pair) -> str | None:
    """Does the type that the MMA takes hold every weight?"""
    a, b, zero = p.a, p.b, p.zero_point != "none"
    no = f"{a} activations cannot take {b}{' with zero points' if zero else ''} weights"
    if a.name == "int4":
        return None if b.is_integer and (b.bits < 4 or (b.bits == 4 and not zero)) else no
    if a.name == "int8":
        mxfp4 = b.name == "float4e2m1" and p.bs == E8M0 and p.gw == 32
        return None if mxfp4 or (b.is_integer and (b.bits < 8 or (b.bits == 8 and not zero))) else no
    mb = mma_b_dtype(p)
    if b.is_integer:
        return None if b.bits < mb.bits and b.bits <= mb.mantissa + (1 if zero else 2) else no
    if b.is_e0m:
        return None if b == mb or b.mantissa <= mb.mantissa + 1 else no
    return None if b.mantissa <= mb.mantissa and b.exponent <= mb.exponent else no


def _umma_groups(p: Pair) -> str | None:
    if p.target.family != "umma":
        return None
    operands = (p.a.name, mma_b_dtype(p).name)
    if "float8e3m4" in operands:
        inputs = p.gi == 0 or (p.gi == 32 and p.as_ in (None, E8M0))
        weights = p.gw == 0 or (p.gw == 32 and p.bs == E8M0)
        if not (inputs and weights and p.kind != "block"):
            return f"e3m4 on {p.target} needs groups of 32 with E8M0 scales, or none"
    if "float4e0m3" in operands and (p.gi or p.gw or 16) != 16:
        return f"e0m3 on {p.target} needs groups of 16"
    return None


def _two_groups(p: Pair) -> str | None:
    if not (p.gi and p.gw) or p.gi == p.gw:
        return None
    no = f"activation groups of {p.gi} and weight groups of {p.gw} do not go together"
    if not (p.b.name == "float4e2m1" and p.bs == E8M0 and p.gw == 32) or p.target.sm >= 120:
        return no
    if p.a.bits != 8:
        return None
    same = p.as_ is not None and p.as_ == p.bs
    hopper = p.target.sm == 90 and p.a.name == E4M3 and p.gi == 128 and p.as_ in (None, "float32")
    return None if same or hopper else no


def _least_groups(p: Pair) -> str | None:
    if 0 < p.gw < 16:
        return f"weight groups of {p.gw} are below 16"
    least = 64 if p.a.name == "int4" else 32 if p.a.bits == 8 else 0
    for name, group in (("weight", p.gw), ("activation", p.gi)):
        if 0 < group < least:
            return f"{name} groups of {group} are below {least} for {p.a} activations"
    if p.a.bits == 4 and not p.a.is_integer and p.gw and p.b.name in FP4:
        if p.bs not in (E8M0, E4M3):
            return f"FP4 weights with FP4 activations need E8M0 or E4M3 scales, not {p.bs}"
        if p.gi and (p.as_ or p.bs) != p.bs:
            return f"activation scales in {p.as_}, weight scales in {p.bs}"
    return None


RULES: tuple[tuple[str, Callable[[Pair], str | None]], ...] = (
    ("16-bit types are those of the model", _types),
    ("the GPU is new enough for the activation", _first_sm),
    ("e3m4 and e0m3, where they are used, run on it", _undocumented),
    ("weights are no wider than activations, nor than 8 bits", _width),
    ("the type that is multiplied holds every weight", _values),
    ("groups suit e3m4 and e0m3 on sm100 to sm110", _umma_groups),
    ("weight and activation groups go together", _two_groups),
    ("groups are large enough and their scales of a known type", _least_groups),
)
"""What has to hold, and the function that says why it does not (layouts.md 10.1)."""


def verdict(p: Pair) -> Verdict:
    """The rules of layouts.md 10.1 in order; the first no is final."""
    p = as_integer(p)
    for number, (_, rule) in enumerate(RULES, 1):
        if (reason := rule(p)) is not None:
            return Verdict(False, number, reason)
    return Verdict(True)


def compatible(form: WeightForm, input: InputForm, target: Target, env: Environment, param_dtype: str) -> Verdict:  # noqa: A002
    """Can a kernel run this form with this activation on this target? `param_dtype`: BF16 or F16."""
    if param_dtype not in MODEL_DTYPES:
        return Verdict(False, 1, f"the model dtype is {param_dtype}, not BF16 or F16")
    return verdict(pair_of(form, input, target, env, param_dtype))


def packable(form: WeightForm, input: InputForm, target: Target, env: Environment, param_dtype: str) -> Verdict:  # noqa: A002
    """compatible, and the serving caller and the configuration take it too (rule 9: what they refuse)."""
    if not (v := compatible(form, input, target, env, param_dtype)).ok:
        return v
    p = pair_of(form, input, target, env, param_dtype)
    if p.zero_point != "none" and p.a.bits == p.b.bits:
        return Verdict(False, 9, "zero points with weights as wide as activations")
    try:
        check_schema(p)
        check_zero_points(p)
        configure(as_integer(p))
    except Refused as refused:
        return Verdict(False, 9, refused.findings[0].message)
    return Verdict(True)


@lru_cache(maxsize=4096)
def legal_activations(form: WeightForm, target: Target, env: Environment, param_dtype: str) -> tuple[str, ...]:
    """Names of `activations.ACTS` that run with this form on this target."""
    own = next(name for name, t in activations.SIXTEEN.items() if t == MODEL_DTYPES[param_dtype])
    names = (own, *(a for a in activations.ACTS if a not in activations.SIXTEEN))
    return tuple(a for a in names if packable(form, activations.activation(a, param_dtype), target, env, param_dtype).ok)


def kernel_warnings(p: Pair) -> tuple[Finding, ...]:
    """What the GEMM kernel would refuse when it is configured (layouts.md 10.2). `p`: configured."""
    found: list[str] = []
    step = 256 // p.a.bits
    scaled = use_block_scaled_mma(p)
    for name, group in (("weight", p.gw), ("activation", p.gi)):
        if group and not scaled and group < step:
            found.append(f"{name} groups of {group} are below one MMA step of {step}")
        if group and scaled and step / group not in (1, 2, 4):
            found.append(f"{name} groups of {group} do not divide one MMA step of {step} into 1, 2 or 4")
    if not scaled and 1 < p.gn < 64:
        found.append(f"block scales of {p.gn} rows; 64 is the least")
    if p.kind == "block" and not scaled:
        if p.gi and p.gi != p.gw:
            found.append(f"block scales of {p.gw} columns with activation groups of {p.gi}")
        if p.zero_point != "none":
            found.append("block scales with zero points")
    four_scales = p.a.bits == 4 and p.bs == E8M0 and 256 // p.a.bits == 4 * mma_group(p)
    if mxmma_supported(p) and four_scales and p.env.compiler < (13, 1):
        found.append("FP4 with four E8M0 scales a step needs CUDA 13.1")
    if is_umma_supported(p) and p.env.compiler < (12, 9):
        found.append("UMMA needs CUDA 12.9")
    if p.a.name in ("float4e2m1", "float4e0m3", "float8e3m4") and p.target.sm < 120 and not is_umma_supported(p):
        found.append(f"MMA with {p.a} activations needs sm120")
    if p.a.bits == p.b.bits and p.a.is_integer and p.a != p.b:
        found.append(f"{p.a} activations with {p.b} weights of the same width")
    return tuple(Finding(severity="warning", code="kernel-may-refuse", message=m) for m in found)


def mma_group(p: Pair) -> int:
    return p.gi or p.gw or 32


def layout_exists(p: Pair) -> bool:
    """layouts.md 5.7: codes wider than the activation have no repacked order."""
    width = 1 << (p.b.bits - 1).bit_length()
    return use_raw_weight(p) or use_flat_weight(p) or width <= p.a.bits
