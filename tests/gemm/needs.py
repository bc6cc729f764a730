"""What some tests of this folder need and a machine may lack."""

from __future__ import annotations

import pytest

from humming_convert.gemm.nvrtc import CompileError, compiler


def has_nvrtc() -> bool:
    try:
        compiler()
    except CompileError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC: python -m pip install 'nvidia-cuda-nvrtc>=13.0'")
