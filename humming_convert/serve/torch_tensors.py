"""Packed tensors as torch tensors on a device, byte for byte.

In: TensorViews, and the rows of dim 0 that are wanted.  Out: tensors of the stored type and shape. Host memory: a few staging buffers.
Facts: runtimes.md 1.5 (stored type = created type: copying between types would convert values).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
CHUNK, SLOTS, READERS = 4 << 20, 8, 4  # bytes of a staging buffer, how many there are, how many threads fill them


@dataclass
class Slot:
    """Page-locked memory, filled by a thread and copied by the device. `free`: when the copy is done."""

    buffer: Any
    free: Any
    filled: Future[None] | None = None


class Placing:
    """Reads tensors to one device. Files are opened once. Reading and copying go on side by side, on the stream that is current."""

    def __init__(self, device: Any) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        self.read = Pread()
        self._slots: list[Slot] = []
        self._readers: ThreadPoolExecutor | None = None

    def place(self, view: TensorView, rows: Sequence[int] | None = None) -> Any:
        """The whole tensor, or these rows of dim 0 in this order."""
        torch = self.torch
        shape = view.shape if rows is None else (len(rows), *view.shape[1:])
        out = torch.empty(shape, dtype=getattr(torch, TORCH[view.dtype]), device=self.device)
        flat = out.reshape(-1).view(torch.uint8)
        chunks = list(_chunks([view] if rows is None else runs(view, rows)))
        if self.device.type == "cpu":
            for at, part in chunks:
                self.read.fill(part, memoryview(flat[at : at + part.nbytes].numpy()))
        else:
            with torch.cuda.device(self.device):
                self._stage(chunks, flat)
        assert sum(part.nbytes for _, part in chunks) == flat.numel(), (view, rows)
        return out

    def _stage(self, chunks: list[tuple[int, TensorView]], flat: Any) -> None:
        """Fills SLOTS chunks ahead of the one that is copied."""
        if self._readers is None:
            torch = self.torch
            self._readers = ThreadPoolExecutor(READERS, "read packed")
            self._slots = [
                Slot(torch.empty(CHUNK, dtype=torch.uint8, device="cpu", pin_memory=True), torch.cuda.Event()) for _ in range(SLOTS)
            ]
        for number in range(len(chunks) + SLOTS):
            slot = self._slots[number % SLOTS]
            if number >= SLOTS and number - SLOTS < len(chunks):
                at, part = chunks[number - SLOTS]
                assert slot.filled is not None
                slot.filled.result()  # SourceError of the thread
                flat[at : at + part.nbytes].copy_(slot.buffer[: part.nbytes], non_blocking=True)
                slot.free.record()
            if number < len(chunks):
                part = chunks[number][1]
                slot.free.synchronize()
                slot.filled = self._readers.submit(self.read.fill, part, memoryview(slot.buffer[: part.nbytes].numpy()))


def _chunks(views: Iterable[TensorView]) -> Iterator[tuple[int, TensorView]]:
    """(where it goes, at most CHUNK bytes), as they follow each other."""
    at = 0
    for view in views:
        raw = TensorView(name=view.name, file=view.file, dtype="U8", shape=(view.nbytes,), offset=view.offset, nbytes=view.nbytes)
        for start in range(0, view.nbytes, CHUNK):
            part = raw.rows(start, min(start + CHUNK, view.nbytes))
            yield at, part
            at += part.nbytes


def runs(view: TensorView, rows: Sequence[int]) -> Iterator[TensorView]:
    """Rows of dim 0 as few views as there are runs of neighbours."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield view.rows(rows[start], rows[i - 1] + 1)
            start = i
