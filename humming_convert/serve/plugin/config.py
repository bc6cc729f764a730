"""`humming_packed` as vLLM sees it: which method each module gets. Late: no packed parameter exists before vLLM has loaded the others.

In: `quantization_config` of config.json and the model's path or Hub id.  Out: methods; Refused with every reason before any kernel.
Facts: runtimes.md 3.1 (late route), 3.4; docs/decisions/090.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.platforms import current_platform

from humming_convert.findings import Findings, Refused
from humming_convert.serve.deployment import ENVIRONMENT, Deployment, deployment_findings, kv_cache_findings, model_findings, rank_of
from humming_convert.serve.folder import PackedFolder, RankLayers
from humming_convert.serve.library import cubin_patch, installed_version
from humming_convert.serve.machine import Machine, gpu_findings, library_findings
from humming_convert.serve.names import has_kv_scales, holds_module
from humming_convert.serve.plugin import METHOD
from humming_convert.serve.plugin.tested import HUMMING_INTERFACE, interface_finding
from humming_convert.serve.refusals import refusal
from humming_convert.serve.torch_tensors import Placing
from humming_convert.serve.where import INDEX, folder_of


def register_config() -> None:
    """Once a process."""
    if METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD)(HummingPackedConfig)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class HummingPackedConfig(QuantizationConfig):
    """Of one model. It goes to vLLM's workers with the model's path alone; manifests are read where they are needed."""

    def __init__(self, section: dict[str, Any]) -> None:
        super().__init__()
        self.section = section
        self.model: str | None = None
        self.revision: str | None = None
        self.placed = False  # packed tensors are on the device
        self.kv_cache_scheme: dict[str, Any] | None = section.get("kv_cache_scheme")

    def __getstate__(self) -> dict[str, Any]:
        read = {"folder", "rank", "machine", "placing", "common_names"}
        return {name: value for name, value in self.__dict__.items() if name not in read}

    def get_name(self) -> str:
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HummingPackedConfig:
        return cls(config)

    # ---------------------------------------------------------------- before workers start
    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """vLLM's word where the model is. What the folder and the machine decide is refused here, before a worker is started."""
        self.model, self.revision = model_name, revision
        findings = Findings()
        common = self.folder.common
        findings.extend(gpu_findings(common, self.machine))
        findings.extend(library_findings(common, self.machine))
        findings.extend(model_findings(str(getattr(hf_config, "model_type", ""))))
        findings.extend(kv_cache_findings(self.kv_cache_scheme))
        findings.raise_errors()
        if (finding := interface_finding(HUMMING_INTERFACE)) is not None:
            raise Refused([finding])
        # configurations of layers are constants of compiled graphs, which vLLM keeps under a digest of the model's config among others
        if isinstance(section := getattr(hf_config, "quantization_config", None), dict):
            section["manifest_digest"] = common["manifest_digest"]

    @cached_property
    def machine(self) -> Machine:
        """Without the compiler: asking the library for it starts CUDA, which only a worker may do."""
        capability = current_platform.get_device_capability()
        sm = None if capability is None else 10 * capability.major + capability.minor
        return Machine(sm=sm, humming=installed_version(), cubin_patch=cubin_patch())

    @cached_property
    def folder(self) -> PackedFolder:
        return PackedFolder.open(self.path())

    def path(self) -> Path:
        """The folder, or the snapshot of a Hub id in the cache; manifests are fetched, weights are vLLM's to fetch."""
        assert self.model is not None, "vLLM asks for layers before it has said where the model is"
        return folder_of(self.model, self.revision, get_download_dir())

    # ---------------------------------------------------------------- in a worker
    def deployment(self) -> Deployment:
        vllm = get_current_vllm_config()
        p = vllm.parallel_config
        tp_size, tp_rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        replicas = p.data_parallel_size if p.enable_expert_parallel else 1
        ep_size = tp_size * replicas if p.enable_expert_parallel else 1
        return Deployment(
            dtype=dtype_name(vllm.model_config.dtype),
            tp_size=tp_size,
            tp_rank=tp_rank,
            ep_size=ep_size,
            ep_rank=p.data_parallel_rank * tp_size + tp_rank if ep_size > 1 else 0,
            load_format=str(vllm.load_config.load_format),
            lora=vllm.lora_config is not None,
            eplb=bool(p.enable_eplb),
            quantized_online=None if self.online_quantization_config is None else "another quantization",
            environment=tuple(name for name in ENVIRONMENT if os.environ.get(name)),
        )

    @cached_property
    def rank(self) -> RankLayers:
        """The layers of this process. Refused where vLLM is started otherwise than the folder was made for."""
        deployment = self.deployment()
        findings = Findings(deployment_findings(self.folder, deployment))
        findings.raise_errors()
        key = rank_of(self.folder, deployment)
        assert key is not None
        return self.folder.rank(*key)

    @cached_property
    def placing(self) -> Placing:
        """For the device that vLLM loads to."""
        vllm = get_current_vllm_config()
        return Placing(vllm.load_config.device or vllm.device_config.device)

    @cached_property
    def common_names(self) -> frozenset[str]:
        """Names of the unquantized tensors."""
        return frozenset(json.loads((self.path() / INDEX).read_bytes())["weight_map"])

    def get_checkpoint_weight_mapper(self) -> Any:
        """vLLM asks for it whenever it loads weights, the second time too: then packed layers would stay as they are beside new ones."""
        if self.placed:
            raise Refused([refusal("reload", "packed layers are read once, when the model is loaded")])
        return QuantizationConfig.get_checkpoint_weight_mapper()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """Packed layers by the manifest; every other linear layer and experts as stock vLLM has them, attention with its scales."""
        from humming_convert.serve.plugin.experts import PackedExpertsMethod
        from humming_convert.serve.plugin.linear import PackedLinearMethod
        from humming_convert.serve.plugin.plain import PlainLinearMethod, plain_experts

        group = self.rank.groups.get(prefix)
        if isinstance(layer, LinearBase):
            return PlainLinearMethod(prefix) if group is None else PackedLinearMethod(self, group)
        if isinstance(layer, RoutedExperts):
            if group is not None:
                return PackedExpertsMethod(self, group, layer.moe_config)
            if not holds_module(self.common_names, prefix):
                raise Refused([refusal("never-loaded", "the folder has neither packed nor plain experts of this name", layer=prefix)])
            return plain_experts(layer.moe_config)
        if group is not None:
            raise Refused([refusal("layer-kind", f"the folder has a packed layer, vLLM {type(layer).__name__}", layer=prefix)])
        if isinstance(layer, AttentionLayerBase) and has_kv_scales(self.common_names):
            return BaseKVCacheMethod(self)
        return None


def get_download_dir() -> str | None:
    """Where vLLM keeps what it fetches; None: the Hub's own cache. Before workers start vLLM does not say, and the own cache is looked at."""
    from vllm.config import get_current_vllm_config_or_none

    vllm = get_current_vllm_config_or_none()
    return None if vllm is None else vllm.load_config.download_dir
