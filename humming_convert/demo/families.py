"""What the families store: for each one a packer that draws numbers and gives a module's tensors and their meaning in float64.

Codes run over the full range of their type, each equally often.  In: a Draw and (n, k).  Out: tensors by suffix, weight [n, k].
Facts: formats.md 2 to 8, for each packer by its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from humming_convert.demo.pack import BF16, E2M1, E4M3, Array, Codes, Real, awq_words, bit_stream, gptq_words, nibble_bytes, spread

Made = tuple[dict[str, Array], Real]
"""Tensors of one module by suffix, and its weight [n, k] in float64."""


class Draw:
    """Random numbers of one module. Equal names draw equal numbers."""

    def __init__(self, name: str) -> None:
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def codes(self, n: int, k: int, levels: int, low: int = 0) -> Codes:
        """[n, k], every code low .. levels-1 equally often."""
        return self.rng.permutation(np.arange(n * k) % (levels - low) + low).astype(np.uint8).reshape(n, k)

    def e4m3(self, n: int, k: int) -> Array:
        """[n, k] of float8_e4m3fn: every byte but the two NaNs."""
        byte = self.codes(n, k, 254).astype(np.int64)
        return (byte + (byte >= 0x7F)).astype(np.uint8).view(E4M3)

    def scales(self, *shape: int, dtype: Any) -> Array:
        return np.asarray(self.rng.uniform(0.004, 0.03, shape).astype(dtype))

    def e4m3_scales(self, *shape: int) -> Array:
        """Positive, finite, normal."""
        return self.rng.integers(0x28, 0x7F, shape).astype(np.uint8).view(E4M3)

    def scalar(self, low: float, high: float) -> np.float32:
        return np.float32(self.rng.uniform(low, high))


Packer = Callable[[Draw, int, int], Made]
"""(draw, n, k) -> one module in its family's storage."""


# Packers: one a storage


