"""The least time in which a GPU reads so many bytes: launches read_floor.cuh in several shapes, of which the quickest counts.

In: a device and bytes.  Out: a call for each shape and each stretch of memory.  What is read is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from humming_convert.gemm.device import COPIED, Device
from humming_convert.gemm.source import kernel_source
from humming_convert.gemm.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Shape:
    """blocks: of a multiprocessor.  at_once: copies of 16 bytes that a thread has under way."""

    blocks: int
    threads: int
    at_once: int


# large stretches want many bytes under way, small ones few rounds: none of these is the quickest for all
SHAPES = (Shape(1, 1024, 4), Shape(2, 1024, 2), Shape(2, 1024, 4), Shape(2, 512, 8), Shape(4, 512, 4), Shape(8, 256, 2), Shape(8, 256, 4))


def calls(device: Device, shape: Shape, memory: Any, nbytes: int, copies: int) -> list[Callable[[], None]]:
    """One for each of so many stretches of `memory` (bytes on the device), which lie one behind the other."""
    each = -(-nbytes // COPIED)
    room = each * COPIED
    assert memory.nbytes >= room * copies, (memory.nbytes, room, copies)
    source = kernel_source("read_floor", tuning=Tuning(threads=shape.threads, steps=shape.at_once))
    grid, sink = (shape.blocks * device.multiprocessors,), device.filled((1,), "uint32")

    def call(at: int) -> Callable[[], None]:
        arguments = (np.uintp(memory.data.ptr + at * room), np.int64(each), sink)
        return lambda: device.launch(source, grid, shape.threads, arguments)

    return [call(i) for i in range(copies)]
