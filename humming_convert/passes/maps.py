"""Maps on whole words: every field of a 32-bit word at once, by arithmetic that never carries from one field into the next.

In: words that hold 32/W fields of W bits with a B-bit code in each.  Out: the same with the codes changed; and the inverse of each map
that has one.  Written for anything with integer operators: vectors while code is emitted, numpy uint32 arrays in tests.
`table` gives the same maps code by code.  Facts: layouts.md S1, S2a, S5, 5.0; each map is tested against that text for all codes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.layouts.recipe import CodeMap

Word = Any  # a vector of words being emitted, or NDArray[np.uint32]

BEFORE_PADDING: tuple[CodeMap, ...] = ("e0m", "e0m_to_int")
WITH_AUX: tuple[CodeMap, ...] = ("int_to_float_zp", "fused_e8m0")
GARBAGE = 128  # an E8M0 offset from here on is outside the arithmetic below (layouts.md S5); `table` knows it


class Fields(Struct, frozen=True):
    """Masks of a word of fields: `one`, `top` (of the code), `low` (of the code but its top bit)."""

    bits: int
    width: int

    def every(self, value: int) -> int:
        return sum(value << i for i in range(0, 32, self.width))

    @property
    def one(self) -> int:
        return self.every(1)

    @property
    def top(self) -> int:
        return self.every(1 << (self.bits - 1))

    @property
    def low(self) -> int:
        return self.every((1 << (self.bits - 1)) - 1)

    @property
    def code(self) -> int:
        return self.every((1 << self.bits) - 1)


def flipped(x: Word, f: Fields) -> Word:
    """Offset binary <-> two's complement."""
    return x ^ f.top


def _magnitudes_of(below: Word, f: Fields) -> Word:
    """All ones in the low bits of each field whose top bit is set in `below`."""
    return below - (below >> (f.bits - 1))


def sign_magnitude(x: Word, f: Fields) -> Word:
    """S1: c >= m: c - m; else m + (m - c). No code is 0: m - 0 would not fit."""
    below = ~x & f.top
    ones = _magnitudes_of(below, f)
    return (((x & f.low) ^ ones) + (below >> (f.bits - 1))) | below


def _away_from_top(x: Word, f: Fields) -> Word:
    """top bit ? m - low : low."""
    negative = x & f.top
    return ((x & f.low) ^ _magnitudes_of(negative, f)) + (negative >> (f.bits - 1))


def offset_binary(x: Word, f: Fields) -> Word:
    """S2a: top bit ? m - low : m + low; -0 becomes m."""
    return _away_from_top(x, f) | (~x & f.top)


def sign_magnitude_back(x: Word, f: Fields) -> Word:
    """The inverse of S1. -0, which S1 never makes, must not pass for 0: it becomes code 0."""
    return (_away_from_top(x, f) & f.low) | (~x & f.top)


def float_order(x: Word, f: Fields) -> Word:
    """5.0 b: c >= m ? c - m : M - c."""
    below = ~x & f.top
    return ((x & f.low) ^ _magnitudes_of(below, f)) | below


def float_order_back(x: Word, f: Fields) -> Word:
    below = x & f.top
    return ((x & f.low) ^ _magnitudes_of(below, f)) | (~x & f.top)


def _wide(function: Callable[[Word, Word, Fields], Word], x: Word, z: Word, f: Fields) -> Word:
    """`function` on fields with a spare bit above the code: every second field at a time where codes fill their fields."""
    if f.bits < f.width:
        return function(x, z, f)
    half = Fields(f.bits, 2 * f.width)
    even = function(x & half.code, z & half.code, half)
    odd = function((x >> f.width) & half.code, (z >> f.width) & half.code, half)
    return even | (odd << f.width)


def _select(chosen: Word, x: Word, y: Word, f: Fields) -> Word:
    """x where bit 0 of the field of `chosen` is set, else y."""
    mask = (chosen << f.bits) - chosen
    return (x & mask) | (y & ~mask & f.code)


def float_order_about(x: Word, z: Word, f: Fields) -> Word:
    """5.0 b with zero points z, one in each field: c >= z ? c - z : M - c."""

    def wide(c: Word, z: Word, g: Fields) -> Word:
        d = (c | g.every(1 << g.bits)) - z
        return _select((d >> g.bits) & g.one, d, c ^ g.code, g)

    return _wide(wide, x, z, f)


def float_order_about_back(x: Word, z: Word, f: Fields) -> Word:
    """y + z <= M ? y + z : M - y."""

    def wide(y: Word, z: Word, g: Fields) -> Word:
        s = y + z
        return _select((s >> g.bits) & g.one, y ^ g.code, s, g)

    return _wide(wide, x, z, f)


def _is(x: Word, value: int) -> Word:
    """All ones in each word that equals `value`."""
    return x.equals(value) if hasattr(x, "equals") else np.where(x == value, np.uint32(0xFFFFFFFF), np.uint32(0))


