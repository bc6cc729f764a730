"""A packed linear layer in vLLM: its tensors are read when everything else is loaded, and multiplied by humming-kernels.

In: a layer of the manifest, vLLM's module.  Out: parameters `weight`, `weight_scale`, …, byte for byte those of the file.
Facts: runtimes.md 3.2; vLLM 0.33 (`layers.linear`, the Humming method's `apply`).
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.layers.quantization.utils.humming import get_humming_linear_compute_config
from vllm.utils import humming as library

from humming_convert.findings import Findings
from humming_convert.serve.fit import LinearModule, linear_findings
from humming_convert.serve.folder import Group
from humming_convert.serve.plugin.reading import add_parameters, config_of, refuse_twice


class PackedLinearMethod(LinearMethodBase):
    """`config`: of the model.  `group`: the layer, alone under its prefix."""

    def __init__(self, config: Any, group: Group) -> None:
        self.config, self.group = config, group
        self.layer_config: Any = None
        self.compute_config = ""
        self.locks: Any = None

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **_: Any,
    ) -> None:
        """Nothing is created; the sizes are compared, which is the test of tensor parallelism."""
        module = LinearModule(
            n=tuple(output_partition_sizes),
            k=input_size_per_partition,
            dtype=str(params_dtype).removeprefix("torch."),
            bias=bool(layer.has_bias),
            later_bias=bool(layer.skip_bias_add),
        )
        Findings(linear_findings(self.group, module)).raise_errors()
        self.layer_config = config_of(self.config, self.group.one)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        refuse_twice(self.locks is not None, self.group.vllm)
        if layer.has_bias:
            del layer.bias  # as the model declares it: unpacked, and filled by nobody
        add_parameters(self.config, layer, self.group.one, "")
        if layer.has_bias:
            # the kernel always adds a bias; vLLM passes none to the ranks of a row-parallel layer but the first
            layer.register_buffer("zero_bias", torch.zeros_like(layer.bias), persistent=False)
        self.compute_config = get_humming_linear_compute_config()
        self.locks = library.create_humming_locks(layer.weight.device)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x: [..., k].  Out: [..., n], without padding."""
        rows = x.reshape(-1, x.size(-1))
        y = library.humming_forward(
            self.layer_config,
            inputs=rows,
            weight=layer.weight,
            weight_scale=getattr(layer, "weight_scale", None),
            zero_point=getattr(layer, "zero_point", None),
            bias=getattr(layer, "bias" if bias is not None else "zero_bias", None),
            weight_scale_2=getattr(layer, "weight_scale_2", None),
            input_scale=getattr(layer, "input_scale", None),
            input_scale_2=getattr(layer, "input_scale_2", None),
            locks=self.locks,
            compute_config=self.compute_config,
        )
        return y.view(*x.shape[:-1], y.size(-1))
