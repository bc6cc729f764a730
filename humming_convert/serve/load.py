"""`hc.load`: packed layers as callables, by the kernels of this package or by humming-kernels, each kind of layer checked once.

In: a folder, a device, a backend.  Out: a mapping from a layer's name to a layer. A layer goes to the GPU when it is asked for.
Facts: architecture.md 9.8, runtimes.md 3.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from humming_convert.findings import Refused
from humming_convert.gemm.check import as_float
from humming_convert.gemm.load import Loaded, LoadedLayer, load_folder
from humming_convert.gemm.sampled import tolerance
from humming_convert.gemm.stored import StoredLayer
from humming_convert.gemm.tasks import Dense, Indexed
from humming_convert.manifest.build import NAME
from humming_convert.serve.folder import PackedFolder
from humming_convert.serve.machine import key_of
from humming_convert.serve.refusals import refusal
from humming_convert.serve.self_check import F64, ROWS, Tolerance, self_check

Backend = Literal["core", "humming"]
BACKENDS: tuple[Backend, ...] = ("core", "humming")


class Layers(Protocol):
    """What a backend has: the stored layers of one rank by name, and each of them on the device."""

    @property
    def stored(self) -> Mapping[str, StoredLayer]: ...

    def __getitem__(self, name: str) -> Any: ...

    def product(self, name: str, bits: NDArray[np.uint16], experts: NDArray[np.int64] | None) -> F64:
        """A small product from the host and back."""
        ...

    def tolerance(self, name: str, rows: int) -> Tolerance:
        """Of a product of so many rows, of all experts, for which there may be other kernels than for fewer."""
        ...

    @property
    def sm(self) -> int: ...


@dataclass
class CoreLayers:
    """Kernels of this package: they read any layout on any GPU that has the instructions."""

    loaded: Loaded

    @property
    def stored(self) -> Mapping[str, StoredLayer]:
        return self.loaded.stored

    @property
    def sm(self) -> int:
        return self.loaded.device.sm

    def __getitem__(self, name: str) -> LoadedLayer:
        return self.loaded[name]

    def product(self, name: str, bits: NDArray[np.uint16], experts: NDArray[np.int64] | None) -> F64:
        device, layer = self.loaded.device, self.loaded[name]
        return as_float(device.get(layer(device.put(bits), experts)), layer.multiplier.layer.half).astype(np.float64)

    def tolerance(self, name: str, rows: int) -> Tolerance:
        multiplier = self.loaded[name].multiplier
        layer = multiplier.layer
        family, compute, _ = multiplier.made_by(rows, Indexed(np.zeros(rows, np.int64)) if layer.experts else Dense())
        return Tolerance(*tolerance(family, layer, compute))


@dataclass
class CheckedLayers(Mapping[str, Any]):
    """The layers of one rank, by name. The first layer of each configuration is checked when it is asked for (`check`)."""

    layers: Layers
    check: bool
    checked: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        layer = self.layers[name]
        stored = self.layers.stored[name]
        key = key_of(stored.entry)
        if self.check and key not in self.checked:
            allowed = self.layers.tolerance(name, ROWS)
            finding = self_check(stored, lambda bits, experts: self.layers.product(name, bits, experts), allowed, self.layers.sm)
            if finding is not None:
                raise Refused([finding])
            self.checked.add(key)
        return layer

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers.stored)

    def __len__(self) -> int:
        return len(self.layers.stored)


def load(folder: Path, index: int | None, rank: int, backend: Backend, check: bool) -> CheckedLayers:
    """index: number of the GPU, the current one if None.  rank: number of the manifest.  Refused, NoDevice from below."""
    ranks = PackedFolder.open(folder).rank_files
    if not 0 <= rank < len(ranks):
        raise Refused([refusal("no-rank", f"rank {rank} is asked for, the folder has {len(ranks)}", file=NAME)])
    if backend == "core":
        return CheckedLayers(CoreLayers(load_folder(folder, index, rank)), check)
    from humming_convert.serve.library_layers import open_library_layers

    return CheckedLayers(open_library_layers(folder, index, rank), check)
