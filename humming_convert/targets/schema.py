"""Humming's schema dictionaries read as forms.

In: the fields of layouts.md 1 (weight) and 4.1 (input).  Out: WeightForm, InputForm.
Facts: layouts.md 1, 4.1 steps 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from humming_convert.standard.forms import InputForm, InputMode, ScaleForm, ScaleKind, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES, number
from humming_convert.targets.pair import unsigned


def weight_form(schema: Mapping[str, Any], param_dtype: str) -> WeightForm:
    """`param_dtype`: BF16 or F16, the type of scales whose `bs_dtype` is null."""
    gw, gn = schema.get("weight_scale_group_size") or 0, schema.get("weight_scale_group_size_n") or 0
    kind: ScaleKind = schema.get("weight_scale_type") or ("block" if gn > 1 else "channel" if gw == 0 else "group")
    # tensor scales are stored as float32 whatever the name is; the layer class keeps the name, serving makes it float32 (layouts.md S0)
    dtype = "float32" if kind == "block" else schema.get("bs_dtype") or MODEL_DTYPES[param_dtype]
    zero: Literal["none", "int", "fp"] = "none" if not schema.get("has_zero_point") else "fp" if schema.get("is_fp_zero_point") else "int"
    return WeightForm(
        number=unsigned(number(schema["b_dtype"])),
        scale=ScaleForm(kind=kind, dtype=dtype, k=gw, n=gn),
        scale_2=schema.get("weight_scale_2_type") or "none",
        zero_point=zero,
    )


def input_form(schema: Mapping[str, Any], param_dtype: str) -> InputForm:
    """A missing `a_dtype` is the model dtype; a missing mode follows from type and group."""
    n = number(schema.get("a_dtype") or MODEL_DTYPES[param_dtype])
    group = schema.get("input_scale_group_size") or 0
    default: InputMode = "none" if n.bits == 16 else "dynamic_group" if group else "dynamic_token"
    return InputForm(number=n, mode=schema.get("input_quant_mode") or default, group=group, scale_dtype=schema.get("input_scale_dtype"))
