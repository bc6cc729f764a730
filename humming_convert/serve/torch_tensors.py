"""Packed tensors as torch tensors on a device, byte for byte.

In: TensorViews, and the rows of dim 0 that are wanted.  Out: tensors of the stored type and shape. Host memory: one staging buffer.
Facts: runtimes.md 1.5 (stored type = created type: copying between types would convert values).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from humming_convert.checkpoint.reading import Pread
from humming_convert.checkpoint.tensors import TensorView

# safetensors name -> attribute of torch
TORCH = {
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
STAGING = 64 << 20


class Placing:
    """Reads tensors to one device. Files are opened once, the staging buffer is kept."""

    def __init__(self, device: Any) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        self.read = Pread()
        self._staging: Any = None

    def place(self, view: TensorView, rows: Sequence[int] | None = None) -> Any:
        """The whole tensor, or these rows of dim 0 in this order."""
        torch = self.torch
        shape = view.shape if rows is None else (len(rows), *view.shape[1:])
        out = torch.empty(shape, dtype=getattr(torch, TORCH[view.dtype]), device=self.device)
        flat = out.view(torch.uint8).reshape(-1) if out.ndim else out.reshape(1).view(torch.uint8)
        at = 0
        for part in [view] if rows is None else runs(view, rows):
            self._fill(part, flat[at : at + part.nbytes])
            at += part.nbytes
        assert at == flat.numel(), (view, rows)
        return out

    def _fill(self, view: TensorView, into: Any) -> None:
        if self.device.type == "cpu":
            self.read.fill(view, memoryview(into.numpy()))
            return
        if self._staging is None:
            self._staging = self.torch.empty(STAGING, dtype=self.torch.uint8, pin_memory=True)
        raw = TensorView(name=view.name, file=view.file, dtype="U8", shape=(view.nbytes,), offset=view.offset, nbytes=view.nbytes)
        for start in range(0, view.nbytes, STAGING):
            part = raw.rows(start, min(start + STAGING, view.nbytes))
            staged = self._staging[: part.nbytes]
            self.read.fill(part, memoryview(staged.numpy()))
            into[start : start + part.nbytes].copy_(staged)  # waits: the buffer is free again when it returns


def runs(view: TensorView, rows: Sequence[int]) -> Iterator[TensorView]:
    """Rows of dim 0 as few views as there are runs of neighbours."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield view.rows(rows[start], rows[i - 1] + 1)
            start = i
