"""One small product of a loaded layer against float64: does this backend read these bytes as what they stand for?

In: a stored layer, a way to multiply.  Out: a finding, or None. It costs the same for every size of layer: some rows of W, read by the address
formula in numpy, which shares no code with any kernel.
Why not more: `verify --gpu` compares every weight.  Facts: runtimes.md 3.5 (a wrong configuration gives wrong numbers, no error).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.findings import Finding
from humming_convert.gemm import quantize_any
from humming_convert.gemm.check import as_float, at_row, half_bits, worst
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.stored import StoredLayer
from humming_convert.serve.refusals import refusal

F64 = NDArray[np.float64]
Multiply = Callable[[NDArray[np.uint16], "NDArray[np.int64] | None"], F64]
"""Rows [m, k] as bits, and the expert of each where the layer has experts -> y [m, n]."""

ROWS = 16  # of the activations: two whole ones, the others a stretch of columns each, whose sums hide less
WHOLE = 2
SAMPLED = 32  # rows of W that are compared
SEED = 0x48554D
NEAR = 2.0**-16  # relative: division as kernels do it, and the step from float32


@dataclass(frozen=True, slots=True)
class Tolerance:
    """size: of the sum of magnitudes |x| * |w| and |bias|.  result: of the result, for its rounding to 16 bits."""

    size: float
    result: float


def probe(k: int, half: str, rng: np.random.Generator) -> NDArray[np.uint16]:
    """Rows of activations as bits [ROWS, k]."""
    x = rng.standard_normal((ROWS, k))
    stretches = np.array_split(np.arange(k), ROWS - WHOLE)
    for row, columns in enumerate(stretches, WHOLE):
        kept = x[row, columns].copy()
        x[row] = 0
        x[row, columns] = kept
    return half_bits(x, half)


def sampled(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of W: the first and the last, others at random."""
    if n <= SAMPLED:
        return np.arange(n)
    inner = rng.choice(np.arange(1, n - 1), SAMPLED - 2, replace=False)
    return np.sort(np.concatenate(([0, n - 1], inner)))


def activations(stored: StoredLayer, bits: NDArray[np.uint16], sm: int) -> tuple[F64, F64]:
    """What rows stand for once they are quantized, and how far another kernel may be off because it divides less exactly: a number that lies
    between two of the type goes to either, a scale to either of its type's."""
    compute = Compute.of(stored.layer, stored.config, sm=sm, output=stored.layer.half)
    x = as_float(bits, stored.layer.half)
    given = stored.given_scale() if compute.wants_given_scale else 1.0
    q, scale = quantize_any.in_numpy(x, compute, given)
    meant = quantize_any.meant(q, scale, compute)
    unsure = np.zeros_like(meant)
    if compute.quantizes:
        wide = np.repeat(scale, compute.act_group, axis=1)[:, : x.shape[1]] if compute.act_group else scale
        for nudge in (np.float32(1 - NEAR), np.float32(1 + NEAR)):
            number = quantize_any.meant(quantize_any.round_to_type(x / wide * nudge, compute), scale, compute)
            whole = quantize_any.meant(*quantize_any.in_numpy(x * nudge, compute, given), compute) / nudge
            unsure = np.maximum(unsure, np.maximum(np.abs(number - meant), np.abs(whole - meant)))
    return meant, unsure


def self_check(stored: StoredLayer, multiply: Multiply, tolerance: Tolerance, sm: int) -> Finding | None:
    """sm: of the GPU that multiplies."""
    layer = stored.layer
    rng = np.random.default_rng(SEED)
    bits, rows = probe(layer.k, layer.half, rng), sampled(layer.n, rng)
    expert_of_row = np.arange(ROWS, dtype=np.int64) % 2 * (layer.experts - 1) if layer.experts else None
    y = multiply(bits, expert_of_row)
    x, unsure = activations(stored, bits, sm)
    reference = stored.reference(stored.tensors())
    for e in sorted(set(expert_of_row.tolist())) if expert_of_row is not None else [0]:
        mine = np.flatnonzero(expert_of_row == e) if expert_of_row is not None else np.arange(ROWS)
        w, bias = reference.rows(e, rows), reference.bias(e)[rows]
        want, size = x[mine] @ w.T + bias, np.abs(x[mine]) @ np.abs(w).T + np.abs(bias)

        def where(i: int, j: int, mine: NDArray[Any] = mine, e: int = e) -> dict[str, Any]:
            return at_row(int(mine[i]), int(rows[j]), e)

        allowed = tolerance.size * size + tolerance.result * np.abs(want) + unsure[mine] @ np.abs(w).T
        wrong = worst("self-check", y[np.ix_(mine, rows)], want, allowed, where)
        if wrong is not None:
            return refusal("self-check", str(wrong), layer=stored.name)
    return None