def gptq(bits: int, group: int, version: int, symmetric: bool, scale: Any = np.float16, low: int = 0) -> Packer:
    """version 1 stores zero points minus one. Zero points of asymmetric samples keep to the middle, as those of real files do."""

    def make(draw: Draw, n: int, k: int) -> Made:
        size = k if group < 0 else group
        groups, middle = k // size, 1 << (bits - 1)
        codes = draw.codes(n, k, 1 << bits, low)
        zeros: Codes = np.full((n, groups), middle, np.uint8)
        if not symmetric:
            zeros = draw.codes(n, groups, (1 << bits) - 1, 1) if version == 1 else draw.codes(n, groups, 1 << bits)
        scales = draw.scales(n, groups, dtype=scale)
        stored = zeros - np.uint8(version == 1)
        tensors = {
            "qweight": gptq_words(codes, bits),
            "qzeros": bit_stream(np.ascontiguousarray(stored.T), bits),
            "scales": np.ascontiguousarray(scales.T),
            "g_idx": (np.arange(k) // size).astype(np.int32),
        }
        return tensors, (codes - spread(zeros, 1, size, n, k)) * spread(scales, 1, size, n, k)

    return make


def awq(group: int) -> Packer:
    def make(draw: Draw, n: int, k: int) -> Made:
        codes, zeros = draw.codes(n, k, 16), draw.codes(n, k // group, 16)
        scales = draw.scales(n, k // group, dtype=np.float16)
        tensors = {"qweight": awq_words(codes), "qzeros": awq_words(zeros), "scales": np.ascontiguousarray(scales.T)}
        return tensors, (codes - spread(zeros, 1, group, n, k)) * spread(scales, 1, group, n, k)

    return make


def ct_pack(bits: int, group: int, symmetric: bool, low: int = 0) -> Packer:
    """compressed-tensors pack-quantized: a stream along K in rows, zero points a stream along N."""

    def make(draw: Draw, n: int, k: int) -> Made:
        size = group or k
        codes = draw.codes(n, k, 1 << bits, low)
        scales = draw.scales(n, k // size, dtype=BF16)
        zeros = np.full((n, k // size), 1 << (bits - 1), np.uint8) if symmetric else draw.codes(n, k // size, 1 << bits)
        tensors = {"weight_packed": bit_stream(codes, bits), "weight_scale": scales, "weight_shape": np.array([n, k], np.int64)}
        if not symmetric:
            tensors["weight_zero_point"] = np.ascontiguousarray(bit_stream(np.ascontiguousarray(zeros.T), bits).T)
        return tensors, (codes - spread(zeros, 1, size, n, k)) * spread(scales, 1, size, n, k)

    return make


def ct_int8(draw: Draw, n: int, k: int) -> Made:
    codes = draw.codes(n, k, 256).view(np.int8)
    scales = draw.scales(n, 1, dtype=BF16)
    return {"weight": codes, "weight_scale": scales}, codes.astype(np.float64) * scales.astype(np.float64)


def fp8_channel(draw: Draw, n: int, k: int) -> Made:
    codes, scales = draw.e4m3(n, k), draw.scales(n, 1, dtype=BF16)
    return {"weight": codes, "weight_scale": scales}, codes.astype(np.float64) * scales.astype(np.float64)


def fp8_block(suffix: str) -> Packer:
    """One float32 scale for 128 x 128 weights; the grid is rounded up where N or K is ragged."""

    def make(draw: Draw, n: int, k: int) -> Made:
        codes, scales = draw.e4m3(n, k), draw.scales(-(-n // 128), -(-k // 128), dtype=np.float32)
        return {"weight": codes, suffix: scales}, codes.astype(np.float64) * spread(scales, 128, 128, n, k)

    return make


def fp8_tensor(draw: Draw, n: int, k: int) -> Made:
    codes, scale = draw.e4m3(n, k), draw.scalar(0.004, 0.03)
    tensors = {"weight": codes, "weight_scale": np.array(scale), "input_scale": np.array(draw.scalar(0.01, 0.1))}
    return tensors, codes.astype(np.float64) * float(scale)


def ct_nvfp4(draw: Draw, n: int, k: int) -> Made:
    """Globals are divisors here; powers of two, so that 1 / x is exact."""
    codes, scales = draw.codes(n, k, 16), draw.e4m3_scales(n, k // 16)
    divisor, inputs = np.float32(2.0 ** draw.rng.integers(9, 13)), np.float32(2.0 ** draw.rng.integers(5, 8))
    tensors = {
        "weight_packed": nibble_bytes(codes),
        "weight_scale": scales,
        "weight_global_scale": np.array([divisor]),
        "input_global_scale": np.array([inputs]),
    }
    return tensors, E2M1[codes] * spread(scales, 1, 16, n, k) / float(divisor)


def modelopt_nvfp4(draw: Draw, n: int, k: int) -> Made:
    """Globals are multipliers here, of any value."""
    codes, scales, factor = draw.codes(n, k, 16), draw.e4m3_scales(n, k // 16), draw.scalar(1e-4, 9e-4)
    tensors = {
        "weight": nibble_bytes(codes),
        "weight_scale": scales,
        "weight_scale_2": np.array(factor),
        "input_scale": np.array(draw.scalar(0.001, 0.01)),
    }
    return tensors, E2M1[codes] * spread(scales, 1, 16, n, k) * float(factor)


def mxfp4_bytes(draw: Draw, n: int, k: int, spread_of_scales: int) -> tuple[Codes, Array, Real]:
    """Codes, E8M0 bytes [n, k/32], weight. `spread_of_scales`: how many powers of two lie between the scales of a row."""
    codes = draw.codes(n, k, 16)
    scales = draw.rng.integers(124 - spread_of_scales, 125, (n, k // 32)).astype(np.uint8)
    return codes, scales, E2M1[codes] * spread(np.exp2(scales.astype(np.float64) - 127), 1, 32, n, k)


def ct_mxfp4(draw: Draw, n: int, k: int) -> Made:
    codes, scales, weight = mxfp4_bytes(draw, n, k, 8)
    return {"weight_packed": nibble_bytes(codes), "weight_scale": scales}, weight


def humming(bits: int, group: int) -> Packer:
    """The Humming standard form with integer zero points."""

    def make(draw: Draw, n: int, k: int) -> Made:
        codes, zeros = draw.codes(n, k, 1 << bits), draw.codes(n, k // group, 1 << bits)
        scales = draw.scales(n, k // group, dtype=BF16)
        packed_zeros = np.ascontiguousarray(bit_stream(np.ascontiguousarray(zeros.T), bits).T)
        tensors = {"weight": bit_stream(codes, bits), "weight_scale": scales, "zero_point": packed_zeros}
        return tensors, (codes - spread(zeros, 1, group, n, k)) * spread(scales, 1, group, n, k)

    return make
