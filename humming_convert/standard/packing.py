"""Packings: where the codes of one matrix sit in stored words. The slow, obvious reference in numpy.

A packing is a name, an `unpack` to codes [n, k] uint8, and (where a test or a writer needs it) a `pack`.
The compiled passes know the same names and are tested against these functions.
Facts: formats.md 0, 2.2, 2.4, 2.9, 3.2 to 3.4, 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Unpack = Callable[[NDArray[Any], int, int, int], Codes]

PACKINGS: dict[str, Unpack] = {}
"""name -> unpack(stored, bits, n, k): codes [n, k]. `stored` has the shape and dtype of the file (one expert's slice)."""


def packing(name: str) -> Callable[[Unpack], Unpack]:
    """Registers a packing under `name`."""

    def register(function: Unpack) -> Unpack:
        assert name not in PACKINGS, name
        PACKINGS[name] = function
        return function

    return register


def stream_unpack(words: NDArray[Any], bits: int, count: int) -> Codes:
    """P(b): the bit stream along the last axis -> codes [..., count]. Element i is bits i*b .. i*b+b-1, low bits first, words little endian.

    Any stored integer width does: bytes and 32-bit words of the same bytes are the same stream.
    """
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw[..., :count].copy()
    if bits == 4:
        out = np.empty((*raw.shape[:-1], raw.shape[-1] * 2), np.uint8)
        out[..., 0::2], out[..., 1::2] = raw & 15, raw >> 4
        return np.ascontiguousarray(out[..., :count])
    flat = np.unpackbits(raw, axis=-1, bitorder="little")[..., : count * bits].reshape(*raw.shape[:-1], count, bits)
    return np.asarray((flat << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8))


def stream_pack(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """The inverse: codes [..., L] -> int32 [..., ceil(L*bits/32)]; unused high bits are 0."""
    codes = np.ascontiguousarray(codes, np.uint8)
    length = codes.shape[-1]
    if bits in (4, 8):
        padded = np.zeros((*codes.shape[:-1], -(-length * bits // 32) * 32 // bits), np.uint8)
        padded[..., :length] = codes & np.uint8((1 << bits) - 1)
        return (padded if bits == 8 else padded[..., 0::2] | padded[..., 1::2] << 4).view("<i4")
    flat = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    flat = flat.reshape(*codes.shape[:-1], length * bits)
    flat = np.concatenate([flat, np.zeros((*flat.shape[:-1], -flat.shape[-1] % 32), np.uint8)], -1)
    return np.packbits(flat, axis=-1, bitorder="little").view("<i4")


@packing("rows")
def _rows(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """Standard form, compressed-tensors, FP4 bytes (low nibble = even k), FP8 bytes: P(b) along K of each row."""
    return stream_unpack(stored.reshape(n, -1), bits, k)


@packing("signed_rows")
def _signed_rows(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """Two's complement bytes [n, k] (`int-quantized`): code = q + 2^(b-1), stored one a byte."""
    return (stored.reshape(n, k).view(np.uint8).astype(np.int16) + (1 << (bits - 1))).astype(np.uint8) & np.uint8((1 << bits) - 1)


@packing("gptq")
def _gptq(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """qweight [ceil(K*b/32), N]: P(b) along K (axis 0) of each column."""
    return stream_unpack(np.ascontiguousarray(stored.T), bits, k)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of word c holds column 8c + AWQ_ORDER[i] (formats.md 3.2)


@packing("awq")
def _awq(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """AWQ gemm qweight [K, N/8]: 4 bits, along N, nibbles in the order 0 2 4 6 1 3 5 7."""
    assert bits == 4
    nibbles = stream_unpack(stored, 4, n).reshape(k, n // 8, 8)
    out = np.empty_like(nibbles)
    out[..., list(AWQ_ORDER)] = nibbles
    return np.ascontiguousarray(out.reshape(k, n).T)


# ---- windows of a part

WORD_STEPS: dict[str, Callable[[int], tuple[int, int]]] = {
    "rows": lambda bits: (1, 8 // gcd(8, bits)),
    "signed_rows": lambda bits: (1, 1),
    "gptq": lambda bits: (1, 32 // gcd(32, bits)),
    "awq": lambda bits: (8, 1),
}
"""packing -> (rows, columns) between two places where no stored byte or word is shared. Packings that are not here are unpacked whole."""


def takes_whole_words(packing: str, bits: int, n: int, k: int, rows: tuple[int, int], columns: tuple[int, int]) -> bool:
    """Whether rows x columns of a part [n, k] begin and end where stored words do."""
    if packing not in WORD_STEPS:
        return False
    by_row, by_column = WORD_STEPS[packing](bits)
    return all(x % by_row == 0 or x == n for x in rows) and all(x % by_column == 0 or x == k for x in columns)


def take_words(packing: str, bits: int, stored: NDArray[Any], n: int, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[Any]:
    """The stored array of rows x columns of a part of n rows (takes_whole_words), a view wherever numpy can give one."""
    (n0, n1), (k0, k1) = rows, columns
    match packing:
        case "rows":
            return stored.reshape(n, -1).view(np.uint8)[n0:n1, k0 * bits // 8 : -(-k1 * bits // 8)]
        case "signed_rows":
            return stored.reshape(n, -1)[n0:n1, k0:k1]
        case "gptq":
            return stored[k0 * bits // 32 : -(-k1 * bits // 32), n0:n1]
        case _:
            assert packing == "awq", packing
            return stored[k0:k1, n0 // 8 : n1 // 8]
