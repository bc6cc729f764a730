"""The emulated device and the makers of layers are modules beside other tests."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in ("gemm", "layouts", "golden", "gpu"):
    sys.path.insert(0, str(HERE.parent / folder))
