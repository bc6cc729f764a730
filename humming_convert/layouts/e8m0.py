"""E8M0 scales for 8-bit activations and for float16: the range of a row, and what is done to codes outside it.

In: scale bytes.  Out: new bytes, offsets of groups, factors of the secondary scale.
Facts: layouts.md 2 (S2e, S3, S5), 6 (S7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.standard.numbers import values

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Array = NDArray[Any]

LIMIT = {"float8e4m3": 11, "int8": 3}  # R: binades that fit under the top of a row (S2e)


def row_range(codes: U8) -> tuple[U8, U8]:
    """Largest and smallest byte of each row [rows, groups]."""
    # reduceat takes two thirds of the time of max(axis=1) on short rows
    flat, at = np.ascontiguousarray(codes).reshape(-1), np.arange(0, codes.size, codes.shape[1])
    return np.asarray(np.maximum.reduceat(flat, at)), np.asarray(np.minimum.reduceat(flat, at))


def raise_rows(codes: U8, low: U8, plus: int, new: U8, offsets: U8) -> None:
    """max(code, low of its row) - low + plus into `new`, max(code, low) - code into `offsets`, all [rows, groups], as bytes."""
    raised = np.maximum(codes, low[:, None])
    np.subtract(raised, codes, out=offsets)
    np.subtract(raised, (low - np.uint8(plus))[:, None], out=new)  # + plus, whatever wraps on the way


RowRange = Callable[[U8], tuple[U8, U8]]
RaiseRows = Callable[[U8, U8, int, U8, U8], None]


def low_of(top: U8, bottom: U8, limit: int) -> U8:
    """S5: what codes of rows (or experts) are counted from. Bytes throughout: top >= low >= bottom, so that no difference wraps."""
    return np.asarray(top - np.minimum(top - bottom, np.uint8(limit)))


def factor_of(low: U8) -> F32:
    """S5: what the secondary scale is multiplied by, 2^(low - 127) / 2."""
    return np.asarray(np.ldexp(np.float32(1), low.astype(np.int32) - 128))


def fused_scales(
    codes: U8, per_row: bool, limit: int, plus: int, ranges: RowRange = row_range, raised: RaiseRows = raise_rows
) -> tuple[U8, U8, F32]:
    """S5: bytes [E, N', G] -> new bytes, offsets d [E, N', G], factors ([E, N'] per row, else [E]).

    top = max, bot = min of a row (or expert), low = top - min(top - bot, R):  d = max(s, low) - s,
    new = max(s, low) - low + plus, factor = 2^(low - 127) / 2.  ranges, raised: passes that do the same as the defaults.
    """
    new = np.empty_like(codes)
    offsets: U8 | None = None
    factor = np.empty(codes.shape[:2] if per_row else codes.shape[:1], np.float32)
    for expert, c in enumerate(codes):  # one at a time: what is made on the way stays in the cache
        top, bottom = ranges(c) if per_row else (c.max(keepdims=True)[0], c.min(keepdims=True)[0])
        low = low_of(top, bottom, limit)
        if not per_row and low[0] == bottom[0]:  # nearly always
            np.subtract(c, low - np.uint8(plus), out=new[expert])  # as an array it may wrap
        else:
            offsets = np.zeros_like(codes) if offsets is None else offsets
            raised(c, np.broadcast_to(low, len(c)), plus, new[expert], offsets[expert])
        factor[expert] = factor_of(low).reshape(factor.shape[1:])
    if offsets is None:  # the zeros of one expert are those of all
        offsets = np.broadcast_to(np.zeros(codes.shape[1:], np.uint8), codes.shape)
    return new, offsets, factor


@lru_cache(maxsize=1)
def rewrite_table() -> U8:
    """uint8 [256, 16]: the code of an E2M1 code in a group with offset d (S5, the exact arithmetic).

    d = 0: only -0 becomes 0.  d = 1: 0 1 1 2 2 3 4 5.  From 128 on the library's multiplier is no power of two and its codes mean nothing.
    """
    c = np.arange(16, dtype=np.uint32)
    c = np.where(c == 8, np.uint32(0), c)
    f = ((c & 8) << 28 | (c & 7) << 22).view(np.float32)
    d = np.arange(256, dtype=np.uint32)[:, None]
    with np.errstate(all="ignore"):
        p = np.asarray(f * (np.uint32(0x3F800000) - (d << 23)).view(np.float32), np.float32)
        bits = np.where(np.isnan(p), np.uint32(0x7FFFFFFF), p.view(np.uint32))
        down, up = bits & np.uint32(0x81C00000), (bits + np.uint32(0x200000)) & np.uint32(0x81C00000)
        nearer_up = np.abs(p - down.view(np.float32)) >= np.abs(p - up.view(np.float32))
    x = np.where(nearer_up, up, down)
    out = ((x & np.uint32(0x80000000)) >> 28 | (x & np.uint32(0x01C00000)) >> 22).astype(np.uint8)
    out[0] = c
    return out


@lru_cache(maxsize=1)
def changed_table() -> NDArray[np.bool_]:
    """bool [256, 16]: does a code in a group with offset d change its value? (-0 -> 0 does not.)"""
    v = values("float4e2m1")
    return np.asarray(v[rewrite_table()] * np.exp2(np.arange(256.0))[:, None] != v[None, :])


def fp16_range(codes: U8) -> tuple[U8, F32]:
    """S3: bytes [E, ...] -> bytes inside float16's range, factors [E].

    Per expert: shift = hi - 15 if hi > 15 else min(max(lo + 14, hi - 15), 0);  new exponent = e - shift, clamped to -15..15.
    """
    e = codes.astype(np.int32) - 127
    axes = tuple(range(1, e.ndim))
    low, high = e.min(axis=axes), e.max(axis=axes)
    shift = np.where(high > 15, high - 15, np.minimum(np.maximum(low + 14, high - 15), 0))
    moved = np.clip(e - shift.reshape(-1, *(1,) * (e.ndim - 1)) + 127, 112, 142)
    return moved.astype(np.uint8), np.ldexp(np.float32(1), shift).astype(np.float32)


def rebias(codes: U8) -> U8:
    """S7: E8M0 as float16's exponent field in the top bits of a byte: clamp(byte - 112, 0, 30) << 3."""
    return (np.clip(codes.astype(np.int32) - 112, 0, 30) << 3).astype(np.uint8)


def rebias_back(codes: U8) -> U8:
    return ((codes >> 3) + 112).astype(np.uint8)
