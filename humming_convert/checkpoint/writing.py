"""The header of a safetensors file that is to be written, and where each tensor will stand in it.

In: names, dtypes and shapes in the order of the data.  Out: the file's first bytes; offsets.
Facts: the safetensors format; R10 to R24, which `read_header` checks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from humming_convert.checkpoint.files import LIMIT
from humming_convert.checkpoint.header import WIDTHS

# The data begins at a multiple of 64 bytes: a cache line, and the widest vector load. Packed tensors are multiples of 64 bytes, so where
# they stand first all of them are aligned in a mapped file. (The format asks for nothing, its library makes multiples of 8.)
ALIGNMENT = 64

Entry = tuple[str, str, tuple[int, ...]]
"""name, dtype as the format names it, shape"""


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return WIDTHS[dtype] * math.prod(shape)


def build_header(tensors: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """The 8 length bytes and the JSON, padded with spaces. The data follows without holes in the order given.

    The same arguments give the same bytes: keys stand in the order given.
    """
    body: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape in tensors:
        assert name not in body, f"{name} is written twice"
        end = at + size_of(dtype, shape)
        body[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    assert len(text) <= LIMIT, "a file of so many tensors must be split"
    return len(text).to_bytes(8, "little") + text


def offsets_of(tensors: Sequence[Entry], header: bytes) -> dict[str, int]:
    """The first byte of each tensor in the file; `header` is what `build_header` made of the same tensors."""
    found: dict[str, int] = {}
    at = len(header)
    for name, dtype, shape in tensors:
        found[name] = at
        at += size_of(dtype, shape)
    return found


def file_size(tensors: Sequence[Entry], header: bytes) -> int:
    """Bytes of the whole file."""
    return len(header) + sum(size_of(dtype, shape) for _, dtype, shape in tensors)
