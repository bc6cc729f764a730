"""The operands of the tensor cores on a CPU: fragments.cuh and operands.cuh read by a C++ compiler, beside codes.cuh, which reads codes one by one.

In: layers, what each multiplies, packed tensors.  Out: the numbers that operands and codes stand for, [E, N', K'] each.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from emulation import COMPILER, ROLES

from humming_convert.gemm.layer import Layer
from humming_convert.gemm.source import struct
from humming_convert.resources import cuda_templates

HEAD = """#include "operands.cuh"
#include "experts.cuh"
using namespace hc;
template <Operand kOperand> float number_of(u32 bits) {
  if (kOperand == Operand::s4) return float(int(bits & 15) - int(bits & 8) * 2);
  if (kOperand == Operand::s8) return float((signed char)(bits & 255));
  if (kOperand == Operand::e4m3) return decode_float<4, 3, true, Special::e4m3_nan>(bits & 255);
  return decode_half(u16(bits), kOperand == Operand::f16 ? Half::f16 : Half::bf16);
}
template <class L, Operand kOperand> void read(const Tensors* all, float* one_by_one, float* whole) {
  constexpr int A = L::act_bits, kTile = 256 / A, c = 32 / A;
  for (int e = 0; e < (L::experts ? L::experts : 1); e++) {
    const Tensors w = of_expert<L>(*all, e);
    const i64 base = i64(e) * L::shape_n * L::shape_k;
    for (int n = 0; n < L::shape_n; n++)
      for (int k = 0; k < L::shape_k; k++) one_by_one[base + i64(n) * L::shape_k + k] = weight_number<L>(w.weight, w.zero_point, n, k);
    for (int X = 0; X < L::shape_n / 64; X++)
      for (int y = 0; y < L::shape_k / kTile; y++)
        for (int lane = 0; lane < 32; lane++) {
          LaneWords<L> held;
          held.load(w.weight + X * Lines<L>::kBlockWords, Lines<L>::kPitch, y, lane);
          unrolled<0, 16>([&](auto which) {
            constexpr int i = which.value / 4, r = which.value % 4;
            const int n = 64 * X + 16 * i + r % 2 * 8 + lane / 4;
            for (int h = 0; h < c; h++) {
              const int k = y * kTile + r / 2 * (kTile / 2) + lane % 4 * c + h;
              float number;
              if constexpr (kOperand == Operand::e2m1) {  // block-scaled: codes stay codes of their own type
                number = decode_weight<L>(held.template codes<i, r>(lane) >> (A * h) & ((1u << L::bits) - 1));
              } else {
                const u32 bits = operand<L, kOperand, i, r>(held, lane, operand_zero<L>(w.zero_point, n, y * kTile));
                number = number_of<kOperand>(bits >> (A * h)) * operand_unit<L, kOperand>();
              }
              whole[base + i64(n) * L::shape_k + k] = number;
            }
          });
        }
  }
}
"""


FUSED = """#include "operands.cuh"
extern "C" void fused(unsigned char* out) {
  for (unsigned b = 0; b < 256; b++) {
    const hc::FusedNumbers of = hc::fused_numbers(b);
    for (int i = 0; i < 8; i++) out[8 * b + i] = (i < 4 ? of.low : of.high) >> (8 * (i % 4)) & 255;
  }
}
"""


def fused_numbers(folder: Path) -> np.ndarray:
    """uint8 [256, 8]: the E4M3 bytes of the eight magnitudes of E2M1 beside each byte of a fused scale."""
    assert COMPILER is not None
    (folder / "fused.cpp").write_text(FUSED)
    command = [
        COMPILER,
        "-std=c++17",
        "-O0",
        "-Wno-unknown-pragmas",
        "-shared",
        "-fPIC",
        f"-I{cuda_templates()}",
        str(folder / "fused.cpp"),
    ]
    subprocess.run([*command, "-o", str(folder / "fused.so")], check=True)
    out = np.zeros((256, 8), np.uint8)
    ctypes.CDLL(str(folder / "fused.so")).fused(out.ctypes.data_as(ctypes.c_void_p))
    return out


class OperandEmulation:
    """A batch of layers, each with its operand, compiled once."""

    def __init__(self, wanted: Sequence[tuple[Layer, str]], folder: Path) -> None:
        assert COMPILER is not None
        self.numbers = {pair: i for i, pair in enumerate(dict.fromkeys(wanted))}
        parts = [HEAD]
        for (layer, operand), i in self.numbers.items():
            call = f"read<Layer{i}, Operand::{operand}>(t, a, b)"
            parts += [struct(f"Layer{i}", layer), f'extern "C" void layer{i}(const Tensors* t, float* a, float* b) {{ {call}; }}\n']
        source, library = folder / "operands.cpp", folder / "operands.so"
        source.write_text("\n".join(parts))
        command = [COMPILER, "-std=c++17", "-O0", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-I{cuda_templates()}", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        self.library = ctypes.CDLL(str(library))

    def __call__(self, layer: Layer, operand: str, tensors: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        kept = [np.ascontiguousarray(tensors[r]) if r in tensors else None for r in ROLES]
        pointers = (ctypes.c_void_p * 5)(*(None if x is None else x.ctypes.data for x in kept))
        out = [np.full((layer.experts or 1, layer.shape_n, layer.shape_k), 12345, np.float32) for _ in range(2)]
        getattr(self.library, f"layer{self.numbers[layer, operand]}")(pointers, *(x.ctypes.data_as(ctypes.c_void_p) for x in out))
        return out[0], out[1]
