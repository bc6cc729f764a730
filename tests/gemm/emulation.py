"""The templates' dequantization on a CPU: the very headers of cuda_templates/, read by a C++ compiler, one batch of layers at a time.

In: layers and their packed tensors.  Out: float64 weights [E, N', K'] (padding included), and biases, as the kernels read them.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from humming_convert.gemm.layer import Layer
from humming_convert.gemm.source import struct
from humming_convert.resources import cuda_templates

COMPILER = shutil.which("g++") or shutil.which("clang++")
HEAD = """#include "codes.cuh"
#include "scales.cuh"
#include "experts.cuh"
using namespace hc;
template <class L> void dequantize(const Tensors* all, double* out, double* bias) {
  for (int e = 0; e < (L::experts ? L::experts : 1); e++) {
    const Tensors one = of_expert<L>(*all, e);
    for (int n = 0; n < L::shape_n; n++) {
      bias[e * L::shape_n + n] = bias_of<L>(one.bias, n);
      for (int k = 0; k < L::shape_k; k++) {
        double value = weight_number<L>(one.weight, one.zero_point, n, k);
        const int g = weight_group<L>(k);
        if (L::zero == Zero::floating) value -= floating_zero<L>(one.zero_point, n, g);
        value *= weight_scale<L>(one.weight_scale, n, g);
        out[(i64(e) * L::shape_n + n) * L::shape_k + k] = value * secondary_scale<L>(one.weight_scale_2, n);
      }
    }
  }
}
"""
ROLES = ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias")


class Emulation:
    """A batch of distinct layers, compiled once."""

    def __init__(self, layers: Sequence[Layer], folder: Path) -> None:
        assert COMPILER is not None
        self.numbers = {layer: i for i, layer in enumerate(dict.fromkeys(layers))}
        parts = [HEAD]
        for layer, i in self.numbers.items():
            parts.append(struct(f"Layer{i}", layer))
            parts.append(f'extern "C" void layer{i}(const Tensors* t, double* o, double* b) {{ dequantize<Layer{i}>(t, o, b); }}\n')
        source, library = folder / "batch.cpp", folder / "batch.so"
        source.write_text("\n".join(parts))
        command = [COMPILER, "-std=c++17", "-O0", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-I{cuda_templates()}", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        self.library = ctypes.CDLL(str(library))

    def __call__(self, layer: Layer, tensors: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        kept = [np.ascontiguousarray(tensors[r]) if r in tensors else None for r in ROLES]
        pointers = (ctypes.c_void_p * 5)(*(None if x is None else x.ctypes.data for x in kept))
        e = layer.experts or 1
        out, bias = np.full((e, layer.shape_n, layer.shape_k), np.nan), np.full((e, layer.shape_n), np.nan)
        getattr(self.library, f"layer{self.numbers[layer]}")(
            pointers, out.ctypes.data_as(ctypes.c_void_p), bias.ctypes.data_as(ctypes.c_void_p)
        )
        return out, bias
