"""Which vLLM the plugin was tested with, and the names that it uses there. They are vLLM's own and change between its minors.

In: the installed vLLM.  Out: why it is not one of them, or None.  Facts: runtimes.md 3.5.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from humming_convert.findings import Finding
from humming_convert.serve.refusals import refusal

TESTED = ("0.33",)
INTERFACE = (
    "vllm.config:get_current_vllm_config",
    "vllm.config:get_current_vllm_config_or_none",
    "vllm.distributed:get_tensor_model_parallel_rank",
    "vllm.distributed:get_tensor_model_parallel_world_size",
    "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase",
    "vllm.model_executor.layers.fused_moe:FusedMoEMethodBase",
    "vllm.model_executor.layers.fused_moe:RoutedExperts",
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod",
    "vllm.model_executor.layers.linear:LinearBase",
    "vllm.model_executor.layers.linear:LinearMethodBase",
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod",
    "vllm.model_executor.layers.linear:register_weight_loader_v2_supported_method",
    "vllm.model_executor.layers.quantization:QUANTIZATION_METHODS",
    "vllm.model_executor.layers.quantization:register_quantization_config",
    "vllm.model_executor.layers.quantization.base_config:QuantizationConfig",
    "vllm.model_executor.layers.quantization.kv_cache:BaseKVCacheMethod",
    "vllm.platforms:current_platform",
)
# looked for when a packed folder is opened: importing them imports humming
HUMMING_INTERFACE = (
    "vllm.model_executor.layers.quantization.utils.humming:get_humming_linear_compute_config",
    "vllm.model_executor.layers.quantization.utils.humming:get_humming_moe_quant_config",
    "vllm.model_executor.layers.quantization.utils.humming:input_schema_to_quant_key",
    "vllm.model_executor.layers.quantization.utils.humming:make_humming_moe_kernel",
    "vllm.model_executor.layers.quantization.utils.humming:select_humming_moe_experts",
    "vllm.model_executor.layers.quantization.utils.humming:weight_schema_to_quant_key",
    "vllm.utils.humming:HummingInputSchema",
    "vllm.utils.humming:HummingWeightSchema",
    "vllm.utils.humming:create_humming_locks",
    "vllm.utils.humming:humming_forward",
)


def installed_vllm() -> str | None:
    """Nothing is imported."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


def version_finding(installed: str) -> Finding | None:
    tested = " or ".join(f"{minor}.x" for minor in TESTED)
    if ".".join(installed.split(".")[:2]) in TESTED:
        return None
    return refusal("vllm-version", f"the plugin was tested with vLLM {tested}, installed is {installed}", tested=tested)


def missing(names: tuple[str, ...]) -> list[str]:
    """Those that cannot be imported."""
    out = []
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            found = hasattr(import_module(module), attribute)
        except ImportError:
            found = False
        if not found:
            out.append(name)
    return out


def untested() -> Finding | None:
    """Why the installed vLLM is not one that the plugin knows."""
    installed = installed_vllm()
    if installed is None:
        return refusal("vllm-version", "vLLM has no metadata here, so that its version is unknown", tested=" or ".join(TESTED))
    if (finding := version_finding(installed)) is not None:
        return finding
    return interface_finding(INTERFACE)


def interface_finding(names: tuple[str, ...]) -> Finding | None:
    """Where a name is missing."""
    if gone := missing(names):
        return refusal("vllm-interface", f"vLLM {installed_vllm()} has no {', '.join(gone)}", tested=" or ".join(TESTED))
    return None
