"""The samples: one row each. Every family, the variants that differ in storage, a mixture of experts stored apart and one stored stacked.

Out: `Sample`s with the float64 meaning that went in.  A new family is a packer in families.py and a row here.
Facts: formats.md 2 to 8; which forms allow 8-bit float activations: layouts.md 10.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from humming_convert.demo.families import (
    awq,
    ct_int8,
    ct_mxfp4,
    ct_nvfp4,
    ct_pack,
    fp8_block,
    fp8_channel,
    fp8_tensor,
    gptq,
    humming,
    modelopt_nvfp4,
)
from humming_convert.demo.models import LARGER, WHOLE_BLOCKS, Sample, Shape, decoder, gpt_oss
from humming_convert.demo.pack import BF16

LLAMA = {"model_type": "llama", "architecture": "LlamaForCausalLM"}
MISTRAL = {"model_type": "mistral", "architecture": "MistralForCausalLM"}
QWEN2 = {"model_type": "qwen2", "architecture": "Qwen2ForCausalLM", "bias": ("q_proj", "k_proj", "v_proj")}
QWEN3 = {"model_type": "qwen3", "architecture": "Qwen3ForCausalLM"}
QWEN3_MOE = {"model_type": "qwen3_moe", "architecture": "Qwen3MoeForCausalLM", "shape": Shape(experts=4)}


def _gptq(bits: int, group: int, label: str, symmetric: bool) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": False,
        "lm_head": False,
        "checkpoint_format": label,
        "pack_dtype": "int32",
        "meta": {"quantizer": ["gptqmodel:7.7.0"]},
    }


def _ct(form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    weights = {"dynamic": False, "symmetric": True, "group_size": None, **weights}
    group = {"format": form, "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": None,
        "version": "0.20.0",
    }


_PER_TOKEN = {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True}
_FP4_WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
_FP4_INPUTS = {**_FP4_WEIGHTS, "dynamic": "local", "symmetric": True}


def _modelopt(algorithm: str, bits: int, group: int | None) -> dict[str, Any]:
    """`config.json` section and side file of one ModelOpt export."""
    form = {"dynamic": False, "num_bits": bits, "type": "float", **({"group_size": group} if group else {})}
    section = {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": form, "input_activations": form}},
    }
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]} | (
        {"group_size": group} if group else {}
    )
    side = {"hf_quant_config.json": {"producer": section["producer"], "quantization": quantization}}
    return {"quantization": section, "side": side}


DECODERS: tuple[dict[str, Any], ...] = (
    # gate and up never use code 0, as quantizers with a symmetric range do: these become sign-magnitude (layouts.md 2, S1)
    {
        "name": "gptq-4bit-v1-sym",
        "family": "gptq",
        "packer": gptq(4, 64, 1, symmetric=True),
        "others": {"gate_proj": gptq(4, 64, 1, symmetric=True, low=1), "up_proj": gptq(4, 64, 1, symmetric=True, low=1)},
        "quantization": _gptq(4, 64, "gptq", True),
        "dtype": "float16",
        **LLAMA,
    },
    {
        "name": "gptq-4bit-v2-asym",
        "family": "gptq",
        "packer": gptq(4, 32, 2, symmetric=False),
        "quantization": _gptq(4, 32, "gptq_v2", False),
        **QWEN2,
    },
    # large enough for the compiled passes; the others are packed by the reference, which needs no warm-up
    {
        "name": "gptq-4bit-larger",
        "family": "gptq",
        "packer": gptq(4, 64, 2, symmetric=False, scale=BF16),
        "quantization": _gptq(4, 64, "gptq_v2", False),
        "shape": LARGER,
        **LLAMA,
    },
    {
        "name": "gptq-3bit-v1-asym",
        "family": "gptq",
        "packer": gptq(3, 64, 1, symmetric=False),
        "quantization": _gptq(3, 64, "gptq", False),
        **MISTRAL,
    },
    {
        "name": "gptq-8bit-channel",
        "family": "gptq",
        "packer": gptq(8, -1, 1, symmetric=True),
        "quantization": _gptq(8, -1, "gptq", True),
        "fp8": False,
        **LLAMA,
    },
    {
        "name": "awq-4bit-gemm",
        "family": "awq",
        "packer": awq(64),
        "quantization": {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 64,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": None,
        },
        "dtype": "float16",
        **LLAMA,
    },
    {
        "name": "ct-int4-sym",
        "family": "compressed-tensors",
        "packer": ct_pack(4, 0, symmetric=True),
        "quantization": _ct("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "channel"}),
        **QWEN3,
    },
    {
        "name": "ct-int4-asym",
        "family": "compressed-tensors",
        "packer": ct_pack(4, 64, symmetric=False),
        "quantization": _ct("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": False}),
        **QWEN2,
    },
    {
        "name": "ct-int8",
        "family": "compressed-tensors",
        "packer": ct_int8,
        "quantization": _ct("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, {**_PER_TOKEN, "type": "int"}),
        "fp8": False,
        **QWEN2,
    },
    {
        "name": "ct-fp8-channel",
        "family": "compressed-tensors",
        "packer": fp8_channel,
        "quantization": _ct("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, {**_PER_TOKEN, "type": "float"}),
        **LLAMA,
    },
    {
        "name": "ct-fp8-block",
        "family": "compressed-tensors",
        "packer": fp8_block("weight_scale"),
        "quantization": _ct(
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
            {"dynamic": True, "num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "symmetric": True},
        ),
        "shape": WHOLE_BLOCKS,
        **QWEN3,
    },
    {
        "name": "ct-nvfp4",
        "family": "compressed-tensors",
        "packer": ct_nvfp4,
        "quantization": _ct("nvfp4-pack-quantized", _FP4_WEIGHTS, _FP4_INPUTS),
        "fp8": False,
        **QWEN3,
    },
    {
        "name": "ct-mxfp4",
        "family": "compressed-tensors",
        "packer": ct_mxfp4,
        "quantization": _ct(
            "mxfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        ),
        **LLAMA,
    },
    {"name": "nvfp4-modelopt", "family": "nvfp4", "packer": modelopt_nvfp4, "fp8": False, **_modelopt("NVFP4", 4, 16), **LLAMA},
    {"name": "fp8-modelopt", "family": "fp8", "packer": fp8_tensor, **_modelopt("FP8", 8, None), **LLAMA},
    # 192 and 320 rows are one and a half and two and a half blocks; two files and an index
    {
        "name": "fp8-block-ragged",
        "family": "fp8",
        "packer": fp8_block("weight_scale_inv"),
        "quantization": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "shards": 2,
        **QWEN3,
    },
    {
        "name": "humming-uint4",
        "family": "humming",
        "packer": humming(4, 32),
        "quantization": {"quant_method": "humming", "b_dtype": "uint4", "has_zero_point": True, "weight_scale_group_size": 32},
        **QWEN3,
    },
    {
        "name": "ct-int4-qwen3-moe",
        "family": "compressed-tensors",
        "packer": ct_pack(4, 32, symmetric=True),
        "quantization": _ct("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
        **QWEN3_MOE,
    },
)


def all_samples() -> list[Sample]:
    """Every sample, in the order of the table."""
    return [decoder(**row) for row in DECODERS] + [gpt_oss("mxfp4-gpt-oss")]
