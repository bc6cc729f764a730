"""Packers for the samples: codes to stored words, each written straight from the definition of its format.

Deliberately apart from standard/ and layouts/: what they get wrong must not be wrong here too. Slow; samples are small.
Facts: formats.md 0, 2.2, 2.3, 3.2, 4.3, 4.5, 5.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Codes = NDArray[np.uint8]
Real = NDArray[np.float64]

BF16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
E4M3: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)
E8M0: np.dtype[Any] = np.dtype(ml_dtypes.float8_e8m0fnu)

SAFETENSORS_NAMES: dict[np.dtype[Any], str] = {
    np.dtype(np.uint8): "U8",
    np.dtype(np.int8): "I8",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    BF16: "BF16",
    E4M3: "F8_E4M3",
    E8M0: "F8_E8M0",
}

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)


def bit_stream(codes: Codes, bits: int) -> NDArray[np.int32]:
    """P(b) along the last axis: code i is bits i*b .. i*b+b-1 of one little-endian bit string, cut into 32-bit words."""
    length = codes.shape[-1]
    words = np.zeros((*codes.shape[:-1], -(-length * bits // 32)), np.uint64)
    for i in range(length):
        word, shift = divmod(i * bits, 32)
        placed = codes[..., i].astype(np.uint64) << np.uint64(shift)
        words[..., word] |= placed & np.uint64(0xFFFFFFFF)
        if shift + bits > 32:
            words[..., word + 1] |= placed >> np.uint64(32)
    return words.astype(np.uint32).view(np.int32)


def gptq_words(codes: Codes, bits: int) -> NDArray[np.int32]:
    """qweight [K*b/32, N] from codes [N, K]: a stream along K for each column. Zero points [N, G] the other way: `zeros.T` into rows."""
    return np.ascontiguousarray(bit_stream(codes, bits).T)


def awq_words(codes: Codes) -> NDArray[np.int32]:
    """qweight [K, N/8] from codes [N, K], 4 bits: nibble i of a word holds column 0 2 4 6 1 3 5 7 of its eight."""
    columns = codes.T
    words = np.zeros((columns.shape[0], columns.shape[1] // 8), np.uint32)
    for nibble, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= columns[:, column::8].astype(np.uint32) << np.uint32(4 * nibble)
    return words.view(np.int32)


def nibble_bytes(codes: Codes) -> NDArray[np.uint8]:
    """FP4 bytes [..., K/2]: even k in the low nibble."""
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4, np.uint8)


def spread(scales: Array, rows: int, columns: int, n: int, k: int) -> Real:
    """Scales [.., ..] each repeated over `rows` x `columns` weights and cut to [n, k]."""
    return np.repeat(np.repeat(scales.astype(np.float64), rows, 0), columns, 1)[:n, :k]


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """A safetensors file: 8 length bytes, the header, the tensors without holes, in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in tensors.items():
        span = [position, position + tensor.nbytes]
        header[name] = {"dtype": SAFETENSORS_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())
