"""Aux values: what maps need besides codes (zero points, E8M0 offsets), in the orders in which kernels read them.

In: uint8 [N', G] of one expert's layer, padding included.  Out: the same bytes arranged, made once and kept.
Facts: layouts.md 5.0 b (zero points), S5 (offsets); formats.md 3.2 (the AWQ order of eight columns).
"""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.maps import WITH_AUX
from humming_convert.passes.positions import Ints, place_columns

AUX_KINDS = ("spread", "lanes", "words")


class Aux:
    """The aux values of one expert. Worth making once and passing to many calls; a plain array is wrapped by each call."""

    __slots__ = ("_arranged", "top", "values")

    def __init__(self, values: NDArray[np.uint8]) -> None:
        assert values.dtype == np.uint8 and values.ndim == 2, (values.dtype, values.shape)
        self.values = np.ascontiguousarray(values)
        self.top = int(self.values.max(initial=0))
        self._arranged: dict[str, NDArray[np.uint8]] = {}

    def arranged(self, kind: str) -> NDArray[np.uint8]:
        """One of AUX_KINDS. `spread`: [N', G].  `lanes`: [G, N'].  `words`: [G, N'/2], fields in the order of AWQ's words. Two threads may both make it."""
        kind = kind.rstrip("0123456789")
        if kind not in self._arranged:
            self._arranged[kind] = self.values if kind == "spread" else _turned(self.values, kind)
        return self._arranged[kind]


def _turned(values: NDArray[np.uint8], kind: str) -> NDArray[np.uint8]:
    turned = np.ascontiguousarray(values.T)
    if kind == "lanes":
        return turned
    pairs = turned.reshape(turned.shape[0], -1, 2, 2, 2)  # column = 4 a + 2 b + c of eight is nibble b of byte a + 2 c
    bytes_ = pairs[:, :, :, 0] | pairs[:, :, :, 1] << 4
    return np.ascontiguousarray(bytes_.transpose(0, 1, 3, 2)).reshape(turned.shape[0], -1)


def wanted(recipe: WeightRecipe) -> bool:
    return any(m in WITH_AUX for m in recipe.maps)


def aux_group(recipe: WeightRecipe) -> int:
    """Columns of one aux column; 0 if no map wants aux or one column serves the whole row."""
    return recipe.group if wanted(recipe) and recipe.group < place_columns(recipe) else 0


def aux_column(group: int, k: Ints) -> Ints:
    """Aux column of columns k (layouts.md 5.0 b, for any group size; 0: one for all)."""
    return np.asarray((k // 64 * 64 + k % 64 // group * group) // group) if group else np.zeros_like(k)


def aux_stride(kind: str, bit: str, group: int, pitch: int) -> int:
    """Bytes that a bit of n or k adds in arranged values whose rows are `pitch` bytes apart."""
    i = int(bit[1:])
    by_rows = kind.startswith("spread")
    if bit[0] == "k":
        groups = (1 << i) // group if group else 0
        return groups * (1 if by_rows else pitch)
    return pitch << i if by_rows else 4 << i >> 3 if kind == "words" else 1 << i


def aux_row_offset(kind: str, n: int, pitch: int) -> int:
    """Bytes before row n in arranged values; rows of `words` come by eight."""
    assert kind != "words" or n % 8 == 0
    return n * pitch if kind.startswith("spread") else n // 2 if kind == "words" else n


def address(array: NDArray[Any]) -> int:
    """Of the array's first byte."""
    buffer: Any = array  # numpy's types are no buffers to mypy
    try:
        return addressof(c_char.from_buffer(buffer))
    except (TypeError, ValueError, BufferError):  # empty, read-only, with gaps, or of a dtype without a buffer: three times slower
        return int(array.__array_interface__["data"][0])


LINE = 64  # bytes of a cache line, and of a vector: one that begins elsewhere touches two lines


def empty_lines(nbytes: int) -> NDArray[np.uint8]:
    """Memory of any content, from a cache line's start on."""
    memory = np.empty(nbytes + LINE, np.uint8)
    skip = -address(memory) % LINE
    return memory[skip : skip + nbytes]
