"""Orders of N that scales, zero points and biases take: along the last axis, and back.

Facts: layouts.md 6 (order "64", order "C"), 5.0 c (PPU).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _swap(x: Array, *sizes: int) -> Array:
    """Runs of prod(sizes) seen as (sizes[0], sizes[1], ...), the first two exchanged."""
    run = x.reshape(*x.shape[:-1], -1, *sizes)
    axis = x.ndim
    return np.ascontiguousarray(np.swapaxes(run, axis, axis + 1)).reshape(x.shape)


def order_64(x: Array) -> Array:
    """out[64b + p] = in[64b + 8 * (p mod 8) + p div 8].  Its own inverse.

    0 8 16 24 32 40 48 56 | 1 9 17 ...
    """
    return _swap(x, 8, 8)


def order_c(x: Array) -> Array:
    """out[32b + p] = in[32b + 2 * (p div 8) + 8 * ((p mod 8) div 2) + p mod 2].  Its own inverse.

    0 1 8 9 16 17 24 25 | 2 3 10 11 18 19 26 27 | 4 5 ...
    """
    return _swap(x, 4, 4, 2)


def ppu_order(x: Array) -> Array:
    """Each run of 8: the old entries 0 2 4 6 1 3 5 7."""
    return _swap(x, 4, 2)


def ppu_restore(x: Array) -> Array:
    """The inverse of `ppu_order`."""
    return _swap(x, 2, 4)
