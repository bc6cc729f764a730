"""A product checked at some places against float64, at a cost that does not grow with the layer: before and after it is timed.

In: a stored layer, what its activations stand for, results.  Out: the largest error, and whether it is within a tolerance.
The rows of W are read by the address formula in numpy (reference.py), which shares no code with any kernel. Every weight: `verify --gpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm import quantize_any
from humming_convert.gemm.check import HALF_STEP, as_float, as_numbers, random_rows, sum_tolerance
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.families import Family
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.multiplier import Multiplier
from humming_convert.gemm.stored import StoredLayer
from humming_convert.gemm.tasks import Contiguous, Dense, Task, contiguous

F64 = NDArray[np.float64]
Ints = NDArray[np.int64]
COLUMNS, ROWS, EXPERTS = 24, 16, 2  # rows of W, rows of x, and experts that are compared, at most
DISTINCT = 256  # rows of x that differ; more rows repeat them


@dataclass(frozen=True, slots=True)
class Rows:
    """Activations on a device: ready operands and scales, and which rows belong to whom. counts: rows of each expert."""

    m: int
    q: Any
    scale: Any
    counts: NDArray[np.int32] | None

    @property
    def task(self) -> Task:
        return Dense() if self.counts is None else Contiguous(self.counts)

    @property
    def hit(self) -> int:
        """Experts that have rows; 1 without experts."""
        return 1 if self.counts is None else int(np.count_nonzero(self.counts))


def random_activations(multiplier: Multiplier, m: int, rng: np.random.Generator) -> Rows:
    """Random rows, quantized on the device as the layer wants them; with experts each row goes to one at random, those of an expert side by side."""
    layer = multiplier.layer
    base = random_rows(min(m, DISTINCT), layer.k, layer.half, rng)
    x = np.resize(base, (m, layer.k))
    counts = None
    if layer.experts:
        counts = np.bincount(rng.integers(0, layer.experts, m), minlength=layer.experts).astype(np.int32)
    q, scale = multiplier.quantize(multiplier.device.put(x))
    return Rows(m, q, scale, counts)


def ends(count: int, most: int) -> Ints:
    """The first and the last of so many."""
    if count <= most:
        return np.arange(count)
    return np.concatenate((np.arange(most // 2), np.arange(count - most // 2, count)))


@dataclass(frozen=True, slots=True)
class Sample:
    """Places of a product. columns: rows of W.  rows: of x, by expert, with what they stand for, the wanted results and sums of magnitudes."""

    columns: Ints
    rows: tuple[Ints, ...]
    want: tuple[F64, ...]
    size: tuple[F64, ...]

    def error(self, y: Any, device: Device, half: str, allowed: tuple[float, float]) -> tuple[float, bool]:
        """(largest difference over the sum of magnitudes, within the tolerance). y: [m, n] 16-bit floats on the device.
        allowed: of the sum of magnitudes, and of the result for its rounding."""
        largest, right = 0.0, True
        for rows, want, size in zip(self.rows, self.want, self.size, strict=True):
            got = np.stack([as_float(device.get(y[int(r)]), half)[self.columns] for r in rows]).astype(np.float64)
            off = np.abs(got - want)
            right = right and bool((off <= allowed[0] * size + allowed[1] * np.abs(want)).all())
            with np.errstate(invalid="ignore", divide="ignore"):
                share = np.where(off == 0, 0.0, off / size)
            largest = max(largest, float(np.nan_to_num(share, nan=np.inf).max(initial=0.0)))
        return largest, right


def sample_of(stored: StoredLayer, tensors: dict[str, NDArray[Any]], multiplier: Multiplier, x: Rows, rng: np.random.Generator) -> Sample:
    """tensors: of the stored layer, on the host."""
    layer = stored.layer
    columns = np.sort(rng.choice(layer.n, min(COLUMNS, layer.n), replace=False))
    reference = stored.reference(tensors)
    if x.counts is None:
        experts: Sequence[int] = (0,)
        mine = [ends(x.m, ROWS)]
    else:
        of_row = contiguous(x.counts)
        experts = [int(e) for e in ends(x.hit, EXPERTS)]
        experts = [int(np.flatnonzero(x.counts)[e]) for e in experts]
        mine = [(rows := np.flatnonzero(of_row == e))[ends(rows.size, ROWS)] for e in experts]
    want, size = [], []
    for e, rows in zip(experts, mine, strict=True):
        w, bias = reference.rows(e, columns), reference.bias(e)[columns]
        values = meant(multiplier, x, rows)
        want.append(values @ w.T + bias)
        size.append(np.abs(values) @ np.abs(w).T + np.abs(bias))
    return Sample(columns, tuple(mine), tuple(want), tuple(size))


def meant(multiplier: Multiplier, x: Rows, rows: Ints) -> F64:
    """What the operands of these rows stand for."""
    device, compute = multiplier.device, multiplier.compute
    q = np.stack([device.get(x.q[int(r)]) for r in rows])
    if not compute.quantizes:
        return as_float(q, multiplier.layer.half).astype(np.float64)
    scale = np.stack([device.get(x.scale[int(r)]) for r in rows])
    wide = quantize_any.meant(as_numbers(q, compute.operand), scale, compute)
    return np.asarray(wide[:, : multiplier.layer.k])


def tolerance(family: Family, layer: Layer, compute: Compute) -> tuple[float, float]:
    """Of a family's kernels: of the sum of magnitudes, and of the result. compute: fitted."""
    return sum_tolerance(family, layer, compute), HALF_STEP[layer.half]
