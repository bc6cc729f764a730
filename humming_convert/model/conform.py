"""Bring a layer to the dtypes of the model: what the library casts when it loads is cast here, by name and measured.

In: a StandardLayer with the source's scale dtypes.  Out: the same layer with scales, secondary scales and bias as the runtime holds them.
Facts: formats.md 9.3, D16; runtimes.md 1.5; architecture.md 9.5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from humming_convert.standard.expr import Cast, Expr
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import MODEL_DTYPES

ModelDtype = Literal["BF16", "F16"]


def conform(layer: StandardLayer, dtype: ModelDtype, scale_dtype: Literal["model", "source"] = "model") -> StandardLayer:
    """Group and channel scales of 16 or 32 bits, channel secondary scales, float zero points and the bias in the model dtype.

    float8 scales, tensor and block scales (F32) stay.  scale_dtype "source": 16-bit scales keep their type; F32 ones are still cast.
    Steps: `block-to-rows` for rows that were blocks, `scale2-cast` for secondary scales, `scale-cast` for all else.
    """
    tensors = dict(layer.tensors)
    form = layer.form
    if form.scale.kind in ("group", "channel") and not form.scale.dtype.startswith("float8"):
        keep = scale_dtype == "source" and form.scale.dtype in MODEL_DTYPES.values()
        if not keep:
            step = "block-to-rows" if layer.facts.get("scales_from") == "block" else "scale-cast"
            tensors["weight_scale"] = _cast(tensors["weight_scale"], dtype, step, "weight_scale")
            form = replace(form, scale=replace(form.scale, dtype=MODEL_DTYPES[dtype]))
    if form.scale_2 == "channel":
        tensors["weight_scale_2"] = _cast(tensors["weight_scale_2"], dtype, "scale2-cast", "weight_scale_2")
    if form.zero_point == "fp":
        tensors["zero_point"] = _cast(tensors["zero_point"], dtype, "scale-cast", "zero_point")
    if "bias" in tensors:
        # the contract's list of free steps has no step of its own for a bias (architecture.md 9.5)
        tensors["bias"] = _cast(tensors["bias"], dtype, "scale-cast", "bias")
    return replace(layer, form=form, tensors=tensors)


def _cast(expr: Expr, dtype: str, step: str, tensor: str) -> Expr:
    return expr if expr.dtype == dtype else Cast(expr, dtype, step, tensor)
