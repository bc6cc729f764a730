"""Dequantization in float64: what a standard layer means, number by number. The slow reference, and the plain matrices that are written.

Facts: layouts.md 1 (value of a weight).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.standard.expr import Array, Context, Weight, cast_values
from humming_convert.standard.forms import WeightForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import scale_values, values
from humming_convert.standard.packing import Codes, stream_unpack

ROWS = 4096  # rows at a time: bounds the float64 copy to ROWS * k * 8 bytes


def zero_codes(words: Array, bits: int, n: int) -> Codes:
    """Integer zero points of one expert, I32 [n*bits/32, groups] -> codes [n, groups] (the stream runs along N)."""
    return np.ascontiguousarray(stream_unpack(np.ascontiguousarray(words.T), bits, n).T)


def spread_columns(x: Array, k: int) -> Array:
    """[rows, groups] -> [rows, k]: each column for its group of K."""
    return np.repeat(x, -(-k // x.shape[1]), 1)[:, :k]


def dequantized(form: WeightForm, codes: Codes, small: dict[str, Array], stack_n: tuple[int, ...], rows: slice) -> NDArray[np.float64]:
    """Rows of one expert as float64 [rows, k].

    codes: [n, k] of the whole expert; small: the other roles of that expert (no expert axis); stack_n: rows of each part, for
    tensor scales of several values.
    """
    n, k = codes.shape
    value = values(form.number.name)[codes[rows]]
    if form.zero_point == "int":
        zeros = zero_codes(small["zero_point"], form.number.bits, n)[rows].astype(np.float64)
        value = value + (1 << (form.number.bits - 1)) - spread_columns(zeros, k)
    elif form.zero_point == "fp":
        # integer codes count from 0 beside a float zero point; float codes keep their value (layouts.md 1)
        base = value + (1 << (form.number.bits - 1)) if form.number.is_integer else value
        value = base - spread_columns(small["zero_point"][rows].astype(np.float64), k)
    scale = scale_values(small["weight_scale"], form.scale.dtype)
    if form.scale.kind == "tensor":
        value *= per_row(scale, stack_n)[rows, None]
    elif form.scale.kind == "block":
        grid = np.repeat(scale, form.scale.n, 0)[:n][rows]
        value *= np.repeat(grid, form.scale.k, 1)[:, :k]
    else:
        value *= spread_columns(scale[rows], k)
    if form.scale_2 != "none":
        value *= per_row(small["weight_scale_2"].astype(np.float64), stack_n)[rows, None]
    return np.asarray(value)


def per_row(scale: Array, stack_n: tuple[int, ...]) -> NDArray[np.float64]:
    """One value, one a part or one a row -> one a row [n]."""
    flat, n = np.asarray(scale, np.float64).reshape(-1), sum(stack_n)
    if flat.size == n:
        return flat
    return np.full(n, flat[0]) if flat.size == 1 else np.repeat(flat, stack_n)


class DequantizedWeight(Struct, frozen=True, kw_only=True):
    """A layer as a plain matrix in a 16-bit dtype, each number rounded once; what that changes is measured under `step`."""

    layer: StandardLayer
    dtype: str
    step: str

    @property
    def shape(self) -> tuple[int, ...]:
        experts = (self.layer.experts,) if self.layer.experts is not None else ()
        return (*experts, self.layer.n, self.layer.k)

    def reads(self) -> tuple[TensorView, ...]:
        return tuple(v for e in self.layer.tensors.values() for v in e.reads())

    def evaluate(self, context: Context) -> Array:
        layer = self.layer
        weight = layer.tensors["weight"]
        assert isinstance(weight, Weight)
        small = {role: e.evaluate(context) for role, e in layer.tensors.items() if role not in ("weight", "bias")}
        out = np.empty((layer.experts or 1, layer.n, layer.k), cast_values(np.zeros(1, np.float64), self.dtype).dtype)
        for expert in range(layer.experts or 1):
            codes = weight.expert_codes(context, expert)
            mine = small if layer.experts is None else {role: x[expert] for role, x in small.items()}
            for start in range(0, layer.n, ROWS):
                rows = slice(start, min(start + ROWS, layer.n))
                exact = dequantized(layer.form, codes, mine, layer.stack_n, rows)
                out[expert, rows] = rounded = round_once(exact, self.dtype)
                context.meter.record(self.step, layer.name, exact, rounded.astype(np.float64))
        return out if layer.experts is not None else out[0]


def round_once(exact: NDArray[np.float64], dtype: str) -> Array:
    """float64 to F16 or BF16, nearest even, in one rounding.

    Through float32 only after making it odd: a float64 that float32 cannot hold is moved to the neighbour with an odd last bit, so that
    the second rounding sees which side it was on.
    """
    with np.errstate(over="ignore"):
        near = exact.astype(np.float32)
        bits = near.view(np.uint32)
        back = near.astype(np.float64)
        inexact = np.isfinite(near) & (back != exact) & (bits & 1 == 0)
        # the neighbour of near on exact's side: away from zero when near is too small in magnitude, else towards it
        step = np.where(np.abs(back) < np.abs(exact), 1, -1)
        odd = np.where(inexact, (bits.astype(np.int64) + step).astype(np.uint32), bits).view(np.float32)
        return cast_values(odd, dtype)
