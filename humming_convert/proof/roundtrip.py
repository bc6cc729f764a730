"""The round trip: what stands in the file, inverted, against what the source says.

Codes are compared one by one for every layer, place also by sampled tiles through the address formula of layouts.md 5.2, which
shares nothing with the packing code. Facts: architecture.md 1, 5, 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.layouts import ExpertAux, map_codes, sample_codes, unpack_small, unpack_weight
from humming_convert.layouts.config import LayerRecipe
from humming_convert.plan.types import PlannedLayer
from humming_convert.standard.expr import CodeBlock, Context, Weight

SAMPLES = 256  # codes read by address in every expert


class ProofFailed(Exception):
    """What was written does not say what the source says: a bug, or a machine that cannot be trusted. Exit code 4."""

    def __init__(self, layer: str, tensor: str | None, message: str) -> None:
        super().__init__(message)
        self.layer, self.tensor = layer, tensor