def e2m1_shifted(x: Word, d: Word | None, f: Fields) -> Word:
    """S5: -0 becomes 0, then E2M1 codes times 2^-d, ties away from zero, the sign kept. d: one value a word, below GARBAGE; None: all 0.

    Magnitudes u = 4a + 2b + c. The rows of S5's table as functions of a, b, c, one line a result bit.
    """
    one = f.one
    c, b, a = x & one, (x >> 1) & one, (x >> 2) & one
    not_zero = a | b | c
    x = x & ((not_zero << 3) | f.low)
    if d is None:
        return x
    not_a, b_and_c, b_xor_c = a ^ one, b & c, b ^ c
    d1, d2, d3, d4 = _is(d, 1), _is(d, 2), _is(d, 3), _is(d, 4)
    low = (
        (d1 & ((not_a & b_xor_c) | (a & c)))  # 0 1 1 . . 1 . 1
        | (d2 & ((not_a & b) | (a & (b_xor_c ^ one))))  # . . 1 1 1 . . 1
        | (d3 & a & (b_and_c ^ one))  # . . . . 1 1 1 .
        | (d4 & a & b)  # . . . . . . 1 1
    )
    middle = (
        (d1 & ((a & (b ^ one)) | (not_a & b_and_c)))  # . . . 2 2 2 . .
        | (d2 & a & (b | c))  # . . . . . 2 2 2
        | (d3 & a & b_and_c)  # . . . . . . . 2
    )
    top = d1 & a & b  # . . . . . . 4 4
    moved = (x & f.top) | low | (middle << 1) | (top << 2)
    stays = _is(d, 0)
    return (x & stays) | (moved & ~stays)


class MapFunctions(Struct, frozen=True):
    """`forth(x, aux, fields)`, and `back` where the map can be undone."""

    forth: Callable[[Word, Word, Fields], Word]
    back: Callable[[Word, Word, Fields], Word] | None


MAPS: dict[CodeMap, MapFunctions] = {
    "e0m": MapFunctions(lambda x, _, f: sign_magnitude(x, f), lambda x, _, f: sign_magnitude_back(x, f)),
    "e0m_to_int": MapFunctions(lambda x, _, f: offset_binary(x, f), None),  # 0 and -0 become one
    "sign_flip": MapFunctions(lambda x, _, f: flipped(x, f), lambda x, _, f: flipped(x, f)),
    "int_to_float": MapFunctions(lambda x, _, f: float_order(x, f), lambda x, _, f: float_order_back(x, f)),
    "int_to_float_zp": MapFunctions(float_order_about, float_order_about_back),
    "fused_e8m0": MapFunctions(e2m1_shifted, None),  # rounds
}


def split_for_proof(maps: tuple[CodeMap, ...]) -> tuple[tuple[CodeMap, ...], tuple[CodeMap, ...]]:
    """(maps of the source's codes, maps to undo on the packed codes): everything after the last map that loses something is undone."""
    last = max((i + 1 for i, m in enumerate(maps) if MAPS[m].back is None), default=0)
    return maps[:last], maps[last:]


def zero_fields(x: Word, f: Fields) -> Word:
    """Not zero if a code of the word is 0 (exact as a yes or no, not field by field)."""
    spare = f.every(1 << (f.width - 1))
    if f.bits < f.width:
        return ~((x | spare) - f.one) & spare
    return (x - f.one) & ~x & spare


# ---- code by code


def _e2m1_product(code: NDArray[Any], d: NDArray[Any]) -> NDArray[Any]:
    """S5's exact arithmetic, for any d."""
    f = ((code & 8) << 28 | (code & 7) << 22).astype(np.uint32).view(np.float32)
    m = ((0x3F800000 - (d.astype(np.int64) << 23)) & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        p = (f * m).astype(np.float32)
        bits = np.where(np.isnan(p), np.uint32(0x7FFFFFFF), p.view(np.uint32)).astype(np.uint32)
        down, up = bits & np.uint32(0x81C00000), (bits + np.uint32(0x200000)) & np.uint32(0x81C00000)
        p = bits.view(np.float32)
        x = np.where(np.abs(p - down.view(np.float32)) >= np.abs(p - up.view(np.float32)), up, down)
    return np.asarray((x & np.uint32(0x80000000)) >> np.uint32(28) | (x & np.uint32(0x01C00000)) >> np.uint32(22))


def _by_code(name: CodeMap, c: NDArray[Any], aux: NDArray[Any], bits: int) -> NDArray[Any]:
    m, top = 1 << (bits - 1), (1 << bits) - 1
    if name == "e0m":
        return np.where(c >= m, c - m, m + (m - c)) & top
    if name == "e0m_to_int":
        low = c & (m - 1)
        return np.where(c >= m, m - low, m + low)
    if name == "sign_flip":
        return c ^ m
    if name == "int_to_float":
        return np.where(c >= m, c - m, top - c)
    if name == "int_to_float_zp":
        return np.where(c >= aux, c - aux, top - c) & top
    positive = np.where(c == 8, 0, c)
    return np.where(aux == 0, positive, _e2m1_product(positive, aux))


@lru_cache(maxsize=64)
def table(maps: tuple[CodeMap, ...], bits: int) -> NDArray[np.uint8]:
    """[256, 2^B] (one row only where no map looks at the aux value): the code after `maps`, by aux value and code."""
    rows = 256 if any(m in WITH_AUX for m in maps) else 1
    codes = np.broadcast_to(np.arange(1 << bits), (rows, 1 << bits))
    aux = np.arange(rows)[:, None] + 0 * codes
    for name in maps:
        codes = _by_code(name, codes, aux, bits)
    out = np.ascontiguousarray(codes, np.uint8)
    out.flags.writeable = False  # shared by all who ask
    return out
