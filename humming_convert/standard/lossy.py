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
            _add(measure, a[start : start + CHUNK], b[start : start + CHUNK])
        if measure.count:
            self._join(measure)

    def record_counts(self, step: str, tensor: str, changes: Changes, counts: NDArray[Any]) -> None:
        """As `record`, where many numbers are few different ones: counts[i] of them made the change i."""
        assert step in STEPS, step
        made = np.flatnonzero((counts != 0) & changes.moved)
        if made.size:
            count, size = int(counts[made].sum(dtype=np.int64)), float(changes.size[made].max())
            self._join(Measure(step, tensor, count, size, float(changes.relative[made].max())))

    def _join(self, measure: Measure) -> None:
        m = self.found.setdefault((measure.step, measure.tensor), Measure(measure.step, measure.tensor))
        m.count += measure.count
        m.max_abs, m.max_rel = max(m.max_abs, measure.max_abs), max(m.max_rel, measure.max_rel)


class Changes(Struct, frozen=True):
    """What a step does to some numbers. moved: which it changes (NaN that stays NaN is none); size: absolute; relative: to the number
    itself, 0 for a change from 0 or to an infinity. Both 0 where nothing moved."""

    moved: NDArray[np.bool_]
    size: NDArray[np.float64]
    relative: NDArray[np.float64]

    @classmethod
    def of(cls, before: NDArray[Any], after: NDArray[Any]) -> Changes:
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = before.astype(np.float64), after.astype(np.float64)
            change = np.abs(b - a)
            moved = ~((change == 0) | (a == b) | ((a != a) & (b != b)))
            relative = np.where(moved, change / np.abs(a), 0.0)
        return cls(moved, np.where(moved, change, 0.0), np.where(np.isfinite(relative), relative, 0.0))


def _add(m: Measure, before: NDArray[Any], after: NDArray[Any]) -> None:
    """Adds the changes of some numbers."""
    changes = Changes.of(before, after)
    count = int(np.count_nonzero(changes.moved))
    if count:
        m.count += count
        m.max_abs = max(m.max_abs, float(changes.size.max()))
        m.max_rel = max(m.max_rel, float(changes.relative.max()))
