"""16-bit floats of the templates as a C++ compiler makes them: rounded as numpy rounds, which kernels on a CPU rely on."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from emulated_checks import needs_compiler
from emulation import COMPILER

from humming_convert.gemm.check import DTYPES
from humming_convert.resources import cuda_templates

SOURCE = """#include "halves.cuh"
extern "C" void rounded(const float* x, hc::u16* f16, hc::u16* bf16, int count) {
  for (int i = 0; i < count; i++) f16[i] = hc::to_half<hc::Half::f16>(x[i]), bf16[i] = hc::to_half<hc::Half::bf16>(x[i]);
}
"""


@needs_compiler
def test_floats_become_16_bit_ones_by_the_nearest_even(tmp_path: Path) -> None:
    """Every sign, exponent and seven bits of fraction, with bits behind them around each place where rounding decides."""
    (tmp_path / "halves.cpp").write_text(SOURCE)
    command = [
        str(COMPILER),
        "-std=c++17",
        "-Wno-unknown-pragmas",
        "-shared",
        "-fPIC",
        f"-I{cuda_templates()}",
        str(tmp_path / "halves.cpp"),
    ]
    subprocess.run([*command, "-o", str(tmp_path / "halves.so")], check=True)
    behind = np.asarray([0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF], np.uint32)
    x = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | behind).reshape(-1).view(np.float32)
    got = {half: np.empty(x.size, np.uint16) for half in ("f16", "bf16")}
    passed = [ctypes.c_void_p(a.ctypes.data) for a in (x, got["f16"], got["bf16"])]
    ctypes.CDLL(str(tmp_path / "halves.so")).rounded(*passed, x.size)
    for half, bits in got.items():
        with np.errstate(over="ignore", invalid="ignore"):
            want = x.astype(DTYPES[half]).view(np.uint16)
        number = ~np.isnan(x)
        np.testing.assert_array_equal(bits[number], want[number])
        assert np.isnan(bits[~number].view(DTYPES[half]).astype(np.float32)).all()
