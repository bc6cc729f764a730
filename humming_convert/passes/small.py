"""Small tensors by compiled passes: 16-bit numbers through a table, rows of E8M0 bytes.

In: contiguous arrays.  Out: what the numpy references give (`standard.expr.look_up`, `layouts.e8m0`). Scales are a thirtieth to a quarter
of a model's bytes, so that a nanosecond a scale shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts import e8m0
from humming_convert.layouts.small import SmallPasses
from humming_convert.passes.aux_values import address
from humming_convert.passes.calls import At, Listing
from humming_convert.passes.machine import Kernel, kernels
from humming_convert.passes.scales import place_scales
from humming_convert.standard import expr

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
ROW = 16  # bytes that a row has at least (written.LANES, which cached code does not import)


def _call(kernel: Kernel, *values: int | NDArray[Any]) -> int:
    return kernel(np.array([address(x) if isinstance(x, np.ndarray) else x for x in values], np.int64))


def _kernel(name: str, holds: Callable[[Kernel], bool]) -> Kernel:
    def text() -> str:
        from humming_convert.passes import written

        return str(getattr(written, name))

    return kernels().get(name, text, holds)


# ---- tables


@lru_cache(maxsize=1)
def _look_up() -> Kernel:
    def holds(kernel: Kernel) -> bool:
        rng = np.random.default_rng(0)
        codes, table = (rng.integers(0, 1 << 16, n, np.uint16) for n in (999, 1 << 16))
        (got, counts), (want, wanted) = _looked_up(kernel, codes, table), expr.look_up(codes, table)
        return np.array_equal(got, want) and np.array_equal(counts, wanted)

    return _kernel("LOOK_UP", holds)


def _looked_up(kernel: Kernel, codes: U16, table: U16) -> tuple[U16, NDArray[np.int64]]:
    codes, out, counts = np.ascontiguousarray(codes), np.empty(codes.shape, np.uint16), np.zeros(1 << 16, np.int64)
    flat, to = codes.reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, 1 << 31):  # as many as a count of 32 bits can hold
        some = np.zeros(1 << 16, np.uint32)
        part = flat[start : start + (1 << 31)]
        _call(kernel, part, to[start:], table, some, part.size)
        counts += some
    return out, counts


def look_up(codes: U16, table: U16) -> tuple[U16, NDArray[np.int64]]:
    """`table[codes]`, and how often each code occurs [65536]."""
    assert table.shape == (1 << 16,) and table.dtype == codes.dtype == np.uint16, (table.shape, codes.dtype)
    return _looked_up(_look_up(), codes, np.ascontiguousarray(table))


def add_look_up(listing: Listing, numbers: At, table: At, counts: At, count: int) -> None:
    """A call that replaces `count` 16-bit numbers by `table[number]` and adds to counts (uint32 [65536]) how often each occurred.
    The caller clears the counts, and sees to it that none of them overflows."""
    places = tuple(enumerate((numbers, numbers, table, counts)))
    listing.kernel(_look_up(), np.array([0, 0, 0, 0, count], np.int64), places, want=count)


# ---- rows of E8M0 bytes


def _known_rows() -> U8:
    return np.random.default_rng(0).integers(0, 256, (5, 37), np.uint8)


@lru_cache(maxsize=1)
def _row_range() -> Kernel:
    def holds(kernel: Kernel) -> bool:
        rows = _known_rows()
        return all(np.array_equal(a, b) for a, b in zip(_ranged(kernel, rows), e8m0.row_range(rows), strict=True))

    return _kernel("ROW_RANGE", holds)


def _ranged(kernel: Kernel, codes: U8) -> tuple[U8, U8]:
    top, bottom = np.empty(len(codes), np.uint8), np.empty(len(codes), np.uint8)
    _call(kernel, codes, len(codes), codes.shape[1], top, bottom, 0, 0)
    return top, bottom


def row_range(codes: U8) -> tuple[U8, U8]:
    """Largest and smallest byte of each row [rows, groups]."""
    if codes.shape[1] < ROW:
        return e8m0.row_range(codes)
    return _ranged(_row_range(), np.ascontiguousarray(codes))


@lru_cache(maxsize=1)
def _raise_rows() -> Kernel:
    def holds(kernel: Kernel) -> bool:
        rows = _known_rows()
        got, want = ([np.empty_like(rows), np.empty_like(rows)] for _ in range(2))
        _raised(kernel, rows, rows[:, 0], 3, got[0], got[1])
        e8m0.raise_rows(rows, rows[:, 0], 3, want[0], want[1])
        return np.array_equal(got, want)

    return _kernel("RAISE_ROWS", holds)


def _raised(kernel: Kernel, codes: U8, low: U8, plus: int, new: U8, offsets: U8) -> None:
    _call(kernel, codes, len(codes), codes.shape[1], new, offsets, np.ascontiguousarray(low), plus)


def raise_rows(codes: U8, low: U8, plus: int, new: U8, offsets: U8) -> None:
    """max(code, low of its row) - low + plus into `new`, max(code, low) - code into `offsets`, all [rows, groups], as bytes."""
    if codes.shape[1] < ROW or not all(x.flags.c_contiguous for x in (codes, new, offsets)):
        e8m0.raise_rows(codes, low, plus, new, offsets)
        return
    assert codes.shape == new.shape == offsets.shape and low.shape == codes.shape[:1], (codes.shape, low.shape)
    _raised(_raise_rows(), codes, low, plus, new, offsets)


# ---- longer rows

ROW_LARGEST = 256
"""A fill that is each row's largest byte (layouts.md 3, E8M0 that is fused)."""


def pad_rows(rows: U8, pitch: int, fill: int, minus: int) -> U8:
    """Bytes [rows, b] -> [rows, pitch], new ones `fill`; all of them less `minus`, and they wrap. The reference of `add_pad_rows`."""
    out = np.empty((len(rows), pitch), np.uint8)
    out[:, : rows.shape[1]] = rows
    out[:, rows.shape[1] :] = rows.max(1)[:, None] if fill == ROW_LARGEST else fill
    return np.asarray(out - np.uint8(minus))


@lru_cache(maxsize=1)
def _pad_rows() -> Kernel:
    def holds(kernel: Kernel) -> bool:
        rows = _known_rows()
        for pitch, fill, minus in ((37, 0, 0), (41, 127, 0), (40, ROW_LARGEST, 200)):
            got = np.empty((len(rows), pitch), np.uint8)
            _call(kernel, rows, len(rows), rows.shape[1], got, pitch, fill, minus)
            if not np.array_equal(got, pad_rows(rows, pitch, fill, minus)):
                return False
        return True

    return _kernel("PAD_ROWS", holds)


def add_pad_rows(listing: Listing, rows: int, row_bytes: int, source: At, target: At, pitch: int, fill: int, minus: At) -> None:
    """A call that makes rows of `row_bytes` (ROW or more) `pitch` bytes long. fill, minus: as `pad_rows` takes them; minus: a base that is the number."""
    assert ROW <= row_bytes <= pitch, (row_bytes, pitch)
    places = ((0, source), (3, target), (6, minus))
    listing.kernel(_pad_rows(), np.array([0, rows, row_bytes, 0, pitch, fill, 0], np.int64), places, want=rows)


SMALL_PASSES = SmallPasses(place=place_scales, row_range=row_range, raise_rows=raise_rows)
