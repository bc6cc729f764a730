"""The mma.sync family on a CPU: the templates' own kernel by a C++ compiler, threads of a block in turns (emulated_block.hpp).

In: sources of kernels, compiled in one go.  Out: a device that launches them; quantizing and float64 products are FakeDevice's.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from emulation import COMPILER
from fake_device import FakeDevice

from humming_convert.gemm.source import KernelSource
from humming_convert.resources import cuda_templates

HERE = Path(__file__).resolve().parent
INSTEAD = ("copies_sm80.cuh", "warp_sm80.cuh")  # instructions, which emulated_block.hpp has functions for
HEAD = """#include "emulated_block.hpp"
#include "mma_sm80.cuh"
template <class L, class C, class T>
void launch(int columns, int tiles, int room, int late, const void* x, const hc::Tensors& w, const float* s, const hc::TaskLists& lists,
            void* y, int m, int* arrived, void* sums) {
  static hc::Block block;
  gridDim = {unsigned(columns), unsigned(tiles)};
  for (int j = 0; j < tiles; j++)
    for (int i = 0; i < columns; i++) {
      blockIdx = {unsigned(i), unsigned(j)};
      hc::run_block(block, T::threads, room, late, [&] { hc::mma_sm80<L, C, T>(x, w, s, lists, {arrived, sums}, y, m); });
    }
}
"""
KERNEL = """namespace of{i} {{
{structs}
}}
extern "C" void kernel{i}(int columns, int tiles, int room, int late, const void* x, const hc::u32* w, const void* ws, const void* z, const void* w2,
                          const void* bias, const float* s, const int* rows, const int* experts, int part, void* y, int m, int* arrived, void* sums) {{
  launch<of{i}::Layer, of{i}::Compute, of{i}::Tuning>(columns, tiles, room, late, x, {{w, ws, z, w2, bias}}, s, {{rows, experts, part}}, y, m,
                                                      arrived, sums);
}}
"""


class EmulatedBlocks(FakeDevice):
    """late: when copies arrive."""

    late = False

    def __init__(self, folder: Path, sources: Sequence[KernelSource]) -> None:
        super().__init__(folder)
        assert COMPILER is not None
        texts = dict.fromkeys(s.generated for s in sources if s.name == "mma_sm80")
        self.numbers = {text: i for i, text in enumerate(texts)}
        shutil.copytree(cuda_templates(), folder / "templates")
        for name in INSTEAD:
            (folder / "templates" / name).write_text('#include "emulated_block.hpp"\n')
        parts = [HEAD]
        for text, i in self.numbers.items():
            structs = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            parts.append(KERNEL.format(i=i, structs=structs))
        (folder / "kernels.cpp").write_text("\n".join(parts))
        command = [COMPILER, "-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
        command += ["-U_FORTIFY_SOURCE"]  # which takes a jump to another stack for a mistake
        command += [f"-I{folder / 'templates'}", f"-I{HERE}", str(folder / "kernels.cpp"), "-o", str(folder / "kernels.so")]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(folder / "kernels.so"))

    def put(self, array: Any) -> Any:
        return aligned(np.ascontiguousarray(super().put(array)))

    def filled(self, shape: tuple[int, ...], dtype: str) -> Any:
        return aligned(super().filled(shape, dtype))

    def bound(self, source: KernelSource, grid: Any, threads: int, arguments: Any, shared: int = 0) -> Any:
        if source.name != "mma_sm80":
            return super().bound(source, grid, threads, arguments, shared)

        def call(held: Any = arguments) -> None:
            passed = [a if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.ctypes.data) for a in held]
            getattr(self.library, f"kernel{self.numbers[source.generated]}")(*grid, shared, int(self.late), *passed)

        return call


def aligned(x: np.ndarray) -> np.ndarray:
    """The same from a multiple of 16 bytes on, as a GPU's memory has it."""
    room = np.empty(x.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    out = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out
