"""Rows of x that lists name, brought side by side before a kernel multiplies them: configures gather_any.cuh.

In: a layer, its mathematics for gathered rows, lists.  Out: a call that fills a workspace; how many slots of it there is room for.
Why: with many rows an expert a tensor map copies them for a cluster of blocks at once, which costs less than what copies row by row do to the
kernel (docs/decisions/069).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.source import KernelSource, kernel_source
from humming_convert.gemm.tuning import Tuning

WORKSPACE = 64_000_000  # bytes, at most
THREADS = 256


def source(layer: Layer, compute: Compute) -> KernelSource:
    return kernel_source("gather_any", layer, compute, Tuning(threads=THREADS))


def tiles_at_once(layer: Layer, tile_m: int) -> int:
    """Tiles of rows for which there is room."""
    return max(1, WORKSPACE // (tile_m * layer.k * layer.act_bits // 8))


def bound(device: Device, layer: Layer, compute: Compute, x: Any, rows: Any, room: int, to: Any) -> Callable[[], None]:
    """rows: of y, as lists have them, on the device; -1 is none.  room: rows of y for each of x.  to: [at least as many slots, as x]."""
    slots = int(rows.size)
    return device.bound(source(layer, compute), (-(-slots // (THREADS // 32)),), THREADS, (x, rows, room, to, slots))
