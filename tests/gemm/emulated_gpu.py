"""A GPU that is none, for `convert --device cuda`: the template's own code by a C++ compiler, memory in arrays, CUDA streams as lists.

A late stream does nothing before it is waited for, so that memory that is used again too early shows as wrong bytes; of two streams one may
be late, so that what only the other brings is not there. Memory begins as garbage.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from emulation import COMPILER

from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.device import Device, Room, address
from humming_convert.gemm.source import KernelSource
from humming_convert.resources import cuda_templates

ENTRY = """#include "pack_any.cuh"
using namespace hc;
using In = const u8*; using Tables = const i64*;
#define ENTRIES(B)                                                                                                                     \\
  extern "C" void pack_any##B(int fasts, int steps, In source, u32* words, In aux, i64 pitch, Tables tables, i64 rows, i64 columns,    \\
                              i64 slots, int along_n) {                                                                                \\
    const Walk<B> w(source, words, aux, pitch, tables, rows, columns, slots);                                                          \\
    for (int y = 0; y < steps; y++)                                                                                                    \\
      for (int x = fasts - 1; x >= 0; x--) pack_strip(w, along_n, x, y, steps);                                                        \\
  }                                                                                                                                    \\
  extern "C" void prove_any##B(int fasts, int steps, In source, u32* words, In aux, i64 pitch, Tables tables, i64 rows, i64 columns,   \\
                               i64 slots, int along_n, Found* result) {                                                                \\
    const Walk<B> w(source, words, aux, pitch, tables, rows, columns, slots);                                                          \\
    for (int y = 0; y < steps; y++)                                                                                                    \\
      for (int x = fasts - 1; x >= 0; x--) {                                                                                           \\
        const Found f = prove_strip(w, along_n, x, y, steps);                                                                          \\
        result->compared += f.compared;                                                                                                \\
        result->wrong += f.wrong;                                                                                                      \\
        if (f.first > result->first) result->first = f.first;                                                                          \\
      }                                                                                                                                \\
  }
ENTRIES(1) ENTRIES(2) ENTRIES(3) ENTRIES(4) ENTRIES(5) ENTRIES(6) ENTRIES(7) ENTRIES(8)
"""


def compiled(folder: Path) -> ctypes.CDLL:
    assert COMPILER is not None
    source, library = folder / "pack_any.cpp", folder / "pack_any.so"
    source.write_text(ENTRY)
    command = [COMPILER, "-std=c++17", "-O1", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-I{cuda_templates()}", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


class EmulatedQueue:
    def __init__(self, device: EmulatedGpu, late: bool) -> None:
        self.device, self.late, self.waiting = device, late, list[Callable[[], Any]]()

    def _do(self, task: Callable[[], Any]) -> None:
        self.waiting.append(task)
        if not self.late:
            self.wait()

    def send(self, to: int, array: Any) -> None:
        self._do(lambda: ctypes.memmove(to, address(array), array.nbytes))

    def bring(self, array: Any, at: int) -> None:
        self._do(lambda: ctypes.memmove(address(array), at, array.nbytes))

    def clear(self, at: int, nbytes: int) -> None:
        self._do(lambda: ctypes.memset(at, 0, nbytes))

    def launch(self, source: KernelSource, grid: tuple[int, ...], threads: int, arguments: Any) -> None:
        bits = source.generated.partition("bits = ")[2][0]
        kinds = {np.dtype(np.uintp): ctypes.c_void_p, np.dtype(np.int64): ctypes.c_longlong, np.dtype(np.int32): ctypes.c_int}
        passed = [kinds[x.dtype](int(x)) for x in arguments]
        kernel = getattr(self.device.library, f"{source.name}{bits}")
        self._do(partial(kernel, grid[0] * threads, grid[1], *passed))
        self.device.launched[source.name] += 1
        if self.device.spoil is not None and source.name == "pack_any":
            self._do(partial(self.device.spoil, int(arguments[1])))

    def wait(self) -> None:
        tasks, self.waiting = self.waiting, []
        for task in tasks:
            task()


class EmulatedGpu(Device):
    """late: which streams are, over and over.  launched: kernels by name.  spoil: called after each packing with the address of its words."""

    def __init__(self, folder: Path, library: ctypes.CDLL, *, late: tuple[bool, ...] = (False,)) -> None:
        super().__init__(cupy=None, sm=90, name="emulated", cache=KernelCache(folder / "cache"))
        self.library, self.late = library, itertools.cycle(late)
        self.launched, self.spoil = Counter[str](), None

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (FloatingPointError,)  # stands for what a driver raises

    def use(self) -> None:
        pass

    def queue(self) -> Any:
        return EmulatedQueue(self, next(self.late))

    def room(self, nbytes: int) -> Room:
        memory = np.full(nbytes // 8 + 2, 0xA5A5A5A5A5A5A5A5, np.uint64)
        return Room(memory, address(memory), nbytes)

    def pinned(self, nbytes: int) -> Any:
        return np.full(nbytes // 8 + 2, 0x5A5A5A5A5A5A5A5A, np.uint64).view(np.uint8)[:nbytes]
