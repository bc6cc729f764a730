"""Without torch: cuBLAS through CuPy, which multiplies float16 and has no bfloat16.

In: a Case.  Out: calls.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from humming_convert.bench.contenders import Case, Prepared
from humming_convert.bench.document import CUBLAS
from humming_convert.gemm.device import Device


class CupyBlas:
    name = CUBLAS

    def __init__(self, device: Device) -> None:
        self.device, self.cupy = device, device.cupy
        self.how = f"CuPy {self.cupy.__version__}, float16"

    def why_not(self, case: Case) -> str | None:
        return "CuPy multiplies no groups of rows" if case.layer.experts else None

    def prepare(self, case: Case) -> Prepared:
        cupy, n, k, m = self.cupy, case.layer.n, case.layer.k, case.x.m
        random = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16)
        x, first = (self.device.put(np.resize(random, shape)) for shape in ((m, k), (n, k)))
        weights = [first] + [first.copy() for _ in range(case.copies(first.nbytes) - 1)]
        y = cupy.empty((m, n), "float16")
        return Prepared([partial(cupy.matmul, x, w.T, out=y) for w in weights])
