"""A packed layer on a device, multiplied by a kernel family.

In: packed tensors, rows.  Out: y = x * W^T with scales and bias, [rows, n].  Activations are quantized first where the mode wants that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm import gather_any, quantize_any
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.families import PLAIN, Family, Kernels, at_rows, gathers
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.parts import resident, sum_bytes
from humming_convert.gemm.source import KernelSource, kernel_source
from humming_convert.gemm.tasks import GATHERED, GROUPED, Dense, Indexed, Lists, Task
from humming_convert.gemm.tuning import Tuning

ROLES = ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias")
BYTES = {"f32": "float32", "f16": "uint16", "bf16": "uint16"}


def source_of(kernels: Kernels, layer: Layer, compute: Compute, rows: int, task: str | None = None) -> KernelSource:
    """The kernel for about so many rows an expert.  task: that of `compute` if None."""
    family, fitted, tuning = chosen(kernels, layer, compute, rows, task or compute.task)
    return kernel_source(family.NAME, layer, fitted, tuning)


def chosen(kernels: Kernels, layer: Layer, compute: Compute, rows: int, task: str) -> tuple[Family, Compute, Tuning]:
    """What multiplies about so many rows an expert: family, mathematics, tuning. Its task is `gathered` where rows of lists are brought side by side first."""
    family = at_rows(kernels, rows, task)
    fitted = replace(family.fitted(layer, compute), task=task)
    tuning = family.tuning(layer, fitted, rows)
    if task == Indexed.name and gathers(family, tuning):
        fitted = replace(fitted, task=GATHERED)
        tuning = family.tuning(layer, fitted, rows)
    return family, fitted, tuning


def sources(layer: Layer, compute: Compute, family: Kernels = PLAIN) -> list[KernelSource]:
    """Every kernel that such a layer needs, for any number of rows and any task."""
    tasks = GROUPED if layer.experts else (Dense.name,)
    out = []
    for m in (*family.ROWS, family.ROWS[-1] + 1):
        for task in tasks:
            one, fitted, tuning = chosen(family, layer, compute, m, task)
            out += [gather_any.source(layer, fitted)] if fitted.task == GATHERED else []
            out.append(kernel_source(one.NAME, layer, fitted, tuning))
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
        return chosen(self.family, self.layer, self.compute, task.each(m, max(1, self.layer.experts)), task.name)

    def bound(self, q: Any, scale: Any, y: Any, task: Task | NDArray[Any] | None = None) -> Callable[[], None]:
        """The product as a call that only launches, as often as one likes, one after the other. y: where it goes, of `multiply`'s shape and bytes."""
        layer, m = self.layer, q.shape[0] * _top_k(task)
        if not isinstance(task, Task):
            task = Dense() if task is None else Indexed(task)
        family, compute, tuning = self.made_by(m, task)
        lists = task.lists(self.device, m, max(1, layer.experts), tuning.tile_m)
        if not lists.tiles:
            return lambda: None
        kernel = _Kernel(self, family, compute, tuning)
        if compute.task == GATHERED:
            return self._gathered(kernel, q, scale, y, m, lists)
        return kernel.bound(self.device.rows_map(q, tuning.tile_m // tuning.cluster) if kernel.mapped else q, scale, lists, y, m)

    def _gathered(self, kernel: _Kernel, q: Any, scale: Any, y: Any, m: int, lists: Lists) -> Callable[[], None]:
        """As many tiles at once as the workspace has room for: rows are brought there, then multiplied."""
        tile_m = kernel.tuning.tile_m
        most = min(gather_any.tiles_at_once(self.layer, tile_m), lists.tiles)
        room = self.device.workspace((most * tile_m, *q.shape[1:]), q)
        rows = self.device.rows_map(room, tile_m // kernel.tuning.cluster)
        calls: list[Callable[[], None]] = []
        for first in range(0, lists.tiles, most):
            last = min(first + most, lists.tiles)
            some = Lists(lists.rows[first * tile_m : last * tile_m], lists.experts[first:last], lists.room, last - first)
            calls.append(gather_any.bound(self.device, self.layer, kernel.compute, q, some.rows, some.room, room))
            calls.append(kernel.bound(rows, scale, some, y, m))

        def call() -> None:
            for one in calls:
                one()

        return call

    def __call__(self, x: Any, task: Task | NDArray[Any] | None = None) -> Any:
        return self.multiply(*self.quantize(x), task)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One kernel of a multiplier, for some task."""

    of: Multiplier
    family: Family
    compute: Compute
    tuning: Tuning

    @property
    def mapped(self) -> bool:
        return self.family.MAPPED and self.compute.task != Indexed.name

    def bound(self, rows: Any, scale: Any, lists: Lists, y: Any, m: int) -> Callable[[], None]:
        """rows: of x, or their map."""
        device, layer, family, tuning = self.of.device, self.of.layer, self.family, self.tuning
        source = kernel_source(family.NAME, layer, self.compute, tuning)
        tensors = (self.of.tensors.get(r) for r in ROLES)
        arguments: tuple[Any, ...] = (rows, *tensors, scale, lists.rows, lists.experts, lists.room, y, m)
        across = -(-layer.n // (family.tile_n(tuning) * tuning.cluster)) * tuning.cluster
        grid = (across * tuning.parts, lists.tiles)
        if family.PARTS:
            room = tuning.parts * sum_bytes(family.tile_n(tuning), tuning.tile_m)
            by_memory = tuning.parts > 1 and not tuning.joined
            arguments += device.part_sums(across * lists.tiles, room) if by_memory else (None, None)
        if family.MAPPED:
            arguments += (lists.tiles,)
            if tuning.goes_on:
                grid = (min(across * lists.tiles, resident(tuning)), 1)
        return device.bound(source, grid, tuning.threads, arguments, tuning.shared)


def _top_k(task: Task | NDArray[Any] | None) -> int:
    return task.top_k if isinstance(task, Indexed) else 1
