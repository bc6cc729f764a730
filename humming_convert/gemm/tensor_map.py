"""A matrix as copies by the hardware address it (TMA): the 128 bytes that kernels take as an argument.

In: where rows are on the device, how many and how long, the box of one copy.  Out: a tensor map, whose boxes lie in shared memory with the chunks of
16 bytes of eight rows exchanged, as stages_sm80.cuh has them. What lies beyond the rows or their ends is 0.
Facts: CUDA driver API, cuTensorMapEncodeTiled; the map is the only thing of the driver that CuPy has no function for.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTES = 128
ALIGNED = 64
UINT8, UINT16 = 0, 1  # CUtensorMapDataType
SWIZZLE_128B, PROMOTION_256B = 3, 3
BOX_BYTES = 128  # of a row: the longest that this swizzle has


class NoTensorMap(Exception):
    """The driver refused a matrix."""


@lru_cache(maxsize=1)
def _encode() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    function.restype = ctypes.c_int
    return function


@lru_cache(maxsize=512)
def rows_map(at: int, rows: int, columns: int, itemsize: int, box_rows: int) -> NDArray[np.void]:
    """The map of [rows, columns] elements of 1 or 2 bytes at device address `at`, a multiple of 16, as the length of a row is; its boxes are
    128 bytes of `box_rows` rows."""
    room = np.zeros(BYTES + ALIGNED, np.uint8)
    start = -int(room.__array_interface__["data"][0]) % ALIGNED
    out = room[start : start + BYTES]
    code = _encode()(
        ctypes.c_void_p(int(out.__array_interface__["data"][0])),
        ctypes.c_int({1: UINT8, 2: UINT16}[itemsize]),
        ctypes.c_uint32(2),
        ctypes.c_void_p(at),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(columns * itemsize),
        (ctypes.c_uint32 * 2)(BOX_BYTES // itemsize, box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        ctypes.c_int(0),
        ctypes.c_int(SWIZZLE_128B),
        ctypes.c_int(PROMOTION_256B),
        ctypes.c_int(0),
    )
    if code:
        raise NoTensorMap(
            f"cuTensorMapEncodeTiled: error {code} for {rows} x {columns} elements of {itemsize} bytes, boxes of {box_rows} rows"
        )
    return out.view(f"V{BYTES}")  # one element: CuPy passes such an array by value
