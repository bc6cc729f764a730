"""Number types: how a code or a scale byte is read.

Humming's names (`uint4`, `float4e2m1`, `float8e8m0`, ...) to facts and to float64 values, and the stored dtypes of scales.
Facts: layouts.md 1; formats.md 9.1.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

# Humming's scale dtype -> safetensors dtype (layouts.md 1: E5M3 has no dtype of its own)
STORED_AS: dict[str, str] = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float8e8m0": "F8_E8M0",
    "float8e4m3": "F8_E4M3",
    "float8e5m2": "F8_E5M2",
    "float8e5m3": "U8",
}
MODEL_DTYPES: dict[str, str] = {"F16": "float16", "BF16": "bfloat16"}  # safetensors name -> Humming's


class NumberType(Struct, frozen=True, kw_only=True):
    """`bits` wide; float: `exponent` and `mantissa` bits, `signed` if a sign bit is there. e0mN is sign-magnitude."""

    kind: Literal["uint", "int", "float"]
    bits: int
    exponent: int = 0
    mantissa: int = 0
    signed: bool = False

    @property
    def name(self) -> str:
        if self.kind != "float":
            return f"{self.kind}{self.bits}"
        if self.bits == 16:
            return "float16" if self.exponent == 5 else "bfloat16"
        return "float32" if self.bits == 32 else f"float{self.bits}e{self.exponent}m{self.mantissa}"

    @property
    def is_integer(self) -> bool:
        return self.kind != "float"

    @property
    def is_e0m(self) -> bool:
        return self.kind == "float" and self.exponent == 0

    def __str__(self) -> str:
        return self.name


_SPECIAL = {
    "float16": NumberType(kind="float", bits=16, exponent=5, mantissa=10, signed=True),
    "bfloat16": NumberType(kind="float", bits=16, exponent=8, mantissa=7, signed=True),
    "float32": NumberType(kind="float", bits=32, exponent=8, mantissa=23, signed=True),
}


@lru_cache(maxsize=None)
def number(name: str) -> NumberType:
    """The type of a Humming name. ValueError if there is none such."""
    if name in _SPECIAL:
        return _SPECIAL[name]
    if (m := re.fullmatch(r"(u?int)([1-8])", name)) is not None:
        return NumberType(kind="uint" if m[1] == "uint" else "int", bits=int(m[2]), signed=m[1] == "int")
    if (m := re.fullmatch(r"float([1-8])e(\d)m(\d)", name)) is not None:
        bits, e, mantissa = int(m[1]), int(m[2]), int(m[3])
        if bits - e - mantissa in (0, 1):
            return NumberType(kind="float", bits=bits, exponent=e, mantissa=mantissa, signed=bits - e - mantissa == 1)
    raise ValueError(f"no number type {name!r}")


@lru_cache(maxsize=None)
def _table(name: str) -> NDArray[np.float64]:
    t = number(name)
    c = np.arange(1 << t.bits)
    if t.kind == "uint":
        return (c - (1 << (t.bits - 1))).astype(np.float64)
    if t.kind == "int":
        return np.where(c >= 1 << (t.bits - 1), c - (1 << t.bits), c).astype(np.float64)
    e, m = t.exponent, t.mantissa
    if (e, m) == (8, 0):
        return np.where(c == 255, np.nan, np.exp2(c.astype(np.float64) - 127))
    sign = np.where(t.signed & (c >> (e + m)), -1.0, 1.0)
    fraction, exponent = c & ((1 << m) - 1), (c >> m) & ((1 << e) - 1)
    if e == 0:
        return np.asarray(sign * fraction)
    bias = (1 << (e - 1)) - 1
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias - m), (1 + fraction / 2.0**m) * np.exp2(exponent - float(bias)))
    if name == "float8e4m3":
        value = np.where(c & 0x7F == 0x7F, np.nan, value)
    if name == "float8e5m2":
        value = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), value)
    return np.asarray(sign * value)


def values(name: str) -> NDArray[np.float64]:
    """Value of every code of a type of at most 8 bits: [2**bits] float64. Unsigned integers are offset binary (c - 2^(B-1))."""
    return _table(name)


def scale_values(stored: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Scales as float64. `stored`: any array of scales; `dtype`: Humming's name, needed because bytes are ambiguous (E5M3, E8M0 in U8)."""
    if dtype.startswith("float8"):
        return values(dtype)[np.ascontiguousarray(stored).view(np.uint8)]
    return np.asarray(stored, np.float64)
