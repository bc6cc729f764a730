"""Bring the parts of a fused layer to one form, exactly, or say why they cannot share one.

In: standard layers that are to be stacked.  Out: the same layers in one form, or a `Rejected` with the reason.
Facts: formats.md 10.5, runtimes.md 1.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import gcd
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.standard.expr import Expr, apply, operation
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.rewrite import absorb_zero_point, explicit_zero_point, regroup, to_rows, widen

SMALLEST_GROUP = 16  # layouts.md 10.1, rule 8
PLAIN_SCALES = ("float16", "bfloat16", "float32")
Zeros = str  # "explicit": symmetric parts get a zero point 2^(b-1); "absorb": asymmetric parts lose theirs (one bit more)


Array = NDArray[Any]


@operation("spread_parts")
def _spread_parts(x: Array, stack_n: tuple[int, ...], experts: int | None) -> Array:
    """One value a part ([q], [E, q] or [E]; or one for all parts) as one a row: [n], with experts [E, n]."""
    values = x.reshape(experts or 1, -1)
    values = np.broadcast_to(values, (values.shape[0], len(stack_n))) if values.shape[1] == 1 else values
    out = np.repeat(values, stack_n, axis=1)
    return out if experts is not None else out[0]


class Rejected(Struct, frozen=True):
    """Why parts cannot be stacked. `layers`: the names it is about."""

    reason: str
    layers: tuple[str, ...] = ()


Parts = list[StandardLayer]
Step = Callable[[Parts], "Parts | Rejected"]


def unify(parts: Sequence[StandardLayer], *, zeros: Zeros = "explicit", keep_tensor: bool = True, same_k: bool = True) -> Parts | Rejected:
    """The parts in one form. keep_tensor: tensor scales may stay (one value a part); else they become channel scales.

    same_k False: parts that share their form but are not stacked (w13 and w2 of one mixture of experts).
    """
    now: Parts = list(parts)
    if same_k and len({p.k for p in now}) > 1:
        return _told(now, lambda p: f"K {p.k}")
    steps: tuple[Step, ...] = (
        _codes_alike,
        _zeros_absorbed if zeros == "absorb" else _zeros_explicit,
        _widths_alike,
        _scale_kinds_alike if keep_tensor else _no_tensor_scales,
        _scale_dtypes_alike,
        _scale_2_alike if keep_tensor else _no_tensor_scale_2,
    )
    for step in steps:
        after = step(now)
        if isinstance(after, Rejected):
            return after
        now = after
    forms = {p.form for p in now}
    assert len(forms) == 1, forms
    return now


def _told(parts: Sequence[StandardLayer], says: Callable[[StandardLayer], str]) -> Rejected:
    """`q_proj has A, k_proj has B`: the first part of every different saying."""
    first: dict[str, str] = {}
    for p in parts:
        first.setdefault(says(p), p.name)
    text = ", ".join(
        f"{name.rpartition('.')[2] if len(set(first.values())) == len(first) else name} has {what}" for what, name in first.items()
    )
    return Rejected(text, tuple(first.values()))


# ------------------------------------------------------------------ codes
def _codes_alike(parts: Parts) -> Parts | Rejected:
    """One kind of codes: integers of any width, or one float type."""
    kinds = {p.form.number.name if p.form.number.kind == "float" else p.form.number.kind for p in parts}
    if len(kinds) > 1:
        return _told(parts, lambda p: f"{p.form.number.name} codes")
    if len({p.form.zero_point for p in parts} & {"int", "fp"}) > 1 or (
        any(p.form.zero_point == "fp" for p in parts) and any(p.form.zero_point == "none" for p in parts)
    ):
        return _told(parts, lambda p: f"zero point {p.form.zero_point}")
    return parts


def _zeros_explicit(parts: Parts) -> Parts | Rejected:
    """Zero points for all as soon as one has them; symmetric parts of another width are widened first where that helps."""
    asymmetric = {p.form.number.bits for p in parts if p.form.zero_point == "int"}
    if not asymmetric:
        return parts
    if len(asymmetric) > 1 or any(p.form.number.bits > max(asymmetric) for p in parts):
        return _told(parts, lambda p: f"{p.form.number.name} with zero point {p.form.zero_point}")
    bits = max(asymmetric)
    return [explicit_zero_point(widen(p, bits)) if p.form.zero_point == "none" else p for p in parts]


def _zeros_absorbed(parts: Parts) -> Parts | Rejected:
    """No zero point for any: uint b with zero points becomes uint b+1 (runtimes.md 1.8)."""
    if any(p.form.zero_point == "fp" or (p.form.zero_point == "int" and p.form.number.bits > 7) for p in parts):
        return _told(parts, lambda p: f"{p.form.number.name} with zero point {p.form.zero_point}")
    return [absorb_zero_point(p) for p in parts]


def _widths_alike(parts: Parts) -> Parts | Rejected:
    """Symmetric integers of the largest width."""
    bits = {p.form.number.bits for p in parts}
    if len(bits) == 1:
        return parts
    if any(p.form.zero_point != "none" or p.form.number.kind != "uint" for p in parts):
        return _told(parts, lambda p: f"{p.form.number.name} with zero point {p.form.zero_point}")
    return [widen(p, max(bits)) for p in parts]


# ------------------------------------------------------------------ scales
def rows_of_tensor(layer: StandardLayer) -> StandardLayer:
    """A tensor-scaled layer with its value repeated for every row: channel form, still F32."""
    form = layer.form.scale
    if form.kind != "tensor":
        return layer
    scale = spread_tensor(layer, layer.tensors["weight_scale"])
    column = apply("reshape", scale, params=((*scale.shape, 1),), shape=(*scale.shape, 1))
    return replace(
        layer,
        form=replace(layer.form, scale=ScaleForm(kind="channel", dtype=form.dtype)),
        tensors={**layer.tensors, "weight_scale": column},
    )


def spread_tensor(layer: StandardLayer, value: Expr) -> Expr:
    """One value a part, F32 [q] or [E, q] ([E] for q = 1), as one a row: [N] or [E, N]."""
    experts = () if layer.experts is None else (layer.experts,)
    return apply("spread_parts", value, params=(layer.stack_n, layer.experts), shape=(*experts, layer.n))


def _whole_blocks(parts: Sequence[StandardLayer]) -> bool:
    """Every part is a whole number of blocks, so that stacking keeps the grid."""
    return all(n % p.form.scale.n == 0 and p.k % p.form.scale.k == 0 for p in parts for n in p.stack_n)


def whole_or_rows(layer: StandardLayer) -> StandardLayer:
    """A block-scaled layer whose blocks do not divide it, with a scale for every row; others unchanged (architecture.md 9.4)."""
    return layer if layer.form.scale.kind != "block" or _whole_blocks([layer]) else to_rows(layer)


def _scale_kinds_alike(parts: Parts) -> Parts | Rejected:
    """tensor with tensor, whole blocks with the same blocks; else one scale a row, and the greatest common group."""
    kinds = {p.form.scale.kind for p in parts}
    if kinds == {"tensor"}:
        return parts
    if kinds == {"block"} and len({p.form.scale for p in parts}) == 1 and _whole_blocks(parts):
        return parts
    return _rows_and_groups([rows_of_tensor(to_rows(p)) for p in parts])


def _no_tensor_scales(parts: Parts) -> Parts | Rejected:
    return _scale_kinds_alike([rows_of_tensor(p) for p in parts])


def _rows_and_groups(parts: Parts) -> Parts | Rejected:
    if all(p.form.scale.kind == "channel" for p in parts):
        return parts
    group = reduce(gcd, (p.form.scale.k or p.k for p in parts))
    if group < SMALLEST_GROUP:
        return _told(parts, lambda p: f"groups of {p.form.scale.k or p.k}")
    return [regroup(p, group) for p in parts]


def _scale_dtypes_alike(parts: Parts) -> Parts | Rejected:
    """Scales of one dtype; 16-bit ones of different types become F32 (exact) and are rounded once, later."""
    dtypes = {p.form.scale.dtype for p in parts}
    if len(dtypes) == 1:
        return parts
    if not dtypes <= set(PLAIN_SCALES):
        return _told(parts, lambda p: f"{p.form.scale.dtype} scales")
    return [
        replace(
            p,
            form=replace(p.form, scale=replace(p.form.scale, dtype="float32")),
            tensors={
                **p.tensors,
                "weight_scale": apply("float32", p.tensors["weight_scale"], dtype="F32", shape=p.tensors["weight_scale"].shape),
            },
        )
        for p in parts
    ]


def rows_of_scale_2(layer: StandardLayer) -> StandardLayer:
    """A tensor secondary scale repeated for every row, still F32 [n] ([E, n])."""
    if layer.form.scale_2 != "tensor":
        return layer
    rows = spread_tensor(layer, layer.tensors["weight_scale_2"])
    return replace(layer, form=replace(layer.form, scale_2="channel"), tensors={**layer.tensors, "weight_scale_2": rows})


def _scale_2_alike(parts: Parts) -> Parts | Rejected:
    """All or none; one value a part, or one a row as soon as one part has those."""
    kinds = {p.form.scale_2 for p in parts}
    if "none" in kinds and len(kinds) > 1:
        return _told(parts, lambda p: "no secondary scale" if p.form.scale_2 == "none" else "a secondary scale")
    parts = parts if len(kinds) == 1 else [rows_of_scale_2(p) for p in parts]
    if len({p.tensors["weight_scale_2"].dtype for p in parts if p.form.scale_2 == "channel"}) <= 1:
        return parts
    return [
        replace(
            p,
            tensors={
                **p.tensors,
                "weight_scale_2": apply("float32", p.tensors["weight_scale_2"], dtype="F32", shape=p.tensors["weight_scale_2"].shape),
            },
        )
        for p in parts
    ]


def _no_tensor_scale_2(parts: Parts) -> Parts | Rejected:
    return _scale_2_alike([rows_of_scale_2(p) for p in parts])
