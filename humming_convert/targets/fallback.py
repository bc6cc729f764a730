"""The serving caller's choice of another activation where the asked one is slow or not legal.

In: forms, target, environment.  Out: the activation to use and why.  A converter offers it, and says so.
Facts: layouts.md 10.3.
"""

from __future__ import annotations

from msgspec import Struct

from humming_convert.standard.forms import InputForm, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES, number
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import compatible
from humming_convert.targets.table import Target

NEXT: dict[str, tuple[str, ...]] = {  # requested -> tried in this order
    "float8e5m2": ("float8e4m3", "float8e3m4", "int8"),
    "float8e4m3": ("float8e3m4", "int8"),
    "float8e3m4": ("float8e4m3", "int8"),
    "float4e2m1": ("float8e4m3", "float8e3m4", "int8"),
    "float4e0m3": ("int4", "float8e4m3", "float8e3m4", "int8"),
    "int8": ("float8e4m3", "float8e3m4"),
    "int4": ("int8", "float8e4m3", "float8e3m4"),
}


class Fallback(Struct, frozen=True):
    """`input`: None if nothing fits. `reason`: empty where the asked activation is taken as it is."""

    input: InputForm | None
    reason: str = ""


def candidate(act: str, form: WeightForm, target: Target, param_dtype: str) -> InputForm:
    """The input form that the fall-back tries for a type (layouts.md 10.3, last line)."""
    t = number(act)
    if t.bits == 16:
        return InputForm(number=t, mode="none")
    plain = form.scale.kind == "channel" or (form.scale.k == 32 and form.scale.dtype == "float8e8m0")
    if act in ("float8e4m3", "float8e3m4") and target.sm >= 120 and plain:
        return InputForm(number=t, mode="dynamic_group", group=32, scale_dtype="float8e8m0")
    return InputForm(number=t, mode="dynamic_token", scale_dtype="float32")


def fall_back(form: WeightForm, input: InputForm, target: Target, env: Environment, param_dtype: str, *, allowed: bool = True) -> Fallback:  # noqa: A002
    """The activation that the serving caller ends with. `allowed`: it may choose another where the asked one is legal but slow."""
    model = MODEL_DTYPES[param_dtype]
    plain = candidate(model, form, target, param_dtype)
    asked = candidate("float8e4m3", form, target, param_dtype) if input.number.bits == 6 else input
    a = asked.number
    slow = target.is_slow(a.name, a.bits)
    legal = compatible(form, asked, target, env, param_dtype)
    if legal.ok:
        if a.bits == 16 or not allowed:
            return Fallback(asked)
        if not slow:
            microscaled = not a.is_integer and asked.group == 32 and asked.scale_dtype == "float8e8m0" and target.sm >= 120
            if a.bits == 8 and (asked.group or form.scale.k) and not microscaled:
                return Fallback(plain, f"{a} activations with group scales are slower than {model} on {target}")
            return Fallback(asked)
    why = legal.reason or f"{a} activations are slow on {target}"
    for act in (a.name, *NEXT.get(a.name, ()), model):
        if target.is_slow(act, number(act).bits):
            continue
        tried = candidate(act, form, target, param_dtype)
        if compatible(form, tried, target, env, param_dtype).ok:
            return Fallback(tried, why)
    return Fallback(None, why)
