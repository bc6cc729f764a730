"""Scans: questions about stored codes and scales that decide a layer's form, at the speed of memory.

In: stored arrays as they lie in files.  Out: a yes or no, a count, or one value a group.
Facts: layouts.md S1 (is any code 0), S2e (a group that holds anything but 0), S5 (largest and smallest E8M0 byte); formats.md 9.2 (NaN).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.passes.blocks import NOTHING, stored_rows
from humming_convert.passes.known import tiles
from humming_convert.passes.orders import LANES, source_order
from humming_convert.passes.positions import padded_width, source_bits
from humming_convert.passes.route import ROW, Reading, Route
from humming_convert.standard.packing import PACKINGS, take_words, takes_whole_words

Raw = NDArray[Any]
FIRST = 32  # rows and columns that are looked at before a compiled kernel is loaded: almost always they hold a code 0
STEP = 1 << 18  # bytes between two looks at the result: in cache, and an early end is early
E4M3_NAN = 0x7F


def _route(packing: str, bits: int) -> Route:
    """Reads one vector, or one run of 32 codes, of a stored block."""
    width = padded_width(bits)
    order = source_order("rows" if packing == "signed_rows" else packing, bits, 0)
    tile = order.fields + order.lanes + order.near
    read: Reading = "vectors" if width == bits else "runs" if packing == "gptq" else "gathered"
    return Route(width=width, bits=bits, source=tile, target=tile, read=read, near=len(order.near), flip=packing == "signed_rows")


@lru_cache(maxsize=1)
def _one_row() -> NDArray[np.int64]:
    return np.zeros((1, ROW), np.int64)


def _run(route: Route, source: int, pitch: int, outer: NDArray[np.int64], inner: NDArray[np.int64]) -> bool:
    result = np.zeros(8, np.int64)
    values: dict[str, Raw] = {"outer": outer, "inner": inner, "rest": _one_row(), "result": result, "target": NOTHING, "aux": NOTHING}
    numbers = {x: int(y.__array_interface__["data"][0]) for x, y in values.items()}
    numbers |= {"source": source, "outers": len(outer), "inners": len(inner), "rests": 1, "lane": pitch, "run": pitch}
    return tiles(route, "zeros")(np.array([numbers.get(x, 0) for x in route.parameters], np.int64)) != 0  # a scan has no target strides


def _table(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.zeros((len(offsets), ROW), np.int64)
    out[:, 0] = offsets
    return out


def _codes_have_zero(packing: str, bits: int, raw: NDArray[np.uint8], rows: slice, columns: slice) -> bool:
    """The edges, code by code."""
    n, k = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
    if not len(n) or not len(k):
        return False
    at_rows, at_columns = source_bits(packing, bits, raw.strides[0], n, k)
    at = at_rows[:, None] + at_columns
    flat = np.lib.stride_tricks.as_strided(raw, (raw.strides[0] * (raw.shape[0] - 1) + raw.shape[1],), (1,))
    code = ((flat[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(np.int64) << np.arange(bits)).sum(-1)
    return bool((code == (1 << (bits - 1) if packing == "signed_rows" else 0)).any())


def any_zero_code(packing: str, bits: int, stored: Raw, n: int, k: int) -> bool:
    """Whether any of the n * k codes of a block is 0 (ends at the first stretch that has one)."""
    rows, columns = (0, min(n, FIRST)), (0, min(k, FIRST))
    if takes_whole_words(packing, bits, n, k, rows, columns):
        corner = take_words(packing, bits, stored, n, rows, columns)
        if not PACKINGS[packing](np.ascontiguousarray(corner), bits, rows[1], columns[1]).all():
            return True
    raw = stored_rows(packing, stored, n)
    pitch, width = raw.strides[0], padded_width(bits)
    if packing == "signed_rows" and bits != 8:
        return any(_codes_have_zero(packing, bits, raw, slice(i, i + 1), slice(0, k)) for i in range(n))
    route = _route(packing, bits)
    tall = 1 << sum(x[0] == "n" for x in route.source)
    wide = 1 << sum(x[0] == "k" for x in route.source)
    whole_n, whole_k = n // tall * tall, k // wide * wide
    edges = [(slice(whole_n, n), slice(0, k)), (slice(0, whole_n), slice(whole_k, k))]
    if any(_codes_have_zero(packing, bits, raw, *edge) for edge in edges):
        return True
    at_n, at_k = np.arange(0, whole_n, tall), np.arange(0, whole_k, wide)
    bits_n, bits_k = source_bits(packing, bits, pitch, at_n, at_k)
    by_n, by_k = _table(bits_n[:, 0] // 8), _table(bits_k[:, 0] // 8)
    outer, inner = (by_n, by_k) if packing in ("rows", "signed_rows") else (by_k, by_n)
    if not len(outer) or not len(inner):
        return False
    step = max(STEP // (len(inner) * LANES * 4 * (bits if width != bits else 1)), 1)
    address = int(raw.__array_interface__["data"][0])
    return any(_run(route, address, pitch, np.ascontiguousarray(outer[i : i + step]), inner) for i in range(0, len(outer), step))


def group_has_magnitude(stored: Raw, n: int, k: int, group: int) -> NDArray[np.bool_]:
    """[n, k / group]: whether any E2M1 code of a group is neither 0 nor -0. stored: FP4 rows; group: a multiple of 16 columns."""
    assert group % 16 == 0 and k % group == 0, (k, group)
    raw = stored_rows("rows", stored, n)
    out = np.empty((n, k // group), np.bool_)
    step = max(STEP // max(raw.shape[1], 1), 1)
    for i in range(0, n, step):
        words = np.ascontiguousarray(raw[i : i + step, : k // 2]).view(np.uint64).reshape(-1, group // 16)
        some = words[:, 0].copy()
        for j in range(1, group // 16):
            some |= words[:, j]
        out[i : i + step] = ((some & np.uint64(0x7777777777777777)) != 0).reshape(-1, k // group)
    return out


def group_top_and_bottom(scales: Raw) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """([rows] largest, [rows] smallest) E8M0 byte of each row of scales [rows, groups]."""
    raw = scales.view(np.uint8)
    return raw.max(-1), raw.min(-1)


def count_nan_e4m3(stored: Raw) -> int:
    """How many bytes of an array are a NaN of float8_e4m3fn (0x7F or 0xFF)."""
    flat = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    whole = len(flat) // 8 * 8
    low, ones = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x0101010101010101)
    count = int(np.count_nonzero(flat[whole:] & 0x7F == E4M3_NAN))
    for i in range(0, whole, STEP):
        words = flat[i : min(i + STEP, whole)].view(np.uint64)
        full = ((words & low) + ones) >> np.uint64(7) & ones  # one where all seven low bits are set
        if full.any():
            count += int(full.view(np.uint8).sum(dtype=np.int64))
    return count


__all__ = ["any_zero_code", "count_nan_e4m3", "group_has_magnitude", "group_top_and_bottom"]
