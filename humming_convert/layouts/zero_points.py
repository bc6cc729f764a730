"""Zero points: integer ones as nibbles or bytes in order "64", floating ones as they are in that order.

In: one expert's padded zero points [N', G].  Out: the packed tensor.
Facts: layouts.md 7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.scales import normal, normal_back
from humming_convert.standard.packing import stream_pack, stream_unpack

Array = NDArray[Any]


def unpack_standard(words: Array, bits: int, n: int) -> Array:
    """Standard form int32 [..., N*B/32, G] -> codes uint8 [..., N, G]: a bit string along N for each group, and so they lie in memory."""
    return np.swapaxes(stream_unpack(np.swapaxes(words, -1, -2), bits, n), -1, -2)


def pack_standard(codes: Array, bits: int) -> Array:
    """The inverse."""
    return np.ascontiguousarray(np.swapaxes(stream_pack(np.swapaxes(codes, -1, -2), bits), -1, -2))


def integer(codes: Array, width: int, grouped: int, ppu: bool) -> Array:
    """uint8 [N', G] -> int32 [G, N'*width/32]; grouped (v > 1): [G/v, N'*v/8].

    width 4, row g:      byte m = z'[2m] + 16 * z'[2m+1], z' in order "64": 0 8 | 16 24 | 32 40 | ...
    grouped, row r:      byte m*v + i = byte m of group r*v + i
    """
    return joined(normal(codes, ppu), width, grouped)


def joined(z: Array, width: int, grouped: int) -> Array:
    """`integer` of codes that are in order "64" already, uint8 [G, N']."""
    rows = z if width == 8 else z[:, 0::2] | z[:, 1::2] << 4
    if grouped > 1:
        g, m = rows.shape
        rows = rows.reshape(g // grouped, grouped, m).transpose(0, 2, 1).reshape(g // grouped, m * grouped)
    return np.ascontiguousarray(rows).view("<i4")


def integer_back(packed: Array, width: int, grouped: int, ppu: bool) -> Array:
    """The inverse: uint8 [N', G]."""
    rows = np.ascontiguousarray(packed).view(np.uint8)
    if grouped > 1:
        r, m = rows.shape
        rows = np.ascontiguousarray(rows.reshape(r, m // grouped, grouped).transpose(0, 2, 1)).reshape(r * grouped, m // grouped)
    if width == 4:
        z = np.empty((rows.shape[0], rows.shape[1] * 2), np.uint8)
        z[:, 0::2], z[:, 1::2] = rows & 15, rows >> 4
    else:
        z = rows
    return normal_back(z, ppu)
