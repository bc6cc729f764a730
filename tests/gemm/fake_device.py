"""A device that is none: it reads the generated configurations back and multiplies with the emulated headers, in float64.

So that checks, reports and planted errors are tested where there is no GPU.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from emulation import Emulation

from humming_convert.gemm import cluster_sm90a
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.check import DTYPES, as_float, as_numbers, operand_bits
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device, bits
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.quantize_any import in_numpy
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.tasks import LISTED, NOBODY, contiguous, masked


def read_back(generated: str, name: str, cls: type) -> Any:
    """A configuration from its struct."""
    body = re.search(rf"struct {name} {{\n(.*?)\n}};", generated, re.S)
    assert body is not None
    values: dict[str, Any] = {}
    for kind, field, value in re.findall(r"static constexpr (\S+) (\w+) = (.*);", body[1]):
        values[field] = {"int": int, "bool": "true".__eq__, "float": lambda v: float(v.rstrip("f"))}.get(
            kind, lambda v: v.rpartition("::")[2]
        )(value)
    return cls(**{f.name: values[f.name] for f in fields(cls)})


class FakeDevice(Device):
    def __init__(self, folder: Path) -> None:
        super().__init__(cupy=None, sm=90, name="emulated", cache=KernelCache(folder / "cache"))
        self.folder, self.emulations = folder, dict[Layer, Emulation]()

    shared_most = 227 * 1024  # of sm_90

    def put(self, array: Any) -> Any:
        x = np.ascontiguousarray(array)
        return x if x.dtype.isbuiltin == 1 else bits(x)

    def get(self, array: Any) -> Any:
        return array

    def filled(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)

    def fill(self, array: Any, byte: int) -> None:
        array.reshape(-1).view(np.uint8)[:] = byte

    def from_dlpack(self, x: Any) -> Any:
        return np.from_dlpack(x)

    def contiguous(self, x: Any) -> Any:
        return np.ascontiguousarray(x)

    def counts(self, counts: Any, experts: int) -> Any:
        return np.asarray(counts, np.int32)

    def rows_map(self, x: Any, box_rows: int) -> Any:
        return x

    def part_sums(self, tiles: int, each: int) -> Any:
        return np.zeros(tiles, np.int32), np.full(tiles * each, 0xFF, np.uint8)

    def workspace(self, shape: tuple[int, ...], like: Any) -> Any:
        return self.filled(shape, like.dtype.name)

    def gather_any(self, generated: str, x: Any, rows: Any, room: int, to: Any, slots: int) -> None:
        mine = np.flatnonzero(rows >= 0)
        to[mine] = x[rows[mine] // room]

    def bound(self, source: KernelSource, grid: Any, threads: int, arguments: Any, shared: int = 0) -> Any:
        return lambda: getattr(self, source.name)(source.generated, *arguments)

    def product_f64(self, generated: str, x: Any, w: Any, y: Any, magnitude: Any, m: int, n: int, k: int) -> None:
        y[:], magnitude[:] = x @ w.T, np.abs(x) @ np.abs(w).T

    def quantize_any(self, generated: str, x: Any, given: Any, q: Any, scale: Any, m: int) -> None:
        half = re.search(r"Half::(\w+)", generated)
        assert half is not None
        compute = read_back(generated, "Compute", Compute)
        numbers, scales = in_numpy(as_float(x, half[1]), compute, 1.0 if given is None else float(given[0]))
        q[:], scale[:] = operand_bits(numbers, compute.operand), scales

    def mma_any(self, generated: str, q: Any, *rest: Any, rounded: bool = False) -> None:
        *tensors, x_scale, rows, experts, room, y, m = rest
        layer, compute = read_back(generated, "Layer", Layer), read_back(generated, "Compute", Compute)
        if layer not in self.emulations:
            (self.folder / str(len(self.emulations))).mkdir()
            self.emulations[layer] = Emulation([layer], self.folder / str(len(self.emulations)))
        names = ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias")
        w, bias = self.emulations[layer](layer, {r: t for r, t in zip(names, tensors, strict=True) if t is not None})
        if rounded:
            w = w.astype(DTYPES[layer.half]).astype(w.dtype)
        if compute.task == "gathered":  # back to where they were
            whole = np.zeros((m // room, *q.shape[1:]), q.dtype)
            mine = np.flatnonzero(rows >= 0)
            whole[rows[mine] // room] = q[mine]
            q = whole
        x = as_numbers(q, compute.operand).astype(np.float64)
        if x_scale is not None:
            x = x * (np.repeat(x_scale, compute.act_group, axis=1)[:, : layer.k] if compute.act_group else x_scale)
        of_row = np.zeros(m, int)
        if compute.task in LISTED:
            tile = rows.size // max(1, experts.size)
            of_row[:] = -1
            of_row[rows[rows >= 0]] = np.repeat(experts, tile)[rows >= 0]
        elif compute.task == "contiguous":
            of_row = np.pad(contiguous(experts), (0, m - int(experts.sum())), constant_values=NOBODY)
        elif compute.task == "masked":
            of_row = masked(experts, room)
        for r in range(m):
            if of_row[r] >= 0:
                of_x = r // room if compute.task in LISTED else r
                sums = (w[of_row[r], : layer.n, : layer.k] @ x[of_x] + bias[of_row[r], : layer.n]).astype(np.float32)
                y[r] = sums if compute.output == "f32" else operand_bits(sums, compute.output)

    def mma_sm80(self, generated: str, *arguments: Any) -> None:
        *before, _arrived, _sums = arguments
        self.mma_any(generated, *before)

    wgmma_sm90a = mma_sm80

    def cluster_sm90a(self, generated: str, *arguments: Any) -> None:
        *before, _arrived, _sums, _tiles = arguments
        layer, compute = read_back(generated, "Layer", Layer), read_back(generated, "Compute", Compute)
        self.mma_any(generated, *before, rounded=cluster_sm90a.rounding(layer, compute) == "weights")
