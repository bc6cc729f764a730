"""Methods that are known and not read, each with its reason and a way out.

Facts: formats.md 5.5, 11 D11, 13.  Printed by `humming-convert formats`.
"""

from __future__ import annotations

from msgspec import Struct


class RefusedMethod(Struct, frozen=True):
    """`reason`: what stands in the way; `advice`: what to do instead."""

    reason: str
    advice: str = "export the model as compressed-tensors pack-quantized or GPTQ"


_CODEBOOK = "weights are indices into codebooks, which no Humming kernel reads"
_ROTATED = "weights are rotated and need transforms at run time"

REFUSED: dict[str, RefusedMethod] = {
    "bitsandbytes": RefusedMethod("NF4 and LLM.int8 blocks run across rows, and their value tables are not linear"),
    "hqq": RefusedMethod("zero points and scales are quantized themselves"),
    "gguf": RefusedMethod("block formats of llama.cpp are out of scope", "convert from the original safetensors model"),
    "exl2": RefusedMethod("rows have different widths"),
    "exl3": RefusedMethod(_CODEBOOK),
    "vptq": RefusedMethod(_CODEBOOK),
    "aqlm": RefusedMethod(_CODEBOOK),
    "quip": RefusedMethod(_CODEBOOK),
    "qqq": RefusedMethod("two-stage scales for 4-bit weights with int8 activations"),
    "paroquant": RefusedMethod(_ROTATED),
    "spqr": RefusedMethod("outliers are stored apart as a sparse matrix"),
    "torchao": RefusedMethod("files are pickled tensor subclasses"),
    "bitblas": RefusedMethod("words are interleaved for one runtime and not documented for others"),
    "bitnet": RefusedMethod("ternary weights are out of scope"),
    "eetq": RefusedMethod("words are interleaved for one runtime"),
    "fp_quant": RefusedMethod(_ROTATED),
    "higgs": RefusedMethod(_CODEBOOK),
    "quanto": RefusedMethod("files hold tensor subclasses of one library"),
    "squeezellm": RefusedMethod(_CODEBOOK),
    "deepspeedfp": RefusedMethod("weights are quantized at load time"),
    "experts_int8": RefusedMethod("weights are quantized at load time", "convert from a quantized checkpoint"),
    "tpu_int8": RefusedMethod("weights are quantized at load time", "convert from a quantized checkpoint"),
    "petit_nvfp4": RefusedMethod("words are arranged for one runtime", "convert from the ModelOpt NVFP4 checkpoint"),
    "inc": RefusedMethod("a run-time config of Intel Neural Compressor, not a file format"),
    "ipex": RefusedMethod("a run-time format", "convert from the GPTQ or AWQ checkpoint"),
    "humming_packed": RefusedMethod("the folder is already packed for one target", "convert from the source checkpoint"),
}
