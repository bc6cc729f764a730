"""Layers in act-order that nothing can fold: their numbers column by column, and the same weights quantized again in plain groups.

In: a StandardLayer with `facts["g_idx"]`.  Out: `by_columns`, exact, for writing a plain matrix; `requantized`, lossy and measured.
Facts: formats.md 2.8, D6; architecture.md 9.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import DTYPES, TensorView
from humming_convert.model.act_order import g_idx_of
from humming_convert.standard.dequantize import dequantized
from humming_convert.standard.expr import CodeBlock, Context, Expr, Weight, apply, cast_values, operation
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.packing import Codes
from humming_convert.standard.packing_ct import zero_words

Array = NDArray[Any]
ROWS = 512  # rows at a time: bounds the float64 copies
STEP = "requantize"


@operation("group_of_column")
def _group_of_column(g_idx: Array, group: int) -> Array:
    """The column of the layer's scales that belongs to every column of its codes: the rank in group order, by groups."""
    rank = np.empty(g_idx.size, np.int64)
    rank[np.argsort(g_idx, kind="stable")] = np.arange(g_idx.size)
    return rank // group


def by_columns(layer: StandardLayer) -> StandardLayer:
    """The layer with a scale (and zero point) for every column, in the stored order of the columns. Exact."""
    g_idx = g_idx_of(layer)
    if g_idx is None:
        return layer
    assert layer.experts is None and layer.form.scale.kind == "group", layer.name
    column = apply("group_of_column", g_idx, params=(layer.form.scale.k,), dtype="I64", shape=(layer.k,))
    changed = {
        role: apply("gather_last", expr, column, shape=(*expr.shape[:-1], layer.k))
        for role, expr in layer.tensors.items()
        if role in ("weight_scale", "zero_point")
    }
    facts = {k: v for k, v in layer.facts.items() if k != "g_idx"}
    form = replace(layer.form, scale=replace(layer.form.scale, k=1))
    return replace(layer, form=form, tensors={**layer.tensors, **changed}, facts=facts)


