"""Packed layers multiplied by humming-kernels: the stored configuration and bytes go to its `humming_forward` as they are.

In: a folder, a GPU.  Out: LibraryLayers; Refused where this machine would read the layers otherwise than they were written.
Facts: runtimes.md 3.6 (run on an H200), humming-kernels 0.1.20 (`forward`; grouped products take offsets or counts of rows).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.findings import Findings
from humming_convert.gemm import tasks
from humming_convert.gemm.device import NoDevice
from humming_convert.gemm.stored import StoredLayer, manifest_names, stored_layers
from humming_convert.manifest.read import read_manifest
from humming_convert.serve import library
from humming_convert.serve.machine import Machine, distinct, gpu_findings, library_findings
from humming_convert.serve.refusals import refusal
from humming_convert.serve.self_check import F64, Tolerance
from humming_convert.serve.torch_tensors import Placing

LOCKS = 8  # words a multiprocessor
TORCH = "python -m pip install torch, or humming-convert[torch]"
# scales are multiplied into 16-bit operands, and results are rounded; quantized activations may differ by a step from numpy's
A16, QUANTIZED = Tolerance(size=2.0**-8, result=2.0**-8), Tolerance(size=2.0**-7, result=2.0**-8)


@dataclass(frozen=True)
class LibraryLayer:
    """y = x * W^T + bias. n, k: without padding.  config: the library's LayerConfig."""

    name: str
    n: int
    k: int
    experts: int
    config: Any
    tensors: Mapping[str, Any]
    locks: Any

    def __call__(self, x: Any, task: Any = None) -> Any:
        """x: torch, [..., k] of the model dtype on the layer's GPU.  Out: [..., n] of the same type.

        task: as for the core's layers; counts of `tasks.Contiguous` and `tasks.Masked` may be tensors of the GPU. Rows that no expert
        multiplies are NaN.  ValueError for another type or width, or for experts without a task.
        """
        if x.dtype != self.config.param_dtype:
            raise ValueError(f"{self.name}: x is {x.dtype}, this layer wants {self.config.param_dtype}")
        if x.shape[-1] != self.k:
            raise ValueError(f"{self.name}: x has {x.shape[-1]} columns, this layer {self.k}")
        if bool(self.experts) != (task is not None):
            raise ValueError(f"{self.name}: {self.experts or 'no'} experts; task says which rows are whose, and is for experts alone")
        rows = x.reshape(-1, self.k).contiguous()
        y = self._dense(rows) if task is None else self._grouped(rows, task)
        return y.view(*x.shape[:-1], self.n)

    def _dense(self, rows: Any) -> Any:
        return self._forward(rows, {"gemm_type": "dense"})

    def _grouped(self, rows: Any, task: Any) -> Any:
        import torch

        nothing = rows.new_full((rows.shape[0], self.n), float("nan"))
        if isinstance(task, tasks.Masked):
            counts = torch.as_tensor(task.counts, device=rows.device).to(torch.int32)
            return self._forward(rows, {"gemm_type": "grouped_masked"}, expert_layout=counts, outputs=nothing)
        if isinstance(task, tasks.Contiguous):
            counts = torch.as_tensor(task.counts, device=rows.device).to(torch.int32)
            return self._contiguous(rows, counts, nothing)
        expert_of_row = torch.as_tensor(np.asarray(task), device=rows.device).to(torch.int64)
        order = torch.argsort(expert_of_row, stable=True)
        order = order[int((expert_of_row < 0).sum()) :]  # rows of nobody come first
        counts = torch.bincount(expert_of_row[order], minlength=self.experts).to(torch.int32)
        nothing[order] = self._contiguous(rows[order], counts, nothing.new_empty((order.numel(), self.n)))
        return nothing

    def _contiguous(self, rows: Any, counts: Any, outputs: Any) -> Any:
        offsets = counts.new_zeros(self.experts + 1)
        offsets[1:] = counts.cumsum(0)
        return self._forward(rows, {"gemm_type": "grouped_contiguous"}, expert_layout=offsets, outputs=outputs)

    def _forward(self, rows: Any, compute: Mapping[str, Any], **more: Any) -> Any:
        import torch
        from humming.forward import humming_forward

        wanted = {"use_batch_invariant": False, "use_f16_accum": False, **compute}
        with torch.cuda.device(rows.device):
            return humming_forward(
                self.config, inputs=rows, **self.tensors, locks=self.locks, compute_config=json.dumps(wanted), valid_shape_m=0, **more
            )


