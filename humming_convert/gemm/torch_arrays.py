"""Tensors of torch as arrays of CuPy and back, through DLPack: the same memory, on the same device, one stream waiting for the other.

Types travel as 16-bit integers, since not every CuPy knows bfloat16.
"""

from __future__ import annotations

from typing import Any

HALVES = {"torch.float16": "float16", "torch.bfloat16": "bfloat16"}


def is_torch(x: Any) -> bool:
    """Without importing torch."""
    return type(x).__module__.partition(".")[0] == "torch"


def bits(device: Any, x: Any) -> Any:
    """x: [..., k], float16 or bfloat16.  Out: uint16 on the device. ValueError for another type, or for memory elsewhere."""
    import torch

    if str(x.dtype) not in HALVES:
        raise ValueError(f"x is {str(x.dtype).removeprefix('torch.')}, layers take float16 or bfloat16")
    if x.device.type != "cuda" and device.cupy is not None:
        raise ValueError(f"x is on {x.device}, the layer on a GPU")
    return device.from_dlpack(x.detach().contiguous().view(torch.int16)).view("uint16")


def back(y: Any, x: Any) -> Any:
    """y: uint16 on the device.  Out: a tensor of x's type."""
    import torch

    return torch.from_dlpack(y.view("int16")).view(x.dtype)
