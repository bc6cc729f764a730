"""A packed layer on a device, multiplied by a kernel family.

In: packed tensors, rows.  Out: y = x * W^T with scales and bias, [rows, n].  Activations are quantized first where the mode wants that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm import quantize_any
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.families import PLAIN, Family, Kernels, at_rows
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.parts import sum_bytes
from humming_convert.gemm.source import KernelSource, kernel_source
from humming_convert.gemm.tasks import GROUPED, Dense, Indexed, Task
from humming_convert.gemm.tuning import Tuning

ROLES = ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias")
BYTES = {"f32": "float32", "f16": "uint16", "bf16": "uint16"}


def source_of(kernels: Kernels, layer: Layer, compute: Compute, rows: int, task: str | None = None) -> KernelSource:
    """The kernel for about so many rows an expert.  task: that of `compute` if None."""
    task = task or compute.task
    family = at_rows(kernels, rows, task)
    fitted = replace(family.fitted(layer, compute), task=task)
    return kernel_source(family.NAME, layer, fitted, family.tuning(layer, fitted, rows))


def sources(layer: Layer, compute: Compute, family: Kernels = PLAIN) -> list[KernelSource]:
    """Every kernel that such a layer needs, for any number of rows and any task."""
    tasks = GROUPED if layer.experts else (Dense.name,)
    out = [source_of(family, layer, compute, m, task) for task in tasks for m in family.ROWS]
    if compute.quantizes:
        out.append(quantize_any.source(layer, family.fitted(layer, compute)))
    return list(dict.fromkeys(out))


@dataclass(slots=True)
class Multiplier:
    """A packed layer on a device. `given`: static input scale on the device, where the mode has one."""

    device: Device
    layer: Layer
    compute: Compute
    tensors: Mapping[str, Any]
    given: Any = None
    family: Kernels = PLAIN

    @classmethod
    def of(
        cls,
        device: Device,
        layer: Layer,
        compute: Compute,
        packed: Mapping[str, NDArray[Any]],
        given: float | None = None,
        family: Kernels = PLAIN,
    ) -> Multiplier:
        tensors = {role: device.put(packed[role]) for role in ROLES if role in packed}
        scale = None if given is None else device.put(np.asarray([given], np.float32))
        return cls(device, layer, family.fitted(layer, compute), tensors, scale, family)

    def quantize(self, x: Any) -> tuple[Any, Any]:
        """Rows [m, k] as uint16 on the device -> operands and scales; x itself where nothing is quantized."""
        if not self.compute.quantizes:
            return x, None
        return quantize_any.launch(self.device, self.layer, self.compute, x, self.given)

    def multiply(self, q: Any, scale: Any, task: Task | NDArray[Any] | None = None) -> Any:
        """Operands and scales of `quantize` -> y on the device. task: with experts; an array is the expert of each row. Rows that no
        expert multiplies stay NaN. With a task of top_k, y has as many rows for each of x."""
        y = self.device.filled((q.shape[0] * _top_k(task), self.layer.n), BYTES[self.compute.output])
        self.bound(q, scale, y, task)()
        return y

    def made_by(self, m: int, task: Task) -> tuple[Family, Compute, Tuning]:
        """What makes m rows of y, of all experts: whoever asks for a tolerance or a name of a product asks here."""
        compute, each = replace(self.compute, task=task.name), task.each(m, max(1, self.layer.experts))
        family = at_rows(self.family, each, task.name)
        return family, compute, family.tuning(self.layer, compute, each)

    def bound(self, q: Any, scale: Any, y: Any, task: Task | NDArray[Any] | None = None) -> Callable[[], None]:
        """The product as a call that only launches, as often as one likes, one after the other. y: where it goes, of `multiply`'s shape and bytes."""
        layer, m = self.layer, q.shape[0] * _top_k(task)
        if not isinstance(task, Task):
            task = Dense() if task is None else Indexed(task)
        family, compute, tuning = self.made_by(m, task)
        lists = task.lists(self.device, m, max(1, layer.experts), tuning.tile_m)
        if not lists.tiles:
            return lambda: None
        source = kernel_source(family.NAME, layer, compute, tuning)
        mapped = family.MAPPED and task.name != Indexed.name
        rows = self.device.rows_map(q, tuning.tile_m // tuning.cluster) if mapped else q
        arguments: tuple[Any, ...] = (rows, *(self.tensors.get(r) for r in ROLES), scale, lists.rows, lists.experts, lists.room, y, m)
        across = -(-layer.n // (family.tile_n(tuning) * tuning.cluster)) * tuning.cluster
        grid = (across * tuning.parts, lists.tiles)
        if family.PARTS:
            room = tuning.parts * sum_bytes(family.tile_n(tuning), tuning.tile_m)
            by_memory = tuning.parts > 1 and not tuning.joined
            arguments += self.device.part_sums(across * lists.tiles, room) if by_memory else (None, None)
        return self.device.bound(source, grid, tuning.threads, arguments, tuning.shared)

    def __call__(self, x: Any, task: Task | NDArray[Any] | None = None) -> Any:
        return self.multiply(*self.quantize(x), task)


def _top_k(task: Task | NDArray[Any] | None) -> int:
    return task.top_k if isinstance(task, Indexed) else 1
