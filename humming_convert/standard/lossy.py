"""Lossy steps: every change of value has a name and is measured.

The table below is the whole list; docs and manifest print from it. Facts: architecture.md 9.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray


class Step(Struct, frozen=True):
    """`free`: the library does the same, no option needed. `option`: what permits it otherwise. `codes`: it touches the codes."""

    name: str
    text: str
    free: bool = True
    option: str | None = None
    codes: bool = False


STEPS: dict[str, Step] = {
    s.name: s
    for s in (
        Step("scale-cast", "scales rounded to the model dtype (nearest even)"),
        Step("scale2-cast", "secondary scales of unequal parts rounded to the model dtype"),
        Step("block-to-rows", "block scales written for every row in the model dtype"),
        Step("e8m0-range", "MXFP4 groups far below the largest scale of their row rewritten for 8-bit activations", codes=True),
        Step("e8m0-fp16", "E8M0 scales clamped to the range of float16"),
        Step("int-weight-scale", "scales as 16-bit integers for integer activations"),
        Step("lm-head-dequantize", "a quantized lm_head or embedding written in the model dtype"),
        Step("bias-cast", "biases rounded to the model dtype"),
        Step("requantize", "weights in act-order quantized again in plain groups", free=False, option="--on-desc-act requant", codes=True),
        Step("act-order-dequantize", "a layer in act-order written in the model dtype", free=False, option="--on-desc-act dequantize"),
        Step("mixed-dequantize", "quantized parts of a mixed layer written in the model dtype", free=False, option="--on-mixed dequantize"),
    )
}


CHUNK = 1 << 15  # numbers measured at a time


class Measure(Struct):
    """How far a step moved the values of one tensor: `count` of changed elements, largest absolute and relative change."""

    step: str
    tensor: str
    count: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0


class Meter(Struct):
    """Collects the measures of one layer."""

    found: dict[tuple[str, str], Measure] = field(default_factory=dict)

    def record(self, step: str, tensor: str, before: NDArray[Any], after: NDArray[Any]) -> None:
        """before, after: values (any float dtype), same shape. Equal arrays leave no trace."""
        assert step in STEPS, step
        a, b = np.asarray(before).reshape(-1), np.asarray(after).reshape(-1)
        measure = Measure(step, tensor)
        for start in range(0, a.size, CHUNK):  # in pieces that stay in the cache: the float64 copies are the cost
            _add(measure, a[start : start + CHUNK].astype(np.float64), b[start : start + CHUNK].astype(np.float64))
        if measure.count:
            self._join(measure)

    def record_counts(self, step: str, tensor: str, before: NDArray[Any], after: NDArray[Any], counts: NDArray[np.intp]) -> None:
        """As `record`, where many numbers are few different ones: counts[i] times before[i] became after[i]."""
        present = np.flatnonzero(counts)
        measure = Measure(step, tensor)
        _add(measure, before[present].astype(np.float64), after[present].astype(np.float64), counts[present])
        if measure.count:
            self._join(measure)

    def _join(self, measure: Measure) -> None:
        m = self.found.setdefault((measure.step, measure.tensor), Measure(measure.step, measure.tensor))
        m.count += measure.count
        m.max_abs, m.max_rel = max(m.max_abs, measure.max_abs), max(m.max_rel, measure.max_rel)


def _add(m: Measure, a: NDArray[np.float64], b: NDArray[np.float64], times: NDArray[np.intp] | None = None) -> None:
    """Adds the changes from a to b. NaN that stays NaN is none; a change from 0 or to an infinity has no relative size."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.abs(b - a)
        moved = ~((change == 0) | (a == b) | ((a != a) & (b != b)))
        count = int(np.count_nonzero(moved) if times is None else times[moved].sum())
        if not count:
            return
        m.count += count
        m.max_abs = max(m.max_abs, float(np.where(moved, change, 0.0).max()))
        rel = np.where(moved, change / np.abs(a), 0.0)
        m.max_rel = max(m.max_rel, float(np.where(np.isfinite(rel), rel, 0.0).max()))
