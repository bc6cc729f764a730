"""`hc.load`: the layers of a packed folder as callables on a GPU, by the kernels that the folder ships where it has them.

In: a folder and a device.  Out: `Loaded`, a mapping from a layer's name to a `LoadedLayer`; a layer's tensors go to the device when it is asked for.
Facts: architecture.md 9.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from humming_convert.gemm import torch_arrays
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device, open_device
from humming_convert.gemm.families import Choice, choose
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.multiplier import Multiplier
from humming_convert.gemm.nvrtc import architecture
from humming_convert.gemm.shipped import archive_name, unpack
from humming_convert.gemm.stored import StoredLayer, stored_layers
from humming_convert.gemm.tasks import Task
from humming_convert.gemm.tunings import LOG, Tunings, tunings_of

# 16-bit numbers of x, by the layer's type; bits are taken as they are
TAKEN = {"f16": ("float16", "uint16"), "bf16": ("bfloat16", "uint16")}


@dataclass(frozen=True, slots=True)
class LoadedLayer:
    """y = x * W^T + bias. n, k: without padding.  choice: the kernel family, and why faster ones were not taken."""

    name: str
    n: int
    k: int
    experts: int
    choice: Choice
    multiplier: Multiplier

    def __call__(self, x: Any, task: Task | NDArray[Any] | None = None) -> Any:
        """x: [..., k] of the model dtype on the device (float16, bfloat16, or its bits as uint16), of CuPy or torch.  Out: [..., n], as x;
        with a task of top_k, top_k rows for each of x.

        task: with experts, where x is [m, k]: the expert of each row, on the host, `tasks.Indexed` for several experts a row, or
        `tasks.Contiguous`, `tasks.Masked` with counts on the device. Rows that no expert multiplies are NaN.  ValueError for another type or width, or for experts without a task.
        """
        if torch_arrays.is_torch(x):
            return torch_arrays.back(self(torch_arrays.bits(self.multiplier.device, x), task), x)
        device, half = self.multiplier.device, self.multiplier.layer.half
        if x.dtype.name not in TAKEN[half]:
            raise ValueError(f"{self.name}: x is {x.dtype.name}, this layer wants {TAKEN[half][0]}")
        if x.shape[-1] != self.k:
            raise ValueError(f"{self.name}: x has {x.shape[-1]} columns, this layer {self.k}")
        if bool(self.experts) != (task is not None):
            raise ValueError(f"{self.name}: {self.experts or 'no'} experts; task says which rows are whose, and is for experts alone")
        rows = device.contiguous(x).reshape(-1, self.k).view("uint16")
        y = self.multiplier(rows, task)
        return y.view(x.dtype).reshape(y.shape if self.experts else (*x.shape[:-1], self.n))


@dataclass(slots=True)
class Loaded(Mapping[str, LoadedLayer]):
    """The layers of one rank, by name. tunings: measured ones, or why there are none."""

    device: Device
    stored: dict[str, StoredLayer]
    layers: dict[str, LoadedLayer] = field(default_factory=dict)
    tunings: Tunings = field(default_factory=lambda: Tunings("heuristics"))

    def __getitem__(self, name: str) -> LoadedLayer:
        if name not in self.layers:
            self.layers[name] = self._on_device(self.stored[name])
        return self.layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def configured(self, stored: StoredLayer) -> tuple[Layer, Compute, Choice]:
        """What multiplies a layer here, before anything is on the device. UnknownLayer where no kernel reads it."""
        layer = stored.layer
        compute = Compute.of(layer, stored.config, sm=self.device.sm, output=layer.half, rounds=True)
        return layer, compute, self.tunings.applied(choose(layer, compute, self.device.sm), layer, compute)

    def _on_device(self, stored: StoredLayer) -> LoadedLayer:
        layer, compute, choice = self.configured(stored)
        given = stored.given_scale() if compute.wants_given_scale else None
        multiplier = Multiplier.of(self.device, layer, compute, stored.tensors(), given, choice.kernels)
        return LoadedLayer(stored.name, layer.n, layer.k, layer.experts, choice, multiplier)


def load_folder(folder: Path, index: int | None = None, rank: int = 0, tuned: bool = True) -> Loaded:
    """index: number of the GPU, the current one if None.  rank: the manifest, where there are several.  tuned: take the folder's tunings.
    Refused, NoDevice from below."""
    stored = {s.name: s for s in stored_layers(folder, rank)}
    device = open_device(index=index)
    archive = folder / archive_name(architecture(device.sm))
    if archive.exists():
        device.cache.shipped.update(unpack(archive, KernelCache()))
    tunings = tunings_of(folder, device.name, device.sm) if tuned else Tunings("heuristics")
    if tunings.idle:
        LOG.warning("%s: %s", folder, tunings.words)
    return Loaded(device, stored, tunings=tunings)
