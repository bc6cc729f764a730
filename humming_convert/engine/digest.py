"""XXH3-128 of a stream of bytes, fed from Python or by a list of calls (`passes.make`).

The xxhash package does the work. For calls, its functions are looked up in its extension module; a build that hides them is fed from Python,
piece by piece, with the same digests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from msgspec import Struct
from xxhash import xxh3_128

Pointer = ctypes.c_void_p


class _Pair(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


class _Library(Struct, frozen=True):
    create: Callable[[], int | None]
    free: Callable[[int], int]
    reset: Callable[[int], int]
    update: Callable[[int, int, int], int]
    digest: Callable[[int], Any]
    update_at: int


SIGNATURES: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("XXH3_createState", Pointer, ()),
    ("XXH3_freeState", ctypes.c_int, (Pointer,)),
    ("XXH3_128bits_reset", ctypes.c_int, (Pointer,)),
    ("XXH3_128bits_update", ctypes.c_int, (Pointer, Pointer, ctypes.c_size_t)),
    ("XXH3_128bits_digest", _Pair, (Pointer,)),
)


@lru_cache(maxsize=1)
def library() -> _Library | None:
    """The package's C functions; None where its build hides them."""
    module = find_spec("xxhash._xxhash")
    try:
        loaded = ctypes.CDLL(module.origin if module is not None else None)
        found: list[Any] = []
        for name, result, arguments in SIGNATURES:
            # where there is one, the form that picks the processor's widest vectors
            function = getattr(loaded, f"{name}_dispatch", None) or getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
            found.append(function)
    except (OSError, AttributeError):
        return None
    create, free, reset, update, digest = found
    return _Library(create, free, reset, update, digest, int(ctypes.cast(update, Pointer).value or 0))


class Digest:
    """A digest under way. state: address of the C library's state, which calls of `update_call` can feed; 0 where they cannot."""

    def __init__(self) -> None:
        self._library, self.state = library(), 0
        self._plain = xxh3_128() if self._library is None else None
        if self._library is not None:
            self.state = int(self._library.create() or 0)
            if not self.state:
                raise MemoryError("no memory for a digest")
            self._library.reset(self.state)

    def __del__(self) -> None:
        if self.state and self._library is not None:
            self._library.free(self.state)

    def update(self, data: memoryview | bytes) -> None:
        if self._library is None:
            assert self._plain is not None
            self._plain.update(data)
        elif len(data):
            raw = np.frombuffer(data, np.uint8)
            self._library.update(self.state, raw.__array_interface__["data"][0], raw.nbytes)

    def hexdigest(self) -> str:
        """Of all bytes so far; more may follow."""
        if self._library is None:
            assert self._plain is not None
            return self._plain.hexdigest()
        pair = self._library.digest(self.state)
        return f"{pair.high:016x}{pair.low:016x}"


def update_call() -> int:
    """Address of the function that feeds a state: (state, memory, bytes) -> 0."""
    found = library()
    assert found is not None
    return found.update_at
