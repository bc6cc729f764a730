"""Fast kernel families on a CPU: the templates' own kernels by a C++ compiler, threads of a cluster of blocks in turns (emulated_threads.hpp).

In: sources of kernels, compiled in one go.  Out: a device that launches them; quantizing and float64 products are FakeDevice's.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from emulation import COMPILER
from fake_device import FakeDevice, read_back

from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.tuning import Tuning
from humming_convert.resources import cuda_templates

HERE = Path(__file__).resolve().parent
# headers of instructions -> what has functions for them
INSTEAD = {
    "copies_sm80.cuh": "emulated_copies.hpp",
    "warp_sm80.cuh": "emulated_warp.hpp",
    "barriers_sm90a.cuh": "emulated_barriers.hpp",
    "bulk_sm90a.cuh": "emulated_bulk.hpp",
    "warpgroup_sm90a.cuh": "emulated_warpgroup.hpp",
}
SHARED = re.compile(r"extern __shared__ (__align__\(128\) )?u8 shared\[\];")
ORDERS = ("forwards", "backwards", "lanes", "warpgroup", "assistants")  # of emulated_threads.hpp
# how x comes
FAMILIES = {"mma_sm80": "x", "wgmma_sm90a": "x", "cluster_sm90a": "hc::given_rows<hc::GivenRows<Compute>>(x)"}
KERNEL = """namespace of{i} {{
{structs}
}}
extern "C" __attribute__((visibility("default"))) const char* kernel{i}(const hc::Launch* launch, const hc::How* how, const hc::Extent* known, int extents, const void* x, const hc::u32* w,
                                 const void* ws, const void* z, const void* w2, const void* bias, const float* s, const int* rows, const int* experts,
                                 int part, void* y, int m, int* arrived, void* sums{more}) {{
  using namespace of{i};
  return hc::run(*launch, *how, known, extents, [=] {{
    hc::{family}<Layer, Compute, Tuning>({x}, {{w, ws, z, w2, bias}}, s, {{rows, experts, part}}, {{arrived, sums}}, y, m{given});
  }});
}}
"""


@dataclass(frozen=True)
class Change:
    """Of one place in a template: what is there once, and what there is instead."""

    file: str
    old: str
    new: str


class EmulationFault(AssertionError):
    """What a kernel did that it may not do."""


class EmulatedBlocks(FakeDevice):
    """late: when copies arrive.  late_products: when products of a warpgroup do.  order: who goes on first, of ORDERS."""

    late = False
    late_products = False
    order = "forwards"

    def __init__(self, folder: Path, sources: Sequence[KernelSource], changes: Sequence[Change] = ()) -> None:
        super().__init__(folder)
        assert COMPILER is not None
        kernels = {s.generated: s.name for s in sources if s.name in FAMILIES}
        self.numbers = {text: i for i, text in enumerate(kernels)}
        templates_for_cpu(folder / "templates", changes)
        parts = [f'#include "{name}.cuh"' for name in dict.fromkeys(kernels.values())]
        for text, i in self.numbers.items():
            structs = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            more = dict(
                zip(("more", "given"), (", int row_tiles", ", row_tiles") if kernels[text] == "cluster_sm90a" else ("", ""), strict=True)
            )
            parts.append(KERNEL.format(i=i, structs=structs, family=kernels[text], x=FAMILIES[kernels[text]], **more))
        (folder / "kernels.cpp").write_text("\n".join(parts))
        command = [COMPILER, "-std=c++17", "-O1", "-ftree-vectorize", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
        command += ["-fvisibility=hidden"]  # or variables of functions are those of every library that was loaded
        command += ["-U_FORTIFY_SOURCE"]  # which takes a jump to another stack for a mistake
        command += [f"-I{folder / 'templates'}", f"-I{HERE}", str(folder / "kernels.cpp"), "-o", str(folder / "kernels.so")]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(folder / "kernels.so"))

    def put(self, array: Any) -> Any:
        return aligned(np.ascontiguousarray(super().put(array)))

    def filled(self, shape: tuple[int, ...], dtype: str) -> Any:
        return aligned(super().filled(shape, dtype))

    def rows_map(self, x: Any, box_rows: int) -> Any:
        return TensorMap(x, box_rows)

    def bound(self, source: KernelSource, grid: Any, threads: int, arguments: Any, shared: int = 0) -> Any:
        if source.name not in FAMILIES:
            return super().bound(source, grid, threads, arguments, shared)
        tuning = read_back(source.generated, "Tuning", Tuning)
        cluster = tuning.cluster * (tuning.parts if tuning.joined else 1)
        launch = (ctypes.c_int * 6)(*grid, threads, cluster, tuning.blocks, shared)
        kernel = getattr(self.library, f"kernel{self.numbers[source.generated]}")
        kernel.restype = ctypes.c_char_p

        def call(held: Any = arguments) -> None:
            how = (ctypes.c_int * 3)(self.late, self.late_products, ORDERS.index(self.order))
            arrays = [a.array if isinstance(a, TensorMap) else a for a in held if isinstance(a, np.ndarray | TensorMap)]
            known = (ctypes.c_longlong * (2 * len(arrays)))(*(number for a in arrays for number in (a.ctypes.data, a.nbytes)))
            words = [a.words if isinstance(a, TensorMap) else a for a in held]
            passed = [a if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.ctypes.data) for a in words]
            fault = kernel(launch, how, known, len(arrays), *passed)
            if fault is not None:
                raise EmulationFault(fault.decode())

        return call


class TensorMap:
    """Rows as emulated_bulk.hpp copies boxes of them."""

    def __init__(self, x: np.ndarray, box_rows: int) -> None:
        self.array = x
        self.words = aligned(np.asarray([x.ctypes.data, *x.shape, x.itemsize, box_rows, *[0] * 11], np.uint64), 64)


def templates_for_cpu(folder: Path, changes: Sequence[Change] = ()) -> None:
    """A copy of the templates: functions in the place of instructions, and of what C++ has no words for."""
    shutil.copytree(cuda_templates(), folder)
    described = re.search(r"HC_FN u64 describe_rows.*?(?=#define)", (folder / "warpgroup_sm90a.cuh").read_text(), re.S)
    assert described is not None
    for name, instead in INSTEAD.items():
        (folder / name).write_text(f'#pragma once\n#include "{instead}"\n')
    with (folder / "warpgroup_sm90a.cuh").open("a") as file:
        file.write(f"namespace hc {{\n{described[0]}}}\n")
    for family in FAMILIES:
        text, count = SHARED.subn("u8* const shared = shared_memory();", (folder / f"{family}.cuh").read_text())
        assert count == 1, family
        (folder / f"{family}.cuh").write_text(text)
    for change in changes:
        text = (folder / change.file).read_text()
        assert text.count(change.old) == 1, (change, text.count(change.old))
        (folder / change.file).write_text(text.replace(change.old, change.new))


def aligned(x: np.ndarray, to: int = 16) -> np.ndarray:
    """The same from a multiple of `to` bytes on, as a GPU's memory has it."""
    room = np.empty(x.nbytes + to, np.uint8)
    start = -room.ctypes.data % to
    out = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out
