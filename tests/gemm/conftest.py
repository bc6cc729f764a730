"""Makers of layers, golden vectors and the emulation are modules beside tests, not of a package."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "layouts", HERE.parent / "golden", HERE.parent / "gpu"):
    sys.path.insert(0, str(folder))
