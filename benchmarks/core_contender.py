"""The GEMM core as a contender of a benchmark harness: the same codes, packed by this package, multiplied by the kernels that `hc.load` takes.

In: the harness's layers (torch tensors of the standard form) and activations (ready codes and scales).  Out: calls that launch nothing but the
core's kernels, one for each copy of the weights.
A call's arguments are worked out once, before any timing, as a serving loop would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from standard_layers import Wanted, pack_all

from humming_convert.gemm import tasks
from humming_convert.gemm.cache import build_all
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.families import Choice, choose
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.multiplier import Multiplier, source_of
from humming_convert.gemm.nvrtc import architecture
from humming_convert.layouts import PackedLayer, Standard
from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.numbers import number
from humming_convert.targets.activations import activation
from humming_convert.targets.table import target_of

CODES = {"e2m1": "float4e2m1", "e4m3": "float8e4m3"}  # others are integers of `bits`
SCALES = {"bf16": "bfloat16", "e8m0": "float8e8m0", "e4m3": "float8e4m3", "f32": "float32"}
NUMPY = {  # torch's name -> numpy's type, where numpy has none of its own
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
}
Call = Callable[[], None]


@dataclass
class Ready:
    """A layer of the harness, packed."""

    packed: PackedLayer
    layer: Layer
    compute: Compute
    choice: Choice
    equal: dict[str, bool] = field(default_factory=dict)  # role -> the library's bytes are the same


def weight_form(fmt: Any) -> WeightForm:
    """The form of a format of the harness."""
    kind = "block" if fmt.group_n > 1 else "group" if fmt.group else "channel"
    scale = ScaleForm(kind=kind, dtype=SCALES[fmt.scale], k=fmt.group, n=fmt.group_n if kind == "block" else 0)  # type: ignore[arg-type]
    return WeightForm(
        number=number(CODES.get(fmt.code, f"uint{fmt.bits}")),
        scale=scale,
        scale_2="tensor" if fmt.scale_2 else "none",
        zero_point="int" if fmt.code == "zp" else "none",
    )


def act_name(fmt: Any) -> str:
    return f"{fmt.act}:{fmt.act_group}" if fmt.act_group else str(fmt.act)


def to_numpy(x: Any) -> np.ndarray:
    """A tensor of torch; types that numpy lacks by their bits."""
    name = str(x.dtype).removeprefix("torch.")
    x = x.detach().contiguous().cpu()
    if name not in NUMPY:
        return np.asarray(x.numpy())
    import torch

    width = {1: torch.uint8, 2: torch.int16}[x.element_size()]
    return np.asarray(x.view(width).numpy()).view(NUMPY[name])


def standard(layer: Any) -> Standard:
    tensors = {role: to_numpy(x) for role, x in layer.tensors.items()}
    if "weight_scale_2" in tensors and not layer.experts:
        tensors["weight_scale_2"] = tensors["weight_scale_2"].reshape(1)
    return Standard(form=weight_form(layer.fmt), n=layer.n, k=layer.k, experts=layer.experts or None, tensors=tensors)


class Core:
    """`build` as the harness's contenders have it. bits: a tensor of torch as the device's array of unsigned integers."""

    name = "core"

    def __init__(self, device: Device, harness: Any, jobs: int) -> None:
        self.device, self.harness, self.jobs = device, harness, jobs
        self.ready: dict[int, Ready] = {}
        self.notes: dict[tuple[Any, ...], dict[str, Any]] = {}

    def formats(self) -> list[str]:
        return [name for name in self.harness.FORMATS if name not in ("bf16", "fp8_rowwise")]

    # -------------------------------------------------- before any timing
    def pack(self, layers: Iterable[Any]) -> None:
        target = target_of(self.device.sm, False)
        assert target is not None, self.device.sm
        mine = {str(id(x)): x for x in layers if x.fmt.name in self.formats()}
        wanted = {
            # the harness gives the library integers beside int8 as they are
            key: Wanted(standard(x), target, activation(act_name(x.fmt), "BF16"), e0m=x.fmt.act != "int8")
            for key, x in mine.items()
        }
        for key, packed in pack_all(wanted, self.jobs).items():
            config = packed.recipe.config.as_dict()
            layer = Layer.of(config, packed.recipe.flags)
            compute = Compute.of(layer, config, sm=self.device.sm, output=layer.half, rounds=True)
            self.ready[int(key)] = Ready(packed, layer, compute, choose(layer, compute, self.device.sm))

    def plan(self, jobs: Iterable[tuple[Any, Any, int]]) -> int:
        """Compiles the kernels of all (layer, moe, m); how many."""
        arch = architecture(self.device.sm)
        wanted = {}
        for layer, moe, m in jobs:
            r = self.ready[id(layer)]
            task = task_of(moe, None)
            rows = task.each(moe.rows, layer.experts) if moe else m
            source = source_of(r.choice.kernels, r.layer, r.compute, rows, task.name)
            wanted[source.name, source.generated] = (source, arch)
        build_all(self.device.cache, list(wanted.values()), self.jobs)
        return len(wanted)

    def compare(self, layer: Any, theirs: dict[str, Any]) -> dict[str, bool]:
        """Whether the library's packed tensors are the same bytes, by role. theirs: torch."""
        r = self.ready[id(layer)]
        for role, x in r.packed.tensors.items():
            mine = self.harness.torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(np.uint8)).to(self.harness.DEV)
            r.equal[role] = role in theirs and bool(self.harness.torch.equal(mine, _bytes(self.harness.torch, theirs[role])))
        return r.equal

    # -------------------------------------------------- one point
    def build(self, layer: Any, act: Any, m: int, moe: Any = None) -> tuple[list[Call], Any]:
        """(a call for each copy of the weights and each routing, the output of the first)."""
        torch, dev = self.harness.torch, self.harness.DEV
        r = self.ready[id(layer)]
        tensors = {
            role: torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(np.uint8)).to(dev) for role, x in r.packed.tensors.items()
        }
        nbytes = sum(x.numel() for x in tensors.values())
        count = moe.copies if moe else self.harness.copies_for(nbytes)
        rows = moe.rows if moe else m
        out = torch.empty((rows, layer.n), dtype=torch.bfloat16, device=dev)
        scale = None if act.scale is None else self.device.from_dlpack(act.scale)
        q = self.bits(act.data)
        y = self.bits(out)
        fitted = r.choice.kernels.fitted(r.layer, r.compute)
        calls: list[Call] = []
        for copy in range(count):
            mine = tensors if copy == 0 else {role: x.clone() for role, x in tensors.items()}
            arrays = {role: self.bits(x) for role, x in mine.items()}
            multiplier = Multiplier(self.device, r.layer, fitted, arrays, family=r.choice.kernels)
            calls += [self._call(multiplier.bound(q, scale, y, task_of(moe, ids)), mine) for ids in (moe.ids if moe else [None])]
        self._note(layer, multiplier, m, moe, rows)
        return calls, out

    def bits(self, x: Any) -> Any:
        """The same memory as unsigned integers of its width."""
        torch = self.harness.torch
        width = {1: (torch.uint8, "uint8"), 2: (torch.int16, "uint16")}[x.element_size()]
        return self.device.from_dlpack(x.view(width[0])).view(width[1])

    def _call(self, launch: Call, kept: Any) -> Call:
        """On torch's current stream. kept: what the launch points to."""
        torch, cupy = self.harness.torch, self.device.cupy

        def call(kept: Any = kept) -> None:
            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                launch()

        return call

    def _note(self, layer: Any, multiplier: Multiplier, m: int, moe: Any, rows: int) -> None:
        family, _, tuning = multiplier.made_by(rows, task_of(moe, None))
        kept = ("threads", "tile_m", "tile_k", "stages", "warps_k", "parts", "blocks", "share", "cluster", "joined", "goes_on")
        self.notes[layer.fmt.name, layer.n, layer.k, m, moe and moe.name] = {"family": family.NAME} | {x: getattr(tuning, x) for x in kept}


def _bytes(torch: Any, x: Any) -> Any:
    return x.contiguous().view(-1).view(torch.uint8)


def task_of(moe: Any, ids: Any) -> Any:
    """The task of a routing. ids: [m, top_k] experts; None where only its kind is asked for."""
    if moe is None:
        return tasks.Dense()
    flat = np.zeros(0, np.int32) if ids is None else ids.flatten().cpu().numpy()
    if moe.kind == "grouped":
        return tasks.Contiguous(np.bincount(flat, minlength=moe.experts).astype(np.int32))
    return tasks.Indexed(flat, moe.top_k)
