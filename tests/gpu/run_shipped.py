"""Kernels that a folder ships, loaded and run without a compiler, against the same layers compiled here.

    python tests/gpu/run_shipped.py OUT        (after `humming-convert kernels build OUT`)

Prints how long loading took; exit code 1 if a result differs or if a compiler was asked for.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from humming_convert.gemm import cache, nvrtc
from humming_convert.gemm.check import as_float, half_bits, random_rows
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device, open_device
from humming_convert.gemm.families import Choice, choose
from humming_convert.gemm.multiplier import Multiplier, sources
from humming_convert.gemm.shipped import archives, unpack
from humming_convert.gemm.stored import StoredLayer, stored_layers


def chosen(device: Device, stored: StoredLayer, output: str) -> tuple[Compute, Choice]:
    compute = Compute.of(stored.layer, stored.config, sm=device.sm, output=output)
    return compute, choose(stored.layer, compute, device.sm)


def results(device: Device, stored: StoredLayer, output: str) -> list[np.ndarray]:
    layer = stored.layer
    compute, choice = chosen(device, stored, output)
    multiplier = Multiplier.of(device, layer, compute, stored.tensors(), 0.1 if compute.wants_given_scale else None, choice.kernels)
    rng, out = np.random.default_rng(1), []
    for m in (1, 64):
        experts = rng.integers(0, layer.experts, m) if layer.experts else None
        out.append(device.get(multiplier(device.put(random_rows(m, layer.k, layer.half, rng)), experts)))
    return out


def main(folder: Path) -> int:
    layers = list(stored_layers(folder))
    compiled = {(s.rank, s.name): results(open_device(), s, "f32") for s in layers}
    device = open_device(cache.KernelCache(shipped=unpack(archives(folder)[0], cache.KernelCache())))

    def none() -> nvrtc.Compiler:
        raise AssertionError("a compiler was asked for")

    nvrtc.compiler = cache.compiler = none  # type: ignore[assignment]
    start, wrong = time.perf_counter(), 0
    for s in layers:
        compute, choice = chosen(device, s, s.layer.half)
        for source in sources(s.layer, compute, choice.kernels):
            device.function(source)
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    first = next(iter(layers))
    compute, choice = chosen(device, first, first.layer.half)
    again = open_device(cache.KernelCache(shipped=device.cache.shipped))
    for source in sources(first.layer, compute, choice.kernels):
        again.function(source)
    one = time.perf_counter() - start
    for s in layers:
        for have, wide in zip(results(device, s, s.layer.half), compiled[s.rank, s.name], strict=True):
            wrong += not np.array_equal(as_float(have, s.layer.half), as_float(half_bits(wide, s.layer.half), s.layer.half))
    print(
        f"{len(layers)} layers, {len(device.functions)} shipped kernels loaded in {loaded * 1000:.1f} ms, those of one layer in {one * 1000:.1f} ms, {wrong} results differ"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
