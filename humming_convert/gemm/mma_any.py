"""The plain kernel family: configures and launches mma_any.cuh for any packed layer.

In: a layer's packed tensors on the device, and rows.  Out: y = x * W^T with scales and bias, [rows, n].
The referee of faster families; speed is not its aim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm import quantize_any, tasks
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.source import KernelSource, kernel_source
from humming_convert.gemm.tuning import Tuning

ROLES = ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias")
TILE_N = 64


def sources(layer: Layer, compute: Compute, rows: tuple[int, ...] = (1, 64)) -> list[KernelSource]:
    """Every kernel that such a layer needs."""
    out = [kernel_source("mma_any", layer, compute, Tuning.of(m)) for m in rows]
    if compute.quantizes:
        out.append(quantize_any.source(layer, compute))
    return out


@dataclass(slots=True)
class Multiplier:
    """A packed layer on a device. `given`: static input scale on the device, where the mode has one."""

    device: Device
    layer: Layer
    compute: Compute
    tensors: Mapping[str, Any]
    given: Any = None

    @classmethod
    def of(
        cls, device: Device, layer: Layer, compute: Compute, packed: Mapping[str, NDArray[Any]], given: float | None = None
    ) -> Multiplier:
        tensors = {role: device.put(packed[role]) for role in ROLES if role in packed}
        return cls(device, layer, compute, tensors, None if given is None else device.put(np.asarray([given], np.float32)))

    def quantize(self, x: Any) -> tuple[Any, Any]:
        """Rows [m, k] as uint16 on the device -> numbers and scales; x itself where nothing is quantized."""
        if not self.compute.quantizes:
            return x, None
        return quantize_any.launch(self.device, self.layer, self.compute, x, self.given)

    def multiply(self, q: Any, scale: Any, expert_of_row: NDArray[Any] | None = None) -> Any:
        """Numbers and scales of `quantize` -> y on the device. expert_of_row: with experts; rows of `tasks.NOBODY` stay NaN."""
        layer, m = self.layer, q.shape[0]
        each = m if expert_of_row is None else -(-m // max(1, layer.experts))
        tuning = Tuning.of(each)
        rows = experts = None
        tiles = -(-m // tuning.tile_m)
        if self.compute.task == "indexed":
            assert expert_of_row is not None and expert_of_row.max(initial=-1) < layer.experts
            row_list, expert_list = tasks.indexed(expert_of_row, tuning.tile_m)
            rows, experts, tiles = self.device.put(row_list), self.device.put(expert_list), expert_list.size
        y = self.device.filled((m, layer.n), "float32" if self.compute.output == "f32" else "uint16")
        if tiles:
            source = kernel_source("mma_any", layer, self.compute, tuning)
            arguments = (q, *(self.tensors.get(r) for r in ROLES), scale, rows, experts, y, m)
            self.device.launch(source, (-(-layer.n // TILE_N), tiles), tuning.threads, arguments)
        return y

    def __call__(self, x: Any, expert_of_row: NDArray[Any] | None = None) -> Any:
        return self.multiply(*self.quantize(x), expert_of_row)
