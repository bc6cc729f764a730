"""A tensor as the header of a safetensors file describes it, and reading its bytes.

Knows the dtypes of the format and their numpy counterparts; no meaning beyond that.
Facts: formats.md 1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

# safetensors name -> numpy dtype (little endian)
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
NAMES: dict[np.dtype[Any], str] = {v: k for k, v in DTYPES.items()}


class TensorView(Struct, frozen=True, kw_only=True):
    """A header entry. `offset`: first byte in `file`; `nbytes` equals the product of `shape` times the dtype's width (R rules of the header)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def at(self, index: tuple[int, ...]) -> TensorView:
        """The entry `index` of the leading axes (one expert), as a view of its own."""
        view = self
        for i in index:
            nbytes = view.nbytes // view.shape[0]
            view = replace(view, shape=view.shape[1:], offset=view.offset + i * nbytes, nbytes=nbytes)
        return view

    def rows(self, start: int, stop: int) -> TensorView:
        """Entries start..stop of the first axis, as a view of its own."""
        step = self.nbytes // self.shape[0]
        return replace(self, shape=(stop - start, *self.shape[1:]), offset=self.offset + start * step, nbytes=(stop - start) * step)

    @property
    def numpy(self) -> np.dtype[Any]:
        return DTYPES[self.dtype]


Read = Callable[[TensorView], NDArray[Any]]
"""Gives a tensor's values as a read-only array of `view.numpy` and `view.shape`; may be unaligned (a mapped file)."""


def read_mapped() -> Read:
    """A Read that maps each file once and returns views into the map; raises SourceError (reading.py)."""
    from humming_convert.checkpoint.reading import reader  # reading.py stands on this module

    return reader("mmap")
