"""Packings of compressed-tensors that are not the plain bit stream: whole codes in a word, and the zero points of both layouts.

In: stored words.  Out: codes [n, k], or zero points as words of the standard form [ceil(n*b/32), groups].
Facts: formats.md 4.3 (versions up to 0.17 put floor(32/b) codes in a word and leave the high bits zero).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.standard.packing import Codes, packing, stream_pack, stream_unpack


def padded_unpack(words: NDArray[Any], bits: int, count: int) -> Codes:
    """Words [..., ceil(count / f)] -> codes [..., count]; code i is bits b*(i % f) of word i // f, f = 32 // b."""
    each = 32 // bits
    w = np.ascontiguousarray(words).view(np.uint32)
    codes = (w[..., None] >> (np.arange(each, dtype=np.uint32) * np.uint32(bits))) & np.uint32((1 << bits) - 1)
    return np.ascontiguousarray(codes.reshape(*w.shape[:-1], -1)[..., :count].astype(np.uint8))


def padded_pack(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """The inverse of `padded_unpack`; unused codes and high bits are 0."""
    each = 32 // bits
    codes = np.asarray(codes, np.uint32)
    short = -codes.shape[-1] % each
    codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], short), np.uint32)], -1)
    parts = codes.reshape(*codes.shape[:-1], -1, each) << (np.arange(each, dtype=np.uint32) * np.uint32(bits))
    return np.asarray(np.bitwise_or.reduce(parts, axis=-1)).view(np.int32)


@packing("padded")
def _padded(stored: NDArray[Any], bits: int, n: int, k: int) -> Codes:
    """Old odd widths: floor(32/b) codes a word along K of each row."""
    return padded_unpack(stored.reshape(n, -1), bits, k)


def zero_codes(words: NDArray[Any], bits: int, n: int) -> Codes:
    """Zero point words of the standard form [..., ceil(n*b/32), groups] -> codes [..., n, groups] (layouts.md 1: the stream runs along N)."""
    return np.ascontiguousarray(np.swapaxes(stream_unpack(np.swapaxes(words, -1, -2), bits, n), -1, -2))


def zero_words(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """The inverse: codes [..., n, groups] -> int32 [..., ceil(n*b/32), groups]."""
    return np.ascontiguousarray(np.swapaxes(stream_pack(np.swapaxes(codes, -1, -2), bits), -1, -2))
