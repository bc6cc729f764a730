"""Bring a layer to the dtypes of the model: what the library casts when it loads is cast here, by name and measured.

In: a StandardLayer with the source's scale dtypes.  Out: the same layer with scales, secondary scales and bias as the runtime holds them.
Facts: formats.md 9.3, D16; runtimes.md 1.5; architecture.md 9.5.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Findings, Rule
from humming_convert.standard.dequantize import DequantizedWeight
from humming_convert.standard.expr import Cast, Context, Expr
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import MODEL_DTYPES, scale_values, values

RULES = (
    Rule(630, "scale-overflow", "scales, biases and matrices written in the model dtype are within its range"),
    Rule(631, "scale-vanished", "scales of a layer are not all too small for the model dtype"),
)
ModelDtype = Literal["BF16", "F16"]
LARGEST: dict[str, tuple[float, str]] = {"F16": (65504.0, "65504"), "BF16": (3.3895313892515355e38, "3.39e38")}


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
        if bad:
            _overflow(findings, layer, expr.dtype, bad, role, view)
        elif role == "weight_scale" and not after.any():
            findings.error(
                "scale-vanished",
                f"all {after.size} values of {role} are too small for {name} and become 0",
                **_where(layer, view),
                advice=_advice(expr.dtype),
            )


def check_matrix(layer: StandardLayer, dtype: ModelDtype, read: Read, findings: Findings) -> None:
    """A layer that is to be written as a plain matrix in `dtype`: no number of it, nor its bias, may become infinite.

    The codes are looked at only if the largest code and the largest scales together could be too large.
    """
    check_range(
        replace(layer, tensors={r: _cast(e, dtype, "bias-cast", r) for r, e in layer.tensors.items() if r == "bias"}), read, findings
    )
    if _bound(layer, Context(read, Meter())) < LARGEST[dtype][0]:
        return
    matrix = DequantizedWeight(layer=layer, dtype=dtype, step="lm-head-dequantize").evaluate(Context(read, Meter()))
    if bad := int(np.isinf(matrix).sum()):
        _overflow(findings, layer, dtype, bad, "weight", next(iter(layer.tensors["weight_scale"].reads())))


def _bound(layer: StandardLayer, context: Context) -> float:
    """No number of the layer is larger: the largest code, shifted by the farthest zero point, times the largest scales."""
    form, roles = layer.form, ("weight_scale", "weight_scale_2", "zero_point")
    small = {r: layer.tensors[r].evaluate(context) for r in roles if r in layer.tensors}
    codes = values(form.number.name)
    largest = float(np.abs(codes[np.isfinite(codes)]).max())
    if form.zero_point != "none":
        largest += 1 << form.number.bits
    if form.zero_point == "fp":
        largest += float(np.abs(small["zero_point"].astype(np.float64)).max())
    largest *= float(np.abs(scale_values(small["weight_scale"], form.scale.dtype)).max())
    return largest * float(np.abs(small["weight_scale_2"].astype(np.float64)).max()) if "weight_scale_2" in small else largest


def _overflow(findings: Findings, layer: StandardLayer, dtype: str, bad: int, role: str, view: TensorView) -> None:
    message = f"{bad} values of {role} are beyond {LARGEST[dtype][1]}, the largest {MODEL_DTYPES[dtype]}"
    findings.error("scale-overflow", message, **_where(layer, view), advice=_advice(dtype), count=bad)


def _where(layer: StandardLayer, view: TensorView) -> dict[str, Any]:
    return {"layer": layer.name, "tensor": view.name, "file": view.file.name}


def _advice(dtype: str) -> str:
    return "--dtype bf16 holds them" if dtype == "F16" else "re-export the layer"
