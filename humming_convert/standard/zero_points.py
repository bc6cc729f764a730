"""Operations that bring stored zero points, and Marlin's scales, to the standard form; named, so that an `Apply` can be shipped.

In: words [groups, words along N] (gemv: [N, words along groups]).  Out: words of the stream P(b) along N, still group by group.
Facts: formats.md 2.3 (v1 and v2), 2.4, 2.9, 3.2 to 3.4.
"""

from __future__ import annotations

import numpy as np

from humming_convert.standard.expr import Array, operation
from humming_convert.standard.packing import AWQ_ORDER, stream_pack, stream_unpack
from humming_convert.standard.packing_gptq import planar_unpack

WORD_STEPS: dict[int, tuple[int, ...]] = {
    2: (0x55555555,),
    3: (0x24924924, 0x92492492, 0x49249249),
    4: (0x11111111,),
    8: (0x01010101,),
}
"""What GPTQModel took from whole words to write v1: word i of a row lost step i % len. 3: its releases before the int3 fix."""


@operation("zeros_plus_one")
def zeros_plus_one(words: Array, bits: int, count: int) -> Array:
    """v1 to v2, field by field: (stored + 1) mod 2^b. words: I32 [groups, ceil(count*b/32)]."""
    codes = (stream_unpack(words, bits, count) + np.uint8(1)) & np.uint8((1 << bits) - 1)
    return stream_pack(codes, bits)


@operation("zeros_plus_words")
def zeros_plus_words(words: Array, bits: int) -> Array:
    """v1 to v2 as GPTQModel's writer is undone: a constant added to every word mod 2^32, borrows run back between fields."""
    steps = np.array(WORD_STEPS[bits], np.uint32)
    w = np.ascontiguousarray(words).view(np.uint32)
    return np.asarray(w + steps[np.arange(w.shape[-1]) % len(steps)]).view(np.int32)


@operation("zeros_planar")
def zeros_planar(words: Array, bits: int, count: int) -> Array:
    """Split planes along N to the stream P(b)."""
    return stream_pack(planar_unpack(words, bits, count), bits)


@operation("zeros_awq")
def zeros_awq(words: Array) -> Array:
    """AWQ gemm words (4 bits, nibbles 0 2 4 6 1 3 5 7) to the stream P(4); word for word."""
    # nibble i of a word holds column AWQ_ORDER[i]; nibbles 0 and 7 stay, the others move by whole words at once
    x = np.ascontiguousarray(words).view("<u4")
    out = np.zeros_like(x)
    for i, column in enumerate(AWQ_ORDER):
        part = x & np.uint32(15 << 4 * i)
        out |= part << np.uint32(4 * (column - i)) if column >= i else part >> np.uint32(4 * (i - column))
    return out.view("<i4")


@operation("zeros_gemv")
def zeros_gemv(words: Array, groups: int) -> Array:
    """AWQ gemv [N, words along groups] to [groups, N/8]; entries after `groups` are padding."""
    return stream_pack(np.ascontiguousarray(stream_unpack(words, 4, words.shape[-1] * 8)[:, :groups].T), 4)


def fast_zeros(scaled: Array, scales: Array, groups: int) -> tuple[Array, Array]:
    """gemv_fast: (zero points float64 [groups, N], rounded and unrounded) from -(scale * zero) and scales; a dead group (0 / 0) has 0."""
    q, s = scaled[:groups].astype(np.float64), scales[:groups].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.where((q == 0) & (s == 0), 0.0, -q / s)
    return np.rint(exact), exact


@operation("zeros_fast")
def zeros_fast(scaled: Array, scales: Array, groups: int) -> Array:
    """gemv_fast qzeros and scales, F16 [padded groups, N], to [groups, N/8]."""
    rounded, _ = fast_zeros(scaled, scales, groups)
    return stream_pack(np.clip(rounded, 0, 15).astype(np.uint8), 4)


@operation("scales_marlin")
def scales_marlin(scales: Array, channel: bool) -> Array:
    """Marlin scales [groups, N] in their tile order to plain [groups, N]; chunks of 64, of 32 where one group spans K."""
    if channel:
        order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    else:
        order = [i + 8 * j for i in range(8) for j in range(8)]
    chunks = scales.reshape(-1, len(order))
    out = np.empty_like(chunks)
    out[:, order] = chunks
    return out.reshape(scales.shape)
