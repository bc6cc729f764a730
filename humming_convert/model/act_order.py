"""Act-order: columns that are grouped by g_idx are sorted by group, and the layers that produce the input follow with their rows.

In: standard layers, those in act-order with `facts["g_idx"]`.  Out: layers in plain groups; what cannot be folded is refused, or
listed to be written as plain matrices.
Facts: formats.md 2.8, D6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Findings, Rule
from humming_convert.model.families import ACT_ORDER_PRODUCERS
from humming_convert.standard.expr import CodeBlock, Expr, Stored, Weight, apply, operation
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.packing_ct import zero_codes, zero_words

RULES = (Rule(610, "act-order", "columns in act-order can be folded into the rows of the layers before"),)

Array = NDArray[Any]


# ------------------------------------------------------------------ operations
@operation("sorted_by_group")
def _sorted_by_group(g_idx: Array) -> Array:
    """Columns in the order of their groups, stable: int64 [k]."""
    return np.argsort(g_idx, kind="stable").astype(np.int64)


@operation("gather_rows")
def _gather_rows(x: Array, order: Array) -> Array:
    """Rows in a new order; N is the last axis but one, or the only one."""
    return np.ascontiguousarray(np.take(x, order, axis=max(x.ndim - 2, 0)))


@operation("gather_last")
def _gather_last(x: Array, order: Array) -> Array:
    """Entries of the last axis in a new order ([n] and [E, n])."""
    return np.ascontiguousarray(np.take(x, order, axis=-1))


@operation("gather_zero_words")
def _gather_zero_words(x: Array, order: Array, bits: int, n: int) -> Array:
    """Zero points, packed along N in words [..., ceil(n*bits/32), groups], with their rows in a new order."""
    return zero_words(zero_codes(x, bits, n)[..., order, :], bits)


def permute_rows(layer: StandardLayer, order: Expr) -> StandardLayer:
    """The layer with new row i = old row order[i] in everything that has rows. order: int64 [n]; with experts the same for each of them.

    Not for block scales (they would have to be written for every row first), nor for tensor scales of several parts.
    """
    assert layer.form.scale.kind != "block" and len(layer.stack_n) == 1, layer.name
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight), layer.name
    changed: dict[str, Expr] = {"weight": replace(weight, blocks=tuple(_rows_of(b, order) for b in weight.blocks))}
    for role, expr in layer.tensors.items():
        if role == "weight_scale" and layer.form.scale.kind != "tensor":
            changed[role] = apply("gather_rows", expr, order, shape=expr.shape)
        elif role == "zero_point" and layer.form.zero_point == "int":
            changed[role] = apply("gather_zero_words", expr, order, params=(layer.form.number.bits, layer.n), shape=expr.shape)
        elif role == "zero_point":
            changed[role] = apply("gather_rows", expr, order, shape=expr.shape)
        elif role == "bias" or (role == "weight_scale_2" and layer.form.scale_2 == "channel"):
            changed[role] = apply("gather_last", expr, order, shape=expr.shape)
    return replace(layer, tensors={**layer.tensors, **changed})


def _rows_of(block: CodeBlock, order: Expr) -> CodeBlock:
    assert block.recode is None, block.part
    before = block.row_order
    return replace(block, row_order=order if before is None else apply("gather_last", before, order))


def _columns_of(layer: StandardLayer, order: Expr) -> StandardLayer:
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight) and all(b.col_order is None for b in weight.blocks), layer.name
    blocks = tuple(replace(b, col_order=order) for b in weight.blocks)
    facts = {k: v for k, v in layer.facts.items() if k != "g_idx"}
    return replace(layer, tensors={**layer.tensors, "weight": replace(weight, blocks=blocks)}, facts=facts)


# ------------------------------------------------------------------ which can be folded
def g_idx_of(layer: StandardLayer) -> Expr | None:
    """The group of every column, None if the layer is in plain groups."""
    g_idx = layer.facts.get("g_idx")
    if g_idx is None:
        return None
    return Stored(g_idx) if isinstance(g_idx, TensorView) else g_idx


class Folded(Struct, frozen=True):
    """`layers`: all in plain groups, in the order they came.  `dequantize`: layers in act-order to be written as plain matrices."""

    layers: tuple[StandardLayer, ...]
    dequantize: tuple[StandardLayer, ...]


def producers_of(name: str, by_name: dict[str, StandardLayer]) -> tuple[StandardLayer, ...] | None:
    """The layers whose rows may follow this layer's columns, None if there are none such (formats.md 2.8)."""
    parent, _, leaf = name.rpartition(".")
    found = [by_name.get(f"{parent}.{p}") for p in ACT_ORDER_PRODUCERS.get(leaf, ())]
    if not found or any(
        p is None or g_idx_of(p) is not None or p.form.scale.kind == "block" or p.experts is not None or len(p.stack_n) > 1 for p in found
    ):
        return None
    return tuple(p for p in found if p is not None)


def fold_act_order(
    layers: Sequence[StandardLayer], *, on_desc_act: Literal["refuse", "dequantize", "requant"], findings: Findings
) -> Folded:
    """Folds every layer that allows it. The rest is refused with the names of both kinds, or by `on_desc_act` left to be dequantized.

    requant: the rest keeps its `facts["g_idx"]`; the caller quantizes it again in plain groups (requantize.py).
    """
    by_name = {layer.name: layer for layer in layers}
    ordered = [layer for layer in layers if g_idx_of(layer) is not None]
    folds: list[str] = []
    rest: list[str] = []
    for layer in ordered:
        (folds if producers_of(layer.name, by_name) is not None and layer.experts is None else rest).append(layer.name)
    if rest and on_desc_act == "refuse":
        could = f"; {', '.join(folds[:3])} alone could be folded into the layers before" if folds else ""
        for name in rest:
            view = next(iter(v for e in (g_idx_of(by_name[name]),) if e is not None for v in e.reads()), None)
            findings.error(
                "act-order",
                f"{name} is in act-order (its g_idx sorts columns into groups), and its input cannot be reordered to match{could}",
                layer=name,
                tensor=view.name if view is not None else None,
                file=view.file.name if view is not None else None,
                advice="--on-desc-act dequantize writes such layers in the model dtype, --on-desc-act requant quantizes them again",
            )
    for name in folds:
        layer, g_idx = by_name[name], g_idx_of(by_name[name])
        producers = producers_of(name, by_name)
        assert g_idx is not None and producers is not None, name
        order = apply("sorted_by_group", g_idx, dtype="I64", shape=(layer.k,))
        by_name[name] = _columns_of(layer, order)
        for producer in producers:
            by_name[producer.name] = permute_rows(producer, order)
        findings.note(
            "act-order-folded",
            f"columns of {name} are sorted by group; the rows of {', '.join(p.name for p in producers)} follow",
            layer=name,
        )
    plain = {name for name in rest if on_desc_act == "dequantize"}
    return Folded(
        tuple(by_name[layer.name] for layer in layers if layer.name not in plain),
        tuple(by_name[layer.name] for layer in layers if layer.name in plain),
    )
