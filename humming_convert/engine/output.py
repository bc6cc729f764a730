"""Output files: sized from the plan, written by position, read back through the file.

No mapped writes: a full disk is an OSError, not a signal (architecture.md 6).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.engine.digest import Digest
from humming_convert.passes import empty_lines

BLOCK = 1 << 20  # bytes a read, write or copy; blocks of 256 KB to 4 MB are equally fast and stay in L2 (passes_cpu.md 3)


class ShortRead(OSError):
    """A file ended before the bytes that its header promised."""


def as_bytes(array: NDArray[Any]) -> memoryview:
    """The raw bytes of an array; a copy only where it is not contiguous."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1).data


class OutputWriter:
    """One file under the partial folder. `size`: of the whole file.

    Bytes are written by position and read back in order; the digest of the file is taken in that reading, so that it is one of
    what the file holds and costs no reading of its own.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._digest, self.upto = Digest(), 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self.fd, size)

    def resume(self, upto: int, digest: str, buffer: memoryview) -> bool:
        """Goes on after the first `upto` bytes if they have this digest; else all is as before."""
        assert self.upto == 0
        while self.upto < upto:
            piece = buffer[: upto - self.upto]
            self.read_back(piece, self.upto)
        if self.digest == digest:
            return True
        self._digest, self.upto = Digest(), 0
        return False

    def write(self, data: memoryview, offset: int) -> None:
        """All of data, short writes continued."""
        for start in range(0, len(data), BLOCK):
            piece = data[start : start + BLOCK]
            while piece:
                done = os.pwrite(self.fd, piece, offset)
                piece, offset = piece[done:], offset + done

    def read_back(self, data: memoryview, offset: int) -> None:
        """Fills data from the file. Calls must follow one another without a gap from byte 0 on."""
        assert offset == self.upto, (self.path.name, offset, self.upto)
        read_into(self.fd, data, offset, self.path)
        self._digest.update(data)
        self.upto += len(data)

    @property
    def digest_state(self) -> int:
        """Address of the digest under way, to be fed what was read back by calls; 0 where calls cannot."""
        return self._digest.state

    def advance(self, nbytes: int) -> None:
        """So many bytes more were read back by calls, and are in the digest."""
        self.upto += nbytes

    @property
    def digest(self) -> str:
        """Of all that was read back."""
        return "xxh3:" + self._digest.hexdigest()

    def close(self) -> None:
        os.close(self.fd)


def read_into(fd: int, data: memoryview, offset: int, path: Path) -> None:
    """Fills data from offset of an open file. ShortRead if the file ends before."""
    for start in range(0, len(data), BLOCK):
        piece = data[start : start + BLOCK]
        while piece:
            done = os.preadv(fd, [piece], offset)
            if done == 0:
                raise ShortRead(f"{path.name} ends at byte {offset}, {len(piece)} bytes before the end of a tensor")
            piece, offset = piece[done:], offset + done


class Arena:
    """Private buffers that one worker uses again and again, so that pages are faulted in once. Slots grow; `trim` lets large ones go."""

    def __init__(self, empty: Callable[[int], NDArray[np.uint8]] = empty_lines) -> None:
        self._slots: dict[str, NDArray[np.uint8]] = {}
        self._empty = empty

    def take(self, slot: str, nbytes: int) -> NDArray[np.uint8]:
        """A buffer of nbytes; whatever the slot held is gone."""
        held = self._slots.get(slot)
        if held is None or held.nbytes < nbytes:
            self._slots.pop(slot, None)
            held = self._slots[slot] = self._empty(nbytes)
        return held[:nbytes]

    def trim(self, nbytes: int) -> None:
        """Slots larger than nbytes are let go."""
        self._slots = {name: held for name, held in self._slots.items() if held.nbytes <= nbytes}
