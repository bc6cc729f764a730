"""A run of `bench`: every kind of layer, every number of rows, every contender: checked, then timed.

In: a folder and a device.  Out: a Document; NoDevice, Refused, CompileError from below.
A contender that fails at a layer is named with the reason, and the others go on; a GPU that fails ends the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.bench.contenders import Case, Contender, Core
from humming_convert.bench.document import LIBRARY, SCALED, Document, LayerResult, Measured, Point
from humming_convert.bench.layers import Alike, act_words, alike, weight_words
from humming_convert.findings import Refused, counted
from humming_convert.gemm import read_floor
from humming_convert.gemm.cache import build_all
from humming_convert.gemm.device import Device, NoDevice
from humming_convert.gemm.load import Loaded, LoadedLayer, load_folder
from humming_convert.gemm.multiplier import ROLES, source_of
from humming_convert.gemm.nvrtc import CompileError, architecture, compiler
from humming_convert.gemm.sampled import Rows, Sample, random_activations, sample_of
from humming_convert.gemm.source import KernelSource, templates_digest
from humming_convert.gemm.timing import CupyGraphs, Graphs, copies_for, timed

SEED = 0x62656E
# what a contender that is not ours may raise; errors of the GPU itself are among RuntimeErrors and are told apart by their text
FAILURES = (RuntimeError, ValueError, TypeError, AssertionError, AttributeError, NotImplementedError, KeyError)
BROKEN = ("CUDA error", "CUDA_ERROR", "cudaError")


@dataclass
class Bench:
    """floor: bytes -> microseconds.  told: a line for people."""

    loaded: Loaded
    graphs: Graphs
    contenders: Sequence[Contender]
    floor: Callable[[int], float]
    cache_bytes: int
    told: Callable[[str], None] = lambda _: None

    def layer(self, found: Alike, rows: Sequence[int]) -> LayerResult:
        stored, layer = found.stored, self.loaded[found.stored.name]
        tensors, absent, points = stored.tensors(), dict[str, str](), []
        for m in rows:
            rng = np.random.default_rng((SEED, m))
            x = random_activations(layer.multiplier, m, rng)
            sample = sample_of(stored, tensors, layer.multiplier, x, rng)
            case = Case(stored, layer, x, needed(tensors, layer, x), self.cache_bytes)
            points.append(self._point(case, sample, absent))
            self.told(
                f"{stored.name}, {counted(m, 'row')}: {', '.join(f'{name} {c.us:.1f} us' for name, c in points[-1].contenders.items())}"
            )
        return LayerResult(
            name=stored.name,
            alike=found.count,
            weight=weight_words(stored),
            act=act_words(stored),
            n=layer.n,
            k=layer.k,
            experts=layer.experts,
            kernels=layer.choice.kernels.NAME,
            points=tuple(points),
            absent=absent,
        )

    def _point(self, case: Case, sample: Sample, absent: dict[str, str]) -> Point:
        found = {}
        for contender in self.contenders:
            reason = contender.why_not(case)
            if reason is None:
                try:
                    found[contender.name] = self._measure(contender, case, sample)
                except FAILURES as failure:
                    said = f"{type(failure).__name__}: {failure}"
                    if isinstance(contender, Core) or any(word in said for word in BROKEN):
                        raise
                    reason = f"at {counted(case.x.m, 'row')}: {said.splitlines()[0][:200]}"
            if reason is not None:
                absent.setdefault(contender.name, reason)
        return Point(rows=case.x.m, nbytes=case.nbytes, floor_us=self.floor(case.nbytes), contenders=found)

    def _measure(self, contender: Contender, case: Case, sample: Sample) -> Measured:
        prepared = contender.prepare(case)
        error = ok = None
        if prepared.y is not None:
            self.loaded.device.fill(prepared.y, 0xFF)  # NaN: what is not written shows
            self.graphs.run(prepared.calls[:1])
            error, ok = sample.error(prepared.y, self.loaded.device, case.half, prepared.allowed)
        times = timed(self.graphs, prepared.calls)
        known = error if error is not None and math.isfinite(error) else None
        return Measured(us=times.us, low=times.low, high=times.high, error=known, ok=ok, kernel=prepared.kernel)


def needed(tensors: dict[str, NDArray[Any]], layer: LoadedLayer, x: Rows) -> int:
    """Bytes of packed tensors that these rows meet."""
    whole = sum(t.nbytes for role, t in tensors.items() if role in ROLES)
    return whole * x.hit // max(1, layer.experts)


def floor_of(device: Device, graphs: Graphs) -> Callable[[int], float]:
    """Microseconds of reading so many bytes: the best shape of `read_floor`. Each number is measured once."""
    known: dict[int, float] = {}

    def floor(nbytes: int) -> float:
        if nbytes not in known:
            copies = copies_for(nbytes, device.cache_bytes)
            memory = device.filled((-(-nbytes // 16) * 16 * copies,), "uint8")
            device.fill(memory, 0x5A)  # not all bits: read_floor.cuh writes only for those
            known[nbytes] = min(timed(graphs, read_floor.calls(device, s, memory, nbytes, copies)).us for s in read_floor.SHAPES)
        return known[nbytes]

    return floor


def others(folder: Path, device: Device, rank: int) -> tuple[Graphs, list[Contender], dict[str, str]]:
    """(graphs, contenders beside the core, who is absent and why)."""
    from humming_convert.bench.cupy_side import CupyBlas

    try:
        import torch
    except ImportError as error:
        why = f"torch is not installed ({error})"
        return CupyGraphs(device), [CupyBlas(device)], {SCALED: why, LIBRARY: why}
    from humming_convert.bench.torch_side import ScaledMm, TorchBlas, TorchGraphs

    found: list[Contender] = [TorchBlas(torch), ScaledMm(torch, device.sm)]
    try:
        found.append(library_of(torch, folder, device, rank))
    except (Refused, NoDevice, ImportError) as error:
        return TorchGraphs(torch, device), found, {LIBRARY: str(error).splitlines()[0]}
    return TorchGraphs(torch, device), found, {}


def library_of(torch: Any, folder: Path, device: Device, rank: int) -> Contender:
    """Refused, NoDevice or ImportError where it cannot read this folder here."""
    from humming_convert.bench.library import Library
    from humming_convert.serve.library_layers import open_library_layers

    return Library(torch, open_library_layers(folder, device.index, rank))


def sources(found: Sequence[Alike], rows: Sequence[int], loaded: Loaded) -> list[KernelSource]:
    """Every kernel of the core that a run needs."""
    out = []
    for kind in found:
        layer, compute, choice = loaded.configured(kind.stored)
        task = "contiguous" if layer.experts else "dense"
        out += [source_of(choice.kernels, layer, compute, -(-m // max(1, layer.experts)), task) for m in rows]
    return list(dict.fromkeys(out))


def run(
    folder: Path,
    rows: Sequence[int],
    pattern: str = "*",
    *,
    rank: int = 0,
    jobs: int | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Document:
    """Measures the layers of one rank on the current GPU."""
    loaded = load_folder(folder, rank=rank)
    device = loaded.device
    found = alike(loaded.stored.values(), pattern)
    wanted = sources(found, rows, loaded)
    told(f"{device.name}: {counted(len(found), 'kind of layers', 'kinds of layers')}, {counted(len(wanted), 'kernel')}")
    build_all(device.cache, [(s, architecture(device.sm)) for s in wanted], jobs)
    graphs, beside, absent = others(folder, device, rank)
    contenders: list[Contender] = [Core(), *beside]
    bench = Bench(loaded, graphs, contenders, floor_of(device, graphs), device.cache_bytes, told)
    try:
        layers = tuple(bench.layer(kind, rows) for kind in found)
    except device.errors as error:
        raise NoDevice(
            f"the GPU failed: {error}", "run it again; `humming-convert verify OUT --gpu` says whether its products are right"
        ) from None
    return Document(
        device=device.name,
        sm=device.sm,
        multiprocessors=device.multiprocessors,
        compiler=compiler_version(),
        templates=templates_digest(),
        tuning=loaded.tunings.words,
        contenders={c.name: c.how for c in contenders},
        absent=absent,
        layers=layers,
    )


def compiler_version() -> str:
    try:
        return ".".join(map(str, compiler().version))
    except CompileError:
        return "none: shipped kernels"
