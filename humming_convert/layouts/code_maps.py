"""Maps from code to code that come before placing, and back.

In: codes uint8 [n, k] of one expert.  Out: codes of the same shape.
Facts: layouts.md 2 (S1, S2a, S5), 5.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.e8m0 import rewrite_table
from humming_convert.layouts.recipe import CodeMap
from humming_convert.standard.packing import Codes

U8 = NDArray[np.uint8]


def e0m(bits: int) -> U8:
    """S1: offset binary -> sign-magnitude. B = 4: 1 -> 15, 7 -> 9, 8 -> 0, 15 -> 7. (0 does not occur.)"""
    v = np.arange(1 << bits) - (1 << (bits - 1))
    return (np.abs(v) + np.where(v < 0, 1 << (bits - 1), 0)).astype(np.uint8)


def e0m_to_int(bits: int) -> U8:
    """S2a: sign-magnitude -> offset binary; -0 becomes the midpoint. B = 4: 7 -> 15, 0 and 8 -> 8, 15 -> 1."""
    c, mid = np.arange(1 << bits), 1 << (bits - 1)
    m = c & (mid - 1)
    return np.asarray(np.where(c & mid, -m, m) + mid).astype(np.uint8)


def sign_flip(bits: int) -> U8:
    """5.0 a: offset binary -> two's complement."""
    return (np.arange(1 << bits) ^ (1 << (bits - 1))).astype(np.uint8)


def int_to_float(bits: int, zero: int) -> U8:
    """5.0 b: c >= z ? c - z : M - c. B = 4, z = 5: 15 14 13 12 11 0 1 2 3 4 5 6 7 8 9 10."""
    c = np.arange(1 << bits)
    return np.asarray(np.where(c >= zero, c - zero, (1 << bits) - 1 - c)).astype(np.uint8)


def zero_column(k: NDArray[Any], group: int) -> NDArray[np.int64]:
    """The zero point column of column k (5.0 b): k div group where the group is a power of two."""
    return np.asarray((64 * (k // 64) + (k % 64) // group * group) // group)


def table(name: CodeMap, bits: int) -> U8:
    """The map of a name as a table of 2^B codes, where it needs nothing but the code."""
    match name:
        case "e0m":
            return e0m(bits)
        case "e0m_to_int":
            return e0m_to_int(bits)
        case "sign_flip":
            return sign_flip(bits)
        case "int_to_float":
            return int_to_float(bits, 1 << (bits - 1))
    raise AssertionError(name)


def inverse(name: CodeMap, bits: int) -> U8:
    """The table that undoes `table(name, bits)` on the codes that it makes."""
    if name == "e0m":
        return e0m_to_int(bits)
    if name == "e0m_to_int":
        return e0m(bits)
    forward = table(name, bits)
    back = np.empty_like(forward)
    back[forward] = np.arange(forward.size, dtype=np.uint8)
    return back


def with_zero_points(codes: Codes, zero: U8, bits: int, group: int) -> Codes:
    """5.0 b with the zero point of (n, k): codes [N', K'], zero [N', G]."""
    z = zero[:, zero_column(np.arange(codes.shape[1]), group)]
    return np.where(codes >= z, codes - z, np.uint8((1 << bits) - 1) - codes)


def without_zero_points(codes: Codes, zero: U8, bits: int, group: int) -> Codes:
    """The inverse of `with_zero_points`."""
    z = zero[:, zero_column(np.arange(codes.shape[1]), group)]
    top = np.uint8((1 << bits) - 1)
    return np.where(codes <= top - z, codes + z, top - codes)


def fused(codes: Codes, offsets: U8, group: int) -> Codes:
    """S5: E2M1 codes [N', K'] of groups with offsets [N', G] rewritten: value * 2^-d, ties away from zero."""
    rows, k = codes.shape
    wide = codes.reshape(rows, k // group, group)
    return rewrite_table()[offsets[:, : k // group, None], wide].reshape(rows, k)
