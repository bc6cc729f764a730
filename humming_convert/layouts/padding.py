"""Padding of scales, zero points and biases to N' and K': what stands in the new rows and columns.

In: arrays [E, N, G] or [E, N].  Out: the same, longer at the ends.
Facts: layouts.md 3, 9.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.e8m0 import RowRange, row_range

Array = NDArray[Any]
ONE = 127  # E8M0 byte of 1.0


def extend(x: Array, rows: int, columns: int | None, fill: int = 0) -> Array:
    """[E, N, ...] -> [E, rows, (columns)] with `fill` (0 is zero in every dtype)."""
    shape = (x.shape[0], rows) if columns is None else (x.shape[0], rows, columns)
    if x.shape == shape:
        return x
    out = np.zeros(shape, x.dtype)
    if fill:
        out.view(np.uint8)[...] = fill
    out[tuple(slice(0, s) for s in x.shape)] = x
    return out


def extend_fused(codes: NDArray[np.uint8], rows: int, columns: int, with_maximum: bool, ranges: RowRange = row_range) -> NDArray[np.uint8]:
    """Fused E8M0 [E, N, G]: new columns take the row's largest byte, then new rows the expert's (0.1.19: byte 127)."""
    e, n, g = codes.shape
    if (n, g) == (rows, columns):
        return codes
    out = np.full((e, rows, columns), ONE, np.uint8) if not with_maximum else np.empty((e, rows, columns), np.uint8)
    for mine, c in zip(out, codes, strict=True):
        top, _ = ranges(c)
        mine[:n, :g] = c
        mine[:n, g:] = top[:, None]
        if with_maximum:
            mine[n:] = top.max()
    return out
