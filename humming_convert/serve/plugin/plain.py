"""Unquantized layers of a packed model: vLLM's own methods, and a look whether every weight came.

Why: with the packed files out of the loader's sight, a module under a name that neither side knows would be left as its memory was, and vLLM
tells of missing weights only for models without quantization.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod, register_weight_loader_v2_supported_method

from humming_convert.findings import Refused
from humming_convert.serve.refusals import refusal


@register_weight_loader_v2_supported_method
class PlainLinearMethod(UnquantizedLinearMethod):
    """Weights begin as NaN, so that what no loader wrote is seen."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix, self.looked = prefix, False

    def create_weights(self, layer: torch.nn.Module, *arguments: Any, **more: Any) -> None:
        super().create_weights(layer, *arguments, **more)
        layer.weight.data.fill_(float("nan"))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if not self.looked and bool(torch.isnan(layer.weight.data).any()):
            raise Refused([refusal("never-loaded", "its weight was not filled by the files of the index, or holds NaN", layer=self.prefix)])
        self.looked = True
        super().process_weights_after_loading(layer)


def plain_experts(config: Any) -> UnquantizedFusedMoEMethod:
    """Rows that vLLM adds to experts are never written, so that names are looked at instead (`names.holds_module`)."""
    return UnquantizedFusedMoEMethod(config)
