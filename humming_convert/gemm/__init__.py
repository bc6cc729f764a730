"""The GEMM core: packed layers multiplied as they lie on disk, by kernels compiled for one layer, one mathematics and one tuning.

`Layer.of` reads a stored configuration; `Multiplier` compiles and launches; `compile_kernel` needs no GPU.  Facts: architecture.md 7; docs/gemm.md.
Importing this room needs neither CuPy nor NVRTC.
"""

from __future__ import annotations

from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tuning import Tuning

__all__ = ["Compute", "Layer", "Tuning"]
