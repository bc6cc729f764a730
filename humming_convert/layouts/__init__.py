"""Layouts: where the bits of a packed layer are, for every target. `prepare` and `restore` are inverses up to named lossy steps.

`resolve` decides, `pack_small` and `pack_weight` follow; `address` says where one code is, independently of both.
Facts: layouts.md.
"""

from __future__ import annotations

from humming_convert.layouts.address import address, sample_codes, standard_codes
from humming_convert.layouts.config import Environment, LayerConfig, LayerRecipe
from humming_convert.layouts.prepare import PackedLayer, Standard, prepare
from humming_convert.layouts.questions import Answers, questions
from humming_convert.layouts.resolve import resolve
from humming_convert.layouts.restore import restore, unpack_small
from humming_convert.layouts.small import Apart, pack_small, scales_apart
from humming_convert.layouts.weights import WeightAux, pack_weight, unpack_weight

__all__ = [
    "Answers",
    "Apart",
    "Environment",
    "LayerConfig",
    "LayerRecipe",
    "PackedLayer",
    "Standard",
    "WeightAux",
    "address",
    "pack_small",
    "pack_weight",
    "prepare",
    "questions",
    "resolve",
    "restore",
    "sample_codes",
    "scales_apart",
    "standard_codes",
    "unpack_small",
    "unpack_weight",
]
