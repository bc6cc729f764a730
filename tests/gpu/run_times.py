"""Times of the GEMM core: from nothing to a layer that is ready for every number of rows, from shipped kernels, and products.

    python tests/gpu/run_times.py [--quick]
    python tests/gpu/run_times.py --ready         # only until a layer is ready
    python tests/gpu/run_times.py --compile       # W4A16 kernels of sm_90a, compiled here, without a GPU

Layers of real sizes with random packed tensors: times do not depend on what the codes are. Compiling is cold: an empty cache, one process a
kernel. Products are medians of runs over several copies of the weights, which together are larger than the L2 cache, in a CUDA graph.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "layouts"), str(HERE.parent.parent)]

import numpy as np  # noqa: E402
from cases import Case, Spec  # noqa: E402

from humming_convert.gemm.cache import KernelCache, build_all, content_key  # noqa: E402
from humming_convert.gemm.check import random_rows  # noqa: E402
from humming_convert.gemm.device import Device, open_device  # noqa: E402
from humming_convert.gemm.families import FAMILIES, Family, choose  # noqa: E402
from humming_convert.gemm.multiplier import Multiplier, source_of, sources  # noqa: E402
from humming_convert.gemm.nvrtc import architecture, compile_cubin  # noqa: E402
from humming_convert.gemm.wgmma_sm90a import SIZES  # noqa: E402

LAYERS: dict[str, tuple[str, str, int, str, str, str]] = {
    "W4A16 g128": ("uint4", "group", 128, "", "none", "16"),
    "W4A16 g128 zero points": ("uint4", "group", 128, "", "int", "16"),
    "MXFP4 A16": ("float4e2m1", "group", 32, "float8e8m0", "none", "16"),
    "W4A8 fp8 g128": ("uint4", "group", 128, "", "none", "fp8"),
    "FP8 W8A8": ("float8e4m3", "channel", 0, "", "none", "fp8"),
    "INT8 W8A8": ("uint8", "channel", 0, "", "none", "int8"),
}
EVERY_M = SIZES


class Sized(Spec):
    """A layer of N x K instead of the small shapes of the checks."""

    where_to = (4096, 4096)

    @property
    def shape(self) -> tuple[int, int]:
        return self.where_to


class Unfilled(Device):
    """Results go to one place, which nothing fills first."""

    y: Any = None

    @classmethod
    def of(cls, device: Device) -> Unfilled:
        return cls(device.cupy, device.sm, device.name, device.cache, index=device.index)

    def filled(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.y if self.y is not None and self.y.shape == shape else super().filled(shape, dtype)


def case_of(row: tuple[str, str, int, str, str, str], n: int, k: int, sm: int) -> Case:
    weight, kind, group, dtype, zero, act = row
    spec = type("Sized", (Sized,), {"where_to": (n, k)})(90, False, "BF16", weight, kind, group, 0, dtype, zero, "none", act, 1)
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, sm)
    return replace(case, compute=replace(case.compute, output="bf16"))


def random_tensors(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    sizes = {"I32": 4, "BF16": 2, "F16": 2, "F32": 4}
    out = {}
    for role, (dtype, shape) in case.recipe.outputs.items():
        x = rng.integers(0, 256, (int(np.prod(shape)), sizes.get(dtype, 1)), np.uint8)
        if sizes.get(dtype, 1) == 2:
            x[:, 1] = 0x3C  # scales near 1, no NaN
        out[role] = x
    return out


def ready(row: tuple[str, str, int, str, str, str], families: list[Family], jobs: int) -> None:
    """What serving takes for any number of rows, and each family by itself."""
    device = open_device(KernelCache(Path(tempfile.mkdtemp())))
    arch = architecture(device.sm)
    case = case_of(row, 8192, 8192, device.sm)
    serving = replace(case.compute, rounds=True)
    chosen = choose(case.layer, serving, device.sm).kernels
    sets = {f"chosen ({chosen.NAME})": sources(case.layer, serving, chosen)}
    for family in families:
        if family.why_not(case.layer, case.compute, device.sm) is None:
            sets[family.NAME] = list(dict.fromkeys(source_of(family, case.layer, case.compute, m) for m in EVERY_M))
    for name, every in sets.items():
        device = open_device(KernelCache(Path(tempfile.mkdtemp())))
        one = []
        for source in every:
            start = time.perf_counter()
            KernelCache(Path(tempfile.mkdtemp())).get(source, arch)
            one.append(time.perf_counter() - start)
        start = time.perf_counter()
        paths = build_all(device.cache, [(s, arch) for s in every], jobs)
        for source in every:
            device.function(source)
        whole = time.perf_counter() - start
        shipped = open_device(KernelCache(Path(tempfile.mkdtemp()), {content_key(s, arch): p for s, p in zip(every, paths, strict=True)}))
        start = time.perf_counter()
        for source in every:
            shipped.function(source)
        print(
            f"{name}: {len(every)} kernels; one, cold: {min(one):.2f} to {max(one):.2f} s; all, cold, {jobs} processes: {whole:.2f} s; "
            f"shipped: {(time.perf_counter() - start) * 1000:.1f} ms"
        )


def compile_here() -> None:
    """Cold compiles of each size of tile for sm_90a, three times: seconds, and seconds of processor time."""
    case = case_of(LAYERS["W4A16 g128"], 8192, 8192, 90)
    for m in EVERY_M:
        source, times = source_of(FAMILIES[0], case.layer, case.compute, m), []
        for _ in range(3):
            start, cpu = time.perf_counter(), time.process_time()
            compile_cubin(source, "sm_90a")
            times.append(f"{time.perf_counter() - start:.2f} ({time.process_time() - cpu:.2f})")
        print(f"{source.name}, tile of {m} rows: {', '.join(times)} s")


def products(name: str, row: tuple[str, str, int, str, str, str], n: int, k: int, rows: tuple[int, ...], families: list[Family]) -> None:
    device = Unfilled.of(open_device())
    cupy, rng = device.cupy, np.random.default_rng(1)
    case = case_of(row, n, k, device.sm)
    packed = random_tensors(case, rng)
    copies = max(2, -(-200_000_000 // packed["weight"].nbytes))
    for family in families:
        if (reason := family.why_not(case.layer, case.compute, device.sm)) is not None:
            print(f"{name}: not for {family.NAME}: {reason}")
            continue
        layers = [Multiplier.of(device, case.layer, case.compute, packed, None, family) for _ in range(copies)]
        for m in rows:
            x = device.put(random_rows(m, k, "bf16", rng))
            q, scale = layers[0].quantize(x)
            device.y = cupy.empty((m, n), np.uint16)
            for layer in layers[:2]:
                layer.multiply(q, scale)
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture()
                for layer in layers:
                    layer.multiply(q, scale)
                graph = stream.end_capture()
                times = []
                for _ in range(7):
                    start, end = cupy.cuda.Event(), cupy.cuda.Event()
                    start.record(stream)
                    graph.launch(stream)
                    end.record(stream)
                    end.synchronize()
                    times.append(cupy.cuda.get_elapsed_time(start, end) * 1000 / copies)
            us = statistics.median(times)
            print(
                f"{name:24} {n} x {k} m {m:5} {family.NAME:12} {us:9.1f} us {2 * m * n * k / us / 1e6:7.1f} TFLOP/s {packed['weight'].nbytes / us / 1e3:7.1f} GB/s"
            )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ready", action="store_true")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--layers", default=",".join(LAYERS), help="names of these, with commas between")
    asked = parser.parse_args()
    if asked.compile:
        compile_here()
        return 0
    every = list(FAMILIES)
    layers = {name: LAYERS[name] for name in asked.layers.split(",")}
    for name, row in layers.items():
        print(name)
        ready(row, [] if asked.ready else every, asked.jobs)
        if asked.quick:
            break
    if asked.ready:
        return 0
    for name, row in layers.items():
        products(name, row, 8192, 8192, (1, 16, 64, 256, 4096), every if name == "W4A16 g128" else every[:1])
        if asked.quick:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