@dataclass
class LibraryLayers:
    """The layers of one rank on one GPU."""

    stored: Mapping[str, StoredLayer]
    device: Any
    machine: Machine
    placing: Placing
    locks: Any
    layers: dict[str, LibraryLayer] = field(default_factory=dict)

    @property
    def sm(self) -> int:
        assert self.machine.sm is not None
        return self.machine.sm

    def __getitem__(self, name: str) -> LibraryLayer:
        if name not in self.layers:
            stored = self.stored[name]
            config, experts = stored.config, int(stored.config["num_experts"])
            if experts and config["input_quant_mode"].startswith("static"):
                said = "the library takes one static input scale, the layer has one an expert"
                Findings([refusal("static-experts", said, layer=name)]).raise_errors()
            tensors = {role: self.placing.place(view) for role, view in stored.views.items()}
            n, k = (int(config[f"shape_{x}"]) - int(config[f"pad_shape_{x}"]) for x in "nk")
            self.layers[name] = LibraryLayer(name, n, k, experts, library.layer_config(stored.entry), tensors, self.locks)
        return self.layers[name]

    def product(self, name: str, bits: NDArray[np.uint16], experts: NDArray[np.int64] | None) -> F64:
        import torch

        layer = self[name]
        x = torch.from_numpy(bits.view(np.int16)).to(self.device).view(layer.config.param_dtype)
        y: F64 = layer(x, experts).to(torch.float64).cpu().numpy()
        return y

    def tolerance(self, name: str, rows: int) -> Tolerance:
        return A16 if self.stored[name].config["input_quant_mode"] == "none" else QUANTIZED


def open_library_layers(folder: Path, index: int | None, rank: int) -> LibraryLayers:
    """Refused where the GPU, the library or its reading differ; NoDevice where there is no torch or no GPU."""
    manifest = read_manifest(folder, manifest_names(folder)[rank])
    stored = {s.name: s for s in stored_layers(folder, rank)}
    findings = Findings(library_findings(manifest, Machine(sm=None, humming=library.installed_version())))
    findings.raise_errors()  # before it is imported
    device, machine, count = here(index)
    findings.extend(gpu_findings(manifest, machine))
    findings.raise_errors()
    for entry in distinct([s.entry for s in stored.values()]):
        findings.extend(library.differences(manifest, entry, machine))
    findings.raise_errors()
    import torch

    return LibraryLayers(stored, device, machine, Placing(device), torch.zeros(LOCKS * count, dtype=torch.int32, device=device))


def here(index: int | None) -> tuple[Any, Machine, int]:
    """(torch device, machine, multiprocessors) of a GPU."""
    try:
        import torch
    except ImportError as error:
        raise NoDevice(f"torch is not installed ({error})", TORCH) from None
    if not torch.cuda.is_available():
        raise NoDevice("torch sees no GPU", "install an NVIDIA driver and a torch for CUDA, or run this on the GPU machine")
    number = torch.cuda.current_device() if index is None else index
    properties = torch.cuda.get_device_properties(number)
    sm = 10 * properties.major + properties.minor
    machine = Machine(sm=sm, humming=library.installed_version(), compiler=library.compiler(), cubin_patch=library.cubin_patch())
    return torch.device("cuda", number), machine, int(properties.multi_processor_count)
