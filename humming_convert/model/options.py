"""The options that decide how source modules become layers (architecture.md 9.1)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ModelOptions(Struct, frozen=True, kw_only=True):
    """fuse "auto": as vLLM does where the family is known. The others as on the command line; `dtype`: of the model."""

    fuse: Literal["auto", "vllm", "none"] = "auto"
    on_mixed: Literal["refuse", "dequantize", "unfuse"] = "refuse"
    w13: Literal["keep", "contiguous"] = "keep"
    lm_head: Literal["dequantize", "keep"] = "dequantize"
    on_desc_act: Literal["refuse", "dequantize", "requant"] = "refuse"
    dtype: Literal["BF16", "F16"] = "BF16"
    scale_dtype: Literal["model", "source"] = "model"
