"""The recipe of one packed layer: all that shapes its bytes, decided before they are touched.

`layouts.resolve` makes it from a form, a target and the answers to the data questions; the numpy reference (`layouts`) and the
compiled passes (`passes`) both follow it.  Facts: layouts.md 2 to 8.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Place = Literal["standard", "packed_k", "raw", "flat"]
Interleave = Literal["mode3", "mode2", "native"]
CodeMap = Literal[
    "e0m",  # S1: offset binary -> sign-magnitude; no code is 0
    "e0m_to_int",  # S2a: sign-magnitude -> offset binary, -0 becomes the midpoint
    "fused_e8m0",  # S5: E2M1 * 2^-d by group, code 8 -> 0 first
    "sign_flip",  # 5.0 a: code ^= 2^(B-1)
    "int_to_float",  # 5.0 b without zero point: c >= m ? c - m : M - c, m = 2^(B-1), M = 2^B - 1
    "int_to_float_zp",  # 5.0 b with the integer zero point of (n, k)
]


class WeightRecipe(Struct, frozen=True, kw_only=True):
    """How codes [n, k] of one expert become packed words.

    In order: maps that come before padding (e0m, e0m_to_int), zero codes appended up to (n + pad_n, k + pad_k), maps after
    padding (fused_e8m0, sign_flip, int_to_float*), ppu row order, placement.
    bits: B of the codes; act_bits: A.  shape: of one expert's packed words.  group: columns that share a zero point
    (int_to_float_zp) or an E8M0 offset (fused_e8m0), counted on the padded K.
    """

    bits: int
    act_bits: int
    n: int
    k: int
    pad_n: int
    pad_k: int
    maps: tuple[CodeMap, ...]
    place: Place
    interleave: Interleave = "mode3"
    swapped: bool = False
    ppu: bool = False
    group: int = 0
    shape: tuple[int, int] = (0, 0)
