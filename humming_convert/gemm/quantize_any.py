"""Activations quantized on the fly: launches quantize_any.cuh, and does the same in numpy, number for number.

In: rows of 16-bit activations.  Out: operands (16-bit numbers that stand for the codes exactly, E4M3, 8-bit or 4-bit integers), and float32 scales
[rows] or [rows, groups].
Facts: layouts.md 4.1 (modes). Scales: largest magnitude over the largest number of the type; E8M0: the next power of two; E4M3: rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.source import KernelSource, kernel_source
from humming_convert.gemm.tuning import Tuning

F32 = NDArray[np.float32]
THREADS = 128
STORED = {"f16": "uint16", "bf16": "uint16", "e4m3": "uint8", "s8": "uint8", "s4": "uint8", "e2m1": "uint8"}
TWO_A_BYTE = ("s4", "e2m1")


@dataclass(frozen=True, slots=True)
class Rows:
    """What the kernel knows of a layer: layers of one width share it."""

    k: int
    half: str


def source(layer: Layer, compute: Compute) -> KernelSource:
    """The kernel for a layer's activations."""
    mathematics = replace(compute, output="f32", task="dense", flush=1, step=8)
    return kernel_source("quantize_any", Rows(layer.k, layer.half), mathematics, Tuning(threads=THREADS))


def launch(device: Device, layer: Layer, compute: Compute, x: Any, given: Any) -> tuple[Any, Any]:
    """x: uint16 on the device [m, k].  Out: operands of the same shape, and the scales."""
    m, k = x.shape
    groups = -(-k // compute.act_group) if compute.act_group else 1
    q, scale = (
        device.filled((m, k // 2 if compute.operand in TWO_A_BYTE else k), STORED[compute.operand]),
        device.filled((m, groups), "float32"),
    )
    device.launch(source(layer, compute), (m,), THREADS, (x, given, q, scale, m))
    return q, scale


def _power(e: NDArray[Any]) -> F32:
    return np.asarray(np.ldexp(np.float32(1), e), np.float32)


def _exponent(x: F32) -> NDArray[np.int32]:
    return (x.view(np.uint32) >> 23 & 255).astype(np.int32) - 127


def round_to_type(x: F32, c: Compute) -> F32:
    kept = np.clip(x, np.float32(-c.act_top), np.float32(c.act_top))
    if c.act_exponent == 0:
        return np.asarray(np.rint(kept))
    step = _power(np.maximum(_exponent(kept), 2 - (1 << (c.act_exponent - 1))) - c.act_mantissa)
    return np.asarray(np.rint(kept / step) * step)


def group_scale(want: F32, c: Compute) -> F32:
    if c.as_type == "e8m0":
        up = _exponent(want) + (want.view(np.uint32) & np.uint32(0x7FFFFF) != 0)
        return np.where(want > 0, _power(np.maximum(up, -126)), np.float32(1))
    if c.as_type == "e4m3":
        kept = np.minimum(want, np.float32(448))
        step = _power(np.maximum(_exponent(kept), -6) - 3)
        near = (np.rint(kept / step) * step).astype(np.float32)
        return np.where(near > 0, near, _power(np.asarray(-9)))
    return np.where(want > 0, want, np.float32(1))


def in_numpy(x: F32, c: Compute, given: float = 1.0) -> tuple[F32, F32]:
    """x: [m, k] float32.  Out: numbers [m, k] and scales [m, groups], as the kernel makes them."""
    m, k = x.shape
    top = np.float32(c.act_top)
    if not c.quantizes:
        return x, np.ones((m, 1), np.float32)
    largest = np.abs(x).max(axis=1, keepdims=True)
    if c.act_mode == "group":
        group = c.act_group
        second: Any = np.float32(1)
        if c.act_second == "tensor":
            second = np.float32(given)
        elif c.act_second == "token":
            second = np.where(largest > 0, largest / (np.float32(448) * top), np.float32(1))
        wide = np.pad(np.abs(x), ((0, 0), (0, -k % group))).reshape(m, -1, group).max(axis=2)
        scale = group_scale(np.ascontiguousarray(wide / (top * second), np.float32), c) * second
        scale = np.asarray(scale, np.float32)
        return round_to_type(x / np.repeat(scale, group, axis=1)[:, :k], c), scale
    if c.act_mode == "fixed":
        scale = np.full((m, 1), given, np.float32)
    else:
        scale = np.where(largest > 0, largest / top, np.float32(1)).astype(np.float32)
    return round_to_type(x / scale, c), scale


def meant(q: F32, scale: F32, c: Compute) -> NDArray[np.float64]:
    """What numbers and scales stand for: float64 [m, k]."""
    wide = np.repeat(scale, c.act_group, axis=1)[:, : q.shape[1]] if c.act_group else scale
    return q.astype(np.float64) * wide.astype(np.float64)
