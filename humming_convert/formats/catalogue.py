"""The catalogue of sources: what is read, what is refused, and why. `humming-convert formats` and docs/formats.md print it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Row(Struct, frozen=True):
    """`status`: read, or refused with the reason in `note`; `unverified`: read, no real file was at hand (warning `unverified-variant`)."""

    format: str
    variant: str
    status: Literal["read", "unverified", "refused"]
    note: str = ""


_G = "GPTQ"
_A = "AWQ"
_C = "compressed-tensors"

READ: tuple[Row, ...] = (
    Row(_G, "2, 3, 4, 8 bits, sym and asym, v1 and v2 zero points", "read", "evidence decides where labels lie (formats.md 2.3)"),
    Row(_G, "groups -1, 16 to 1024; a shorter last group", "read", "a shorter last group is rewritten exactly to the gcd"),
    Row(_G, "dynamic: other bits and groups a module", "read"),
    Row(_G, "gptq_p: planar 3, 5, 6, 7 bits", "read"),
    Row(_G, "Marlin tiles", "read", "deprecated: a warning says so"),
    Row(_G, "act-order", "read", "where it folds into the producing layers; else --on-desc-act"),
    Row(_G, "auto-round integer exports", "unverified"),
    Row(_A, "gemm, 4 bits", "read"),
    Row(_A, "gemv, gemv_fast", "read"),
    Row(_A, "other widths", "unverified", "only where the config names gptqmodel 7 or newer"),
    Row(_C, "pack-quantized, 1 to 8 bits, sym and asym", "read", "both layouts of 3, 5, 6, 7 bits"),
    Row(_C, "int-quantized, naive-quantized (int)", "read"),
    Row(_C, "float-quantized, naive-quantized (float): tensor, channel, block", "read"),
    Row(_C, "nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized", "read"),
    Row(_C, "mixed-precision", "read"),
    Row("MXFP4", "gpt-oss", "read"),
    Row("MXFP4", "DeepSeek V4, MiMo", "unverified"),
    Row("ModelOpt", "NVFP4, W4A16_NVFP4, FP8, MXFP8, MIXED_PRECISION", "read"),
    Row("FP8", "blocks (weight_scale_inv), one scale a matrix, fbgemm_fp8", "read"),
    Row("Humming", "standard form, dynamic, ignore", "read"),
)
"""What is read. Refused methods come from formats.refused, the table that the readers use."""


def catalogue() -> tuple[Row, ...]:
    """All rows, the read ones first."""
    from humming_convert.formats.refused import REFUSED

    return (*READ, *(Row(name, "", "refused", why.reason) for name, why in REFUSED.items()))
