"""Packings of GPTQ, AWQ and Marlin files beyond the plain streams: split planes, AWQ's streams along N, 64 x 4 tiles, 16 x 16 tiles.

In: stored words of one matrix.  Out: codes [n, k] uint8, and the inverses that writers and tests need.
Facts: formats.md 2.4 (planar), 2.9 (Marlin tiles), 3.4 (gemv_fast), 3.5 (AWQ widths other than 4).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.standard.packing import AWQ_ORDER, Codes, packing, stream_pack, stream_unpack

PLANES: dict[int, tuple[int, ...]] = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
"""bits -> widths of the planes of a block of 32 codes, low bits first; a plane of width w fills w words (formats.md 2.4)."""


def planar_unpack(words: NDArray[Any], bits: int, count: int) -> Codes:
    """Words [..., L*b/32] -> codes [..., count]: blocks of 32 codes in b words, plane after plane.

    b = 5, one block:   words 0..3   bits 0..3 of codes 0..31, eight codes a word
                        word 4       bit 4 of codes 0..31
    """
    w = np.ascontiguousarray(words).view(np.uint32)
    blocks = w.reshape(*w.shape[:-1], -1, bits)
    out = np.zeros((*blocks.shape[:-1], 32), np.uint8)
    low = 0
    for width in PLANES[bits]:
        out |= stream_unpack(blocks[..., low : low + width], width, 32) << np.uint8(low)
        low += width
    return np.ascontiguousarray(out.reshape(*w.shape[:-1], -1)[..., :count])


def planar_pack(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """The inverse: codes [..., L], L a multiple of 32 -> int32 [..., L*b/32]."""
    blocks = np.ascontiguousarray(codes, np.uint8).reshape(*codes.shape[:-1], -1, 32)
    planes, low = [], 0
    for width in PLANES[bits]:
        planes.append(stream_pack((blocks >> np.uint8(low)) & np.uint8((1 << width) - 1), width))
        low += width
    out = np.concatenate(planes, -1)
    return np.ascontiguousarray(out.reshape(*codes.shape[:-1], -1))


@packing("gptq_planar")
def _gptq_planar(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """qweight [K*b/32, N] of `gptq_p`: split planes along K (axis 0) of each column."""
    return planar_unpack(np.ascontiguousarray(stored.T), bits, k)


@packing("awq_stream")
def _awq_stream(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """AWQ qweight [K, ceil(N*b/32)] without the interleave (GPTQModel 7, widths other than 4): P(b) along N of each row."""
    return np.ascontiguousarray(stream_unpack(stored, bits, n).T)


def awq_pack(codes: NDArray[Any]) -> NDArray[np.int32]:
    """AWQ gemm words of 4-bit codes along the last axis [..., N] -> int32 [..., N/8]; the inverse of the packing `awq`."""
    eights = np.ascontiguousarray(codes, np.uint8).reshape(*codes.shape[:-1], -1, 8)
    return stream_pack(eights[..., list(AWQ_ORDER)].reshape(codes.shape), 4)


@lru_cache(maxsize=None)
def _fast_places() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """gemv_fast: (word, nibble) of row r and column c of a tile of 4 rows x 64 columns, each [4, 64] (formats.md 3.4)."""
    row, k = np.meshgrid(np.arange(4), np.arange(64), indexing="ij")
    place = (k // 32) * 32 + 8 * ((k // 2) % 4) + 4 * (k % 2) + (k % 32) // 8
    flat = row * 64 + place
    return flat // 4, flat % 4


@packing("awq_fast")
def _awq_fast(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """gemv_fast qweight int16 [N/4, K]: 4 bits, tiles of 4 rows x 64 columns in 64 words of four nibbles."""
    assert bits == 4
    nibbles = stream_unpack(stored, 4, 4 * k).reshape(n // 4, k // 64, 64, 4)
    word, nibble = _fast_places()
    return np.ascontiguousarray(nibbles[:, :, word, nibble].transpose(0, 2, 1, 3).reshape(n, k))


def awq_fast_pack(codes: NDArray[Any]) -> NDArray[np.int16]:
    """The inverse: codes [N, K], N a multiple of 4 and K of 64 -> int16 [N/4, K]."""
    n, k = codes.shape
    tiles = np.asarray(codes, np.uint16).reshape(n // 4, 4, k // 64, 64).transpose(0, 2, 1, 3)
    out = np.zeros((n // 4, k // 64, 64), np.uint16)
    word, nibble = _fast_places()
    for row in range(4):
        for column in range(64):
            out[:, :, word[row, column]] |= tiles[:, :, row, column] << np.uint16(4 * nibble[row, column])
    return out.reshape(n // 4, k).view(np.int16)


@lru_cache(maxsize=None)
def marlin_order() -> NDArray[np.intp]:
    """[1024]: code x of a chunk stands for place order[x] of four 16 x 16 tiles (n tile, k in tile, n in tile); formats.md 2.9."""
    t, j, e = np.meshgrid(np.arange(32), np.arange(4), np.arange(8), indexing="ij")
    half, r = e // 4, e % 4
    row = 2 * (t % 4) + np.array([0, 1, 8, 9])[r]
    q = (16 * row + t // 4 + 8 * half + 256 * j).reshape(-1, 8)
    return np.ascontiguousarray(q[:, [0, 2, 4, 6, 1, 3, 5, 7]], np.intp).reshape(-1)


@packing("marlin")
def _marlin(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """Marlin qweight or B, int32 [K/16, 2N]: 4 bits, row t holds the 16 x 16 tiles of columns 16t .. 16t+15."""
    assert bits == 4
    chunks = stream_unpack(stored, 4, 16 * n).reshape(k // 16, n // 64, 1024)
    tiles = np.empty_like(chunks)
    tiles[..., marlin_order()] = chunks
    return np.ascontiguousarray(tiles.reshape(k // 16, n // 16, 16, 16).transpose(1, 3, 0, 2).reshape(n, k))


def marlin_pack(codes: NDArray[Any]) -> NDArray[np.int32]:
    """The inverse: codes [N, K], N a multiple of 64 and K of 16 -> int32 [K/16, 2N]."""
    n, k = codes.shape
    tiles = np.ascontiguousarray(np.asarray(codes, np.uint8).reshape(n // 16, 16, k // 16, 16).transpose(2, 0, 3, 1)).reshape(
        k // 16, n // 64, 1024
    )
    return stream_pack(tiles[..., marlin_order()].reshape(k // 16, 16 * n), 4)
