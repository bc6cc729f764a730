"""Packed experts in vLLM: w13 and w2 of this rank's experts, run by vLLM's own Humming experts.

In: two layers of the manifest, vLLM's module.  Out: parameters `w13_weight`, `w2_weight_scale`, …
Facts: runtimes.md 1.6 (which schemes have a kernel), 3.2; vLLM 0.33 (`fused_moe`, `quantization.utils.humming`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.layers.quantization.utils.humming import (
    get_humming_moe_quant_config,
    input_schema_to_quant_key,
    make_humming_moe_kernel,
    select_humming_moe_experts,
    weight_schema_to_quant_key,
)
from vllm.utils import humming as library

from humming_convert.findings import Findings, Refused
from humming_convert.serve.fit import ExpertsModule, experts_findings, held_experts, rows_of_experts
from humming_convert.serve.folder import EXPERTS, Group
from humming_convert.serve.plugin.reading import add_parameters, config_of, refuse_twice
from humming_convert.serve.refusals import refusal


class PackedExpertsMethod(FusedMoEMethodBase):
    """`config`: of the model.  `group`: w13 and w2."""

    def __init__(self, config: Any, group: Group, moe: Any) -> None:
        super().__init__(moe)
        self.config, self.group = config, group
        self.rows: list[int] | None = None
        self.moe_kernel: Any = None
        self.humming_configs: dict[str, Any] = {}
        self.experts_cls = self._experts_class() if group.experts else None

    def _experts_class(self) -> Any:
        """vLLM's choice for this scheme and deployment, by the form of w13 before packing, as for a model that vLLM packs itself."""
        w13 = self.group.entries["w13"]
        weight = weight_schema_to_quant_key(_standard_schema(w13), self.moe.in_dtype)
        activation = input_schema_to_quant_key(_input_schema(w13), self.moe.in_dtype)
        chosen = select_humming_moe_experts(config=self.moe, weight_key=weight, activation_key=activation)
        if chosen is None:
            said = f"weights {weight}, activations {activation}, {self.moe.activation.value}"
            raise Refused([refusal("experts-scheme", said, layer=self.group.vllm)])
        return chosen

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **_: Any,
    ) -> None:
        """Nothing is created; sizes and this rank's experts are compared."""
        local = local_experts(layer, num_experts)
        module = ExpertsModule(
            hidden=hidden_size,
            intermediate=intermediate_size_per_partition,
            gated=bool(self.moe.is_act_and_mul),
            activation=str(self.moe.activation.value),
            dtype=str(params_dtype).removeprefix("torch."),
            bias=bool(self.moe.has_bias),
            local=local,
            total=int(layer.global_num_experts),
        )
        parallel = self.config.rank.manifest["parallel"]
        Findings(experts_findings(self.group, module, parallel)).raise_errors()
        held = held_experts(self.group.entries["w13"], parallel, module.total)
        if held != local:
            self.rows = rows_of_experts(held, local)
        for leaf in EXPERTS:
            self.humming_configs[leaf] = config_of(self.config, self.group.entries[leaf], num_experts)

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> Any:
        return get_humming_moe_quant_config(
            layer,
            self.humming_configs,
            gemm1_alpha=getattr(layer, "swiglu_alpha", None),
            gemm1_beta=getattr(layer, "swiglu_beta", None),
            gemm1_clamp_limit=getattr(layer, "swiglu_limit", None),
        )

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        refuse_twice(self.moe_kernel is not None, self.group.vllm)
        for leaf in EXPERTS:
            add_parameters(self.config, layer, self.group.entries[leaf], f"{leaf}_", self.rows)
        entries = self.group.entries
        layer.weight_schemas = {leaf: _packed_schema(entries[leaf]) for leaf in EXPERTS}
        layer.input_schemas = {leaf: _input_schema(entries[leaf]) for leaf in EXPERTS}
        layer.humming_configs = self.humming_configs
        self.moe_quant_config = self.get_fused_moe_quant_config(layer)
        self.moe_kernel = make_humming_moe_kernel(
            self.moe_quant_config, self.moe, self.experts_cls, routing_tables=layer._expert_routing_tables()
        )

    def apply(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> Any:
        assert self.moe_kernel is not None
        return self.moe_kernel.apply(
            hidden_states=x,
            w1=layer.w13_weight,
            w2=layer.w2_weight,
            topk_weights=topk_weights,
            topk_ids=topk_ids,
            activation=layer.activation,
            global_num_experts=layer.global_num_experts,
            expert_map=layer.expert_map,
            apply_router_weight_on_input=False,
            shared_experts=shared_experts,
            shared_experts_input=shared_experts_input,
        )


def local_experts(layer: Any, count: int) -> tuple[int, ...]:
    """Global numbers of this rank's experts in their local order."""
    placed = layer.expert_map_manager.expert_map
    if placed is None:
        return tuple(range(count))
    by_place = {int(at): expert for expert, at in enumerate(placed.tolist()) if at >= 0}
    return tuple(by_place[at] for at in range(count))


# ------------------------------------------------------------------ what vLLM's helpers ask for
def _standard_schema(entry: Mapping[str, Any]) -> Any:
    w = entry["weight"]
    return library.HummingWeightSchema(
        b_dtype=w["dtype"],
        bs_dtype=w["scale_dtype"] if w["scale_dtype"].startswith("float8") else None,
        weight_scale_type=w["scale"],
        weight_scale_group_size=w["group_size"],
        weight_scale_group_size_n=w["group_size_n"],
        weight_scale_2_type=None if w["scale_2"] == "none" else w["scale_2"],
        has_zero_point=w["zero_point"] != "none",
        is_fp_zero_point=w["zero_point"] == "fp",
    )


def _packed_schema(entry: Mapping[str, Any]) -> Any:
    c = entry["config"]
    return library.HummingWeightSchema(
        b_dtype=c["b_dtype"],
        bs_dtype=c["bs_dtype"],
        weight_scale_type=c["weight_scale_type"],
        weight_scale_group_size=c["weight_scale_group_size"],
        weight_scale_group_size_n=c["weight_scale_group_size_n"],
        weight_scale_2_type=None if c["weight_scale_2_type"] == "none" else c["weight_scale_2_type"],
        has_zero_point=c["has_zero_point"],
        is_fp_zero_point=c["is_fp_zero_point"],
    )


def _input_schema(entry: Mapping[str, Any]) -> Any:
    c = entry["config"]
    if c["input_quant_mode"] == "none":
        return library.HummingInputSchema()
    return library.HummingInputSchema(
        a_dtype=c["a_dtype"],
        input_scale_group_size=c["input_scale_group_size"],
        input_scale_dtype=c["as_dtype"],
        input_quant_mode=c["input_quant_mode"],
    )
