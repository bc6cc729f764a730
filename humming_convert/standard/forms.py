"""Forms: what numbers a tensor stands for, apart from where its bits are.

Facts: layouts.md 1 (schema fields), architecture.md 4, formats.md 8.1.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from humming_convert.standard.numbers import NumberType

ScaleKind = Literal["tensor", "channel", "group", "block"]
InputMode = Literal["none", "static_tensor", "dynamic_token", "dynamic_group", "static_tensor_dynamic_group", "dynamic_group_token"]


class ScaleForm(Struct, frozen=True, kw_only=True):
    """`k`: weights along K that share a scale (0: all); `n`: rows (0: one). `dtype`: Humming's name of what is stored."""

    kind: ScaleKind
    dtype: str
    k: int = 0
    n: int = 0


class WeightForm(Struct, frozen=True, kw_only=True):
    """W = value(code) * scale * scale_2, or (code - zero point) * scale for unsigned integers."""

    number: NumberType
    scale: ScaleForm
    scale_2: Literal["none", "tensor", "channel"] = "none"
    zero_point: Literal["none", "int", "fp"] = "none"


class InputForm(Struct, frozen=True, kw_only=True):
    """Activations. `group`: along K, 0 for none; `scale_dtype`: None where nothing is quantized."""

    number: NumberType
    mode: InputMode
    group: int = 0
    scale_dtype: str | None = None
