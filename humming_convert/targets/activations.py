"""Activations by their command-line names: `bf16`, `fp8`, `fp8:128`, `int8:static`, `mxfp4`, ...

In: a name and the model dtype.  Out: an InputForm, whose scale dtype is None where the target decides (layouts.md 4.1, step 9).
Facts: architecture.md 9.2.
"""

from __future__ import annotations

import difflib

from humming_convert.standard.forms import InputForm
from humming_convert.standard.numbers import number

SIXTEEN = {"bf16": "bfloat16", "fp16": "float16"}
QUANTIZED = {"fp8": "float8e4m3", "fp8-e5m2": "float8e5m2", "e3m4": "float8e3m4", "int8": "int8", "int4": "int4", "e0m3": "float4e0m3"}
MICROSCALED = {  # name -> number, group, scale dtype
    "mxfp8": ("float8e4m3", 32, "float8e8m0"),
    "mxfp4": ("float4e2m1", 32, "float8e8m0"),
    "nvfp4": ("float4e2m1", 16, "float8e4m3"),
}
GROUPS = (16, 32, 64, 128)  # offered in lists; any positive G can be asked for

ACTS: tuple[str, ...] = (
    *SIXTEEN,
    *QUANTIZED,
    *MICROSCALED,
    *(f"{x}:{g}" for x in QUANTIZED for g in GROUPS),
    *(f"{x}:static" for x in QUANTIZED),
)
"""Every name that lists of legal activations are made from."""


def activation(name: str, model_dtype: str, *, static: bool = False) -> InputForm:
    """The form of a name. ValueError with suggestions for an unknown name, or a 16-bit type that is not the model's.

    model_dtype: `BF16` or `F16`.  static: every part has a static scale (`nvfp4` then uses it as its secondary scale).
    """
    if name in SIXTEEN:
        if SIXTEEN[name] != {"BF16": "bfloat16", "F16": "float16"}[model_dtype]:
            other = next(x for x in SIXTEEN if x != name)
            raise ValueError(f"activation {name} needs the model dtype {name}; use {other} or --dtype {name}")
        return InputForm(number=number(SIXTEEN[name]), mode="none")
    if name in MICROSCALED:
        t, group, scale = MICROSCALED[name]
        with_static = static and name == "nvfp4"
        return InputForm(
            number=number(t), mode="static_tensor_dynamic_group" if with_static else "dynamic_group", group=group, scale_dtype=scale
        )
    base, colon, rest = name.partition(":")
    if base in QUANTIZED:
        n = number(QUANTIZED[base])
        if not colon:
            return InputForm(number=n, mode="dynamic_token", scale_dtype="float32")
        if rest == "static":
            return InputForm(number=n, mode="static_tensor", scale_dtype="float32")
        if rest.isdecimal() and int(rest) > 0:
            return InputForm(number=n, mode="dynamic_group", group=int(rest))
    close = difflib.get_close_matches(name, ACTS, n=3, cutoff=0.5)
    known = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join((*SIXTEEN, *QUANTIZED, *MICROSCALED))}, X:G, X:static"
    raise ValueError(f"no activation {name!r}; {known}")


def act_name(form: InputForm) -> str | None:
    """The shortest name of a form, None if no name says it."""
    for name, t in SIXTEEN.items():
        if form.number.name == t:
            return name
    for name, (t, group, scale) in MICROSCALED.items():
        if (form.number.name, form.group, form.scale_dtype) == (t, group, scale) and form.mode in (
            "dynamic_group",
            "static_tensor_dynamic_group",
        ):
            return name
    for name, t in QUANTIZED.items():
        if form.number.name == t:
            if form.mode == "dynamic_token":
                return name
            if form.mode == "static_tensor":
                return f"{name}:static"
            if form.mode == "dynamic_group":
                return f"{name}:{form.group}"
    return None
