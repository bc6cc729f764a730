"""Weight scales, biases and secondary scales: from [N', G] to the order that the kernels read, and back.

In: one expert's padded scales.  Out: the packed tensor.
Facts: layouts.md 6, 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.config import ScalePlace
from humming_convert.layouts.orders import order_64, order_c, ppu_order, ppu_restore

Array = NDArray[Any]


def _words(parts: Array) -> Array:
    """The last axis of four bytes as one int32."""
    return np.ascontiguousarray(parts).view("<i4")[..., 0]


def _bytes(words: Array) -> Array:
    return np.ascontiguousarray(words, "<i4")[..., None].view(np.uint8)


def normal(scale: Array, ppu: bool) -> Array:
    """6.6: [N', G] -> [G, N'], rows of 64 in order "64" (PPU: runs of 8 first).

    row g: n = 0 8 16 24 32 40 48 56 1 9 ...
    """
    x = np.ascontiguousarray(scale.T)
    return order_64(ppu_order(x) if ppu else x)


def normal_back(packed: Array, ppu: bool) -> Array:
    x = order_64(packed)
    return np.ascontiguousarray((ppu_restore(x) if ppu else x).T)


def on_c(scale: Array) -> Array:
    """6.5: [N', G] -> [G, N'], rows of 32 in order "C": 0 1 8 9 16 17 24 25 2 3 ..."""
    return order_c(np.ascontiguousarray(scale.T))


def on_c_back(packed: Array) -> Array:
    return np.ascontiguousarray(order_c(packed).T)


def umma(scale: Array, _: bool = False) -> Array:
    """6.2: bytes [N', G] -> int32 [G4/4, N128], extended by byte 127.

    Byte b of word (r, 128v + 4l + s): group 4r + b of row 128v + 32s + l.
    word (0, 0): row 0 groups 0..3 | (0, 1): row 32 | (0, 2): row 64 | (0, 3): row 96 | (0, 4): row 1
    """
    n, g = scale.shape
    full = np.full((-(-n // 128) * 128, -(-g // 4) * 4), 127, np.uint8)
    full[:n, :g] = scale.view(np.uint8)
    parts = full.reshape(-1, 4, 32, full.shape[1] // 4, 4)  # v, s, l, r, b
    return _words(parts.transpose(3, 0, 2, 1, 4)).reshape(full.shape[1] // 4, full.shape[0])


def umma_back(packed: Array, n: int, g: int) -> Array:
    r, n128 = packed.shape
    parts = _bytes(packed).reshape(r, n128 // 128, 32, 4, 4)  # r, v, l, s, b
    return np.ascontiguousarray(parts.transpose(1, 3, 2, 0, 4).reshape(n128, r * 4)[:n, :g])


def mx1(scale: Array) -> Array:
    """6.3: bytes [N', G] -> int32 [G/2, N'/2]: a word holds two groups of two rows that are 8 apart.

    Byte b of word (r, m): group 2r + b mod 2 of row 16 * (m div 8) + 8 * (b div 2) + m mod 8.
    word (0, 0): (0,0) (0,1) (8,0) (8,1)   as (row, group)
    """
    n, g = scale.shape
    parts = scale.view(np.uint8).reshape(n // 16, 2, 8, g // 2, 2)  # m div 8, b div 2, m mod 8, r, b mod 2
    return _words(np.ascontiguousarray(parts.transpose(3, 0, 2, 1, 4)).reshape(g // 2, n // 2, 4))


def mx1_back(packed: Array) -> Array:
    r, m = packed.shape
    parts = _bytes(packed).reshape(r, m // 8, 8, 2, 2)
    return np.ascontiguousarray(parts.transpose(1, 3, 2, 0, 4)).reshape(m * 2, r * 2)


def mx4(scale: Array) -> Array:
    """6.4: bytes [N', G] -> int32 [G/4, N']: byte b of word (r, n) is group 4r + b of row n."""
    n, g = scale.shape
    return _words(scale.view(np.uint8).reshape(n, g // 4, 4).transpose(1, 0, 2))


def mx4_back(packed: Array) -> Array:
    r, n = packed.shape
    return np.ascontiguousarray(_bytes(packed).transpose(1, 0, 2)).reshape(n, r * 4)


def place_scale(scale: Array, place: ScalePlace, ppu: bool) -> Array:
    """One expert's weight scales to their packed tensor. block: only transposed (6.1)."""
    match place:
        case "block":
            return np.ascontiguousarray(scale.T)
        case "umma":
            return umma(scale)
        case "mx1":
            return mx1(scale)
        case "mx4":
            return mx4(scale)
        case "on_c":
            return on_c(scale)
        case "normal":
            return normal(scale, ppu)
    raise AssertionError(place)


def place_scales(scales: Array, place: ScalePlace, ppu: bool) -> Array:
    """`place_scale` of every expert [E, N', G]."""
    return np.stack([place_scale(x, place, ppu) for x in scales])


def unplace_scale(packed: Array, place: ScalePlace, ppu: bool, n: int, g: int) -> Array:
    """The inverse: [n, g]; bytes where the packed tensor holds words."""
    match place:
        case "block":
            return np.ascontiguousarray(packed.T)
        case "umma":
            return umma_back(packed, n, g)
        case "mx1":
            return mx1_back(packed)
        case "mx4":
            return mx4_back(packed)
        case "on_c":
            return on_c_back(packed)
        case "normal":
            return normal_back(packed, ppu)
    raise AssertionError(place)
