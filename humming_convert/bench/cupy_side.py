"""Without torch: cuBLAS through CuPy, which multiplies float16 and has no bfloat16.

In: a Case.  Out: calls.
"""

from __future__ import annotations

from functools import partial

from humming_convert.bench.contenders import Case, Prepared
from humming_convert.bench.document import CUBLAS
from humming_convert.gemm.device import Device


class CupyBlas:
    name = CUBLAS

    def __init__(self, device: Device) -> None:
        self.cupy = device.cupy
        self.how = f"CuPy {self.cupy.__version__}, float16"

    def why_not(self, case: Case) -> str | None:
        return "CuPy multiplies no groups of rows" if case.layer.experts else None

    def prepare(self, case: Case) -> Prepared:
        cupy, n, k, m = self.cupy, case.layer.n, case.layer.k, case.x.m
        x = cupy.random.standard_normal((m, k), dtype="float32").astype("float16")
        first = cupy.random.standard_normal((n, k), dtype="float32").astype("float16")
        weights = [first] + [first.copy() for _ in range(case.copies(first.nbytes) - 1)]
        y = cupy.empty((m, n), "float16")
        return Prepared([partial(cupy.matmul, x, w.T, out=y) for w in weights])