# ------------------------------------------------------------------ quantizing again
class Again(Struct, frozen=True):
    """How a layer is quantized again: `exact`, its numbers by columns; groups of `group`, scales in `dtype` (F16, BF16)."""

    exact: StandardLayer
    group: int
    dtype: str

    def pieces(self, context: Context) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """(rows, their numbers float64 [rows, k]), ROWS at a time."""
        layer = self.exact
        weight = layer.tensors["weight"]
        assert isinstance(weight, Weight)
        small = {role: e.evaluate(context) for role, e in layer.tensors.items() if role in ("weight_scale", "zero_point")}
        codes = weight.expert_codes(context, 0)
        for start in range(0, layer.n, ROWS):
            rows = slice(start, min(start + ROWS, layer.n))
            yield rows, dequantized(layer.form, codes, small, layer.stack_n, rows)

    def scales(self, numbers: NDArray[np.float64]) -> tuple[Array, NDArray[np.float64]]:
        """(scales of `dtype` [rows, groups], zero points [rows, groups]): the range of every group, its ends rounded to codes."""
        grouped = numbers.reshape(numbers.shape[0], -1, self.group)
        bits = self.exact.form.number.bits
        top = (1 << bits) - 1
        if self.exact.form.zero_point == "none":
            # codes reach from -2^(b-1) to 2^(b-1)-1: half a code is given up on the larger side
            scale = cast_values(np.abs(grouped).max(-1) / (top / 2), self.dtype)
            return scale, np.full(scale.shape, 1 << (bits - 1), np.float64)
        low, high = np.minimum(grouped.min(-1), 0), np.maximum(grouped.max(-1), 0)
        scale = cast_values((high - low) / top, self.dtype)
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where(scale > 0, np.rint(-low / scale.astype(np.float64)), 0)
        return scale, np.clip(zero, 0, top)

    def codes(self, numbers: NDArray[np.float64], scale: Array, zero: NDArray[np.float64]) -> Codes:
        """uint8 [rows, k]."""
        s = np.repeat(scale.astype(np.float64), self.group, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(s != 0, np.rint(numbers / s), 0)
        top = (1 << self.exact.form.number.bits) - 1
        return np.asarray(np.clip(steps + np.repeat(zero, self.group, 1), 0, top), np.uint8)


class RequantizedBlock(CodeBlock, frozen=True, kw_only=True):
    """Codes that are made anew from the block's numbers. No packing holds them, so no compiled pass reads them."""

    again: Again

    @property
    def straight(self) -> bool:
        return False

    def codes(self, context: Context) -> Codes:
        out = np.empty((self.whole.n, self.whole.k), np.uint8)
        for rows, numbers in self.again.pieces(context):
            out[rows] = self.again.codes(numbers, *self.again.scales(numbers))
        (r0, r1), (c0, c1) = self.taken
        return out[r0:r1, c0:c1]


class RequantizedScale(Struct, frozen=True):
    """The new scales [n, groups]; evaluating them measures what the new codes change."""

    again: Again

    @property
    def dtype(self) -> str:
        return self.again.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.again.exact.n, self.again.exact.k // self.again.group)

    def reads(self) -> tuple[TensorView, ...]:
        return tuple(v for e in self.again.exact.tensors.values() for v in e.reads())

    def evaluate(self, context: Context) -> Array:
        out = np.empty(self.shape, DTYPES[self.dtype])
        for rows, numbers in self.again.pieces(context):
            scale, zero = self.again.scales(numbers)
            codes = self.again.codes(numbers, scale, zero)
            each = self.again.group
            after = (codes - np.repeat(zero, each, 1)) * np.repeat(scale.astype(np.float64), each, 1)
            context.meter.record(STEP, "weight", numbers, after)
            out[rows] = scale
        return out


class RequantizedZero(Struct, frozen=True):
    """The new zero points as words of the standard form."""

    again: Again

    @property
    def dtype(self) -> str:
        return "I32"

    @property
    def shape(self) -> tuple[int, ...]:
        layer = self.again.exact
        return (-(-layer.n * layer.form.number.bits // 32), layer.k // self.again.group)

    def reads(self) -> tuple[TensorView, ...]:
        return tuple(v for e in self.again.exact.tensors.values() for v in e.reads())

    def evaluate(self, context: Context) -> Array:
        zeros = np.concatenate([self.again.scales(numbers)[1] for _, numbers in self.again.pieces(context)])
        return zero_words(zeros.astype(np.uint8), self.again.exact.form.number.bits)


def requantized(layer: StandardLayer, dtype: str) -> StandardLayer:
    """The layer quantized again in plain groups of the same size, round to nearest; zero points if it had them, scales in `dtype`."""
    form = layer.form
    assert form.scale.kind == "group" and form.number.kind == "uint" and form.zero_point != "fp" and form.scale_2 == "none", layer.name
    again = Again(by_columns(layer), form.scale.k, dtype)
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight) and len(weight.blocks) == 1, layer.name
    block = weight.blocks[0]
    fresh = RequantizedBlock(
        part=block.part, view=block.view, packing=block.packing, bits=block.bits, n=block.n, k=block.k, index=block.index, again=again
    )
    tensors: dict[str, Expr] = {**layer.tensors, "weight": replace(weight, blocks=(fresh,)), "weight_scale": RequantizedScale(again)}
    if form.zero_point == "int":
        tensors["zero_point"] = RequantizedZero(again)
    name = {"F16": "float16", "BF16": "bfloat16"}[dtype]
    facts = {k: v for k, v in layer.facts.items() if k != "g_idx"}
    return replace(layer, form=replace(form, scale=ScaleForm(kind="group", dtype=name, k=form.scale.k)), tensors=tensors, facts=facts)
