"""Bring a layer to the dtypes of the model: what the library casts when it loads is cast here, by name and measured.

In: a StandardLayer with the source's scale dtypes.  Out: the same layer with scales, secondary scales and bias as the runtime holds them.
Facts: formats.md 9.3, D16; runtimes.md 1.5; architecture.md 9.5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from humming_convert.checkpoint.tensors import Read
from humming_convert.findings import Findings, Rule
from humming_convert.standard.expr import Cast, Context, Expr
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import MODEL_DTYPES

RULES = (
    Rule(630, "scale-overflow", "scales and biases are within the range of the model dtype"),
    Rule(631, "scale-vanished", "scales of a layer are not all too small for the model dtype"),
)
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


def check_range(layer: StandardLayer, read: Read, findings: Findings) -> None:
    """What the model dtype cannot hold becomes infinite when it is cast, or 0 (D16). Looks at small tensors that come from a wider type;
    their values were found finite, and not all zero, when they were read."""
    for role, expr in layer.tensors.items():
        if not isinstance(expr, Cast) or expr.dtype not in MODEL_DTYPES or expr.arg.dtype not in ("BF16", "F32", "F64"):
            continue
        after = expr.evaluate(Context(read, Meter()))
        bad, view, name = int(np.isinf(after).sum()), next(iter(expr.reads())), MODEL_DTYPES[expr.dtype]
        where: dict[str, Any] = {"layer": layer.name, "tensor": view.name, "file": view.file.name}
        advice = "--dtype bf16 holds them" if expr.dtype == "F16" else "re-export the layer"
        if bad:
            largest = "65504" if expr.dtype == "F16" else "3.39e38"
            findings.error(
                "scale-overflow", f"{bad} values of {role} are beyond {largest}, the largest {name}", **where, advice=advice, count=bad
            )
        elif role == "weight_scale" and not after.any():
            findings.error(
                "scale-vanished", f"all {after.size} values of {role} are too small for {name} and become 0", **where, advice=advice
            )
