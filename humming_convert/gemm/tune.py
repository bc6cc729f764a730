"""`tune`: candidate tunings measured on the GPU at hand, for every kind of layer of a folder and every range of rows.

In: a folder and a device.  Out: Found, and the winners in the folder's tuning file.
The heuristics' choice is checked against float64, every candidate against the heuristics' results: bit by bit where sums are made in the same
order, else within rounding. A candidate that is wrong is named and never wins; one that is not clearly quicker twice does not either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.findings import Findings
from humming_convert.gemm.cache import build_each
from humming_convert.gemm.check import HALF_STEP, as_float
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.families import ByRows, Family, Fixed, Tuned
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.load import Loaded, load_folder
from humming_convert.gemm.multiplier import BYTES, ROLES, Multiplier
from humming_convert.gemm.nvrtc import CompileError, architecture, compiler
from humming_convert.gemm.rewrite import put_file
from humming_convert.gemm.sampled import Rows, ends, random_activations, sample_of, tolerance
from humming_convert.gemm.source import KernelSource, kernel_source, templates_digest
from humming_convert.gemm.stored import StoredLayer
from humming_convert.gemm.timing import Graphs, Times, copies_for, timed
from humming_convert.gemm.tunings import bounds_of, fields_of, key_of, measured_at, offered, tuning_file, why_not
from humming_convert.manifest.tuning import TunedDevice, TunedLayer, TunedRange, TuningFile, encode, file_name

SEED = 0x74756E65
CLEARLY = 1.02  # times as quick as the heuristics' choice, or it stays
COMPARED = 64  # rows of a result
MOST_BYTES = 1 << 30  # of activations


@dataclass(frozen=True, slots=True)
class RangeFound:
    """up_to: None for the open range.  rows: an expert, of the measurement.  heuristic, best: microseconds.  exact: candidates whose results
    have to be the heuristics' bit for bit."""

    up_to: int | None
    rows: int
    winner: Fixed
    heuristic: float
    best: float
    candidates: int
    exact: int

    @property
    def changed(self) -> bool:
        return self.best < self.heuristic

    def as_dict(self) -> dict[str, Any]:
        about = {"up_to": self.up_to, "family": self.winner.NAME, "tuning": fields_of(self.winner.chosen), "candidates": self.candidates}
        return about | {"heuristic_us": self.heuristic, "best_us": self.best}


@dataclass(slots=True)
class LayerFound:
    name: str
    alike: int
    key: str
    ranges: list[RangeFound] = field(default_factory=list)

    def entry(self) -> TunedLayer:
        def of(r: RangeFound) -> TunedRange:
            return TunedRange(up_to=r.up_to, family=r.winner.NAME, tuning=fields_of(r.winner.chosen))

        return TunedLayer(key=self.key, name=self.name, ranges=tuple(of(r) for r in self.ranges))


@dataclass(slots=True)
class Tuner:
    """Measures one kind of layer after the other."""

    device: Device
    graphs: Graphs
    cache_bytes: int
    findings: Findings = field(default_factory=Findings)
    told: Callable[[str], None] = lambda _: None
    jobs: int | None = None

    def layer(self, stored: StoredLayer, multiplier: Multiplier, kernels: Family | ByRows, alike: int) -> LayerFound:
        """multiplier: of the heuristics, on the device."""
        layer, compute = multiplier.layer, multiplier.compute
        found = LayerFound(stored.name, alike, key_of(layer, compute))
        bounds = (*bounds_of(kernels), None)
        every = [self._offered(kernels, layer, compute, rows, b) for rows, b in zip(measured_at(kernels), bounds, strict=True)]
        arch = architecture(self.device.sm)
        wanted = list(dict.fromkeys(source_of(multiplier, f) for candidates in every for f in candidates))
        built = build_each(self.device.cache, [(s, arch) for s in wanted], self.jobs)
        missing = {s: e for s, e in zip(wanted, built, strict=True) if isinstance(e, CompileError)}
        every = [self._compiled(stored, multiplier, candidates, missing) for candidates in every]
        self.told(f"{stored.name}: {len(wanted) - len(missing)} kernels")
        tensors = stored.tensors()
        for rows, up_to, candidates in zip(measured_at(kernels), bounds, every, strict=True):
            found.ranges.append(self._range(stored, tensors, multiplier, candidates, rows, up_to))
            self.told(words(stored.name, found.ranges[-1]))
        return found

    def _offered(self, kernels: Family | ByRows, layer: Layer, compute: Compute, rows: int, up_to: int | None) -> tuple[Fixed, ...]:
        """What this GPU has the shared memory for; the heuristics' choice always, whose launch says so."""
        first, *others = offered(kernels, layer, compute, rows, beyond=up_to is None)
        return (first, *(f for f in others if f.chosen.shared <= self.device.shared_most))

    def _compiled(
        self, stored: StoredLayer, multiplier: Multiplier, candidates: tuple[Fixed, ...], missing: Mapping[KernelSource, CompileError]
    ) -> tuple[Fixed, ...]:
        """Those that have a kernel; CompileError where the heuristics' choice has none, which loading would ask for."""
        found = []
        for candidate in candidates:
            error = missing.get(source_of(multiplier, candidate))
            if error is None:
                found.append(candidate)
            elif candidate == candidates[0]:
                raise error
            else:
                said = f"{candidate.NAME} {candidate.chosen} does not compile and is left out: {str(error).splitlines()[0]}"
                self.findings.warning("tune-no-kernel", said, layer=stored.name, advice="nothing is lost; report it")
        return tuple(found)

    def _range(
        self,
        stored: StoredLayer,
        tensors: dict[str, NDArray[Any]],
        multiplier: Multiplier,
        candidates: tuple[Fixed, ...],
        rows: int,
        up_to: int | None,
    ) -> RangeFound:
        layer = multiplier.layer
        rng = np.random.default_rng((SEED, rows))
        m = min(rows * max(1, layer.experts), max(rows, MOST_BYTES // (2 * layer.k)))
        x = random_activations(multiplier, m, rng)
        y = self.device.filled((x.m, layer.n), BYTES[multiplier.compute.output])
        copies = self._copies(multiplier, tensors, x)
        first = candidates[0]
        self._run(copies, first, x, y)
        error, right = sample_of(stored, tensors, multiplier, x, rng).error(
            y, self.device, layer.half, tolerance(first, layer, multiplier.compute)
        )
        if not right:
            said = f"{rows} rows by {first.NAME}: {error:.1e} of the sum of magnitudes off; nothing is tuned for them"
            self._wrong(stored, said)
            return RangeFound(up_to, rows, first, 1.0, 1.0, 1, 0)
        want = self._results(y)
        times, exact = {first: self._time(copies, first, x, y).us}, 0
        for candidate in candidates[1:]:
            same_order = order_of(candidate) == order_of(first)
            exact += same_order
            self._run(copies, candidate, x, y)
            if (other := differs(want, self._results(y), multiplier, (first, candidate), same_order)) is not None:
                self._wrong(stored, f"{rows} rows by {candidate.NAME} {candidate.chosen}: {other}")
                continue
            times[candidate] = self._time(copies, candidate, x, y).us
        best = min(times, key=lambda f: times[f])
        before, after = times[first], times[best]
        if best != first and before > CLEARLY * after:  # again, in the other order
            after, before = max(after, self._time(copies, best, x, y).us), min(before, self._time(copies, first, x, y).us)
        if before <= CLEARLY * after:
            best, after = first, before
        return RangeFound(up_to, rows, best, before, after, len(candidates), exact)

    def _copies(self, multiplier: Multiplier, tensors: dict[str, NDArray[Any]], x: Rows) -> list[Multiplier]:
        whole = sum(t.nbytes for role, t in tensors.items() if role in ROLES)
        count = copies_for(whole * x.hit // max(1, multiplier.layer.experts), self.cache_bytes)
        more = [{role: t.copy() for role, t in multiplier.tensors.items()} for _ in range(count - 1)]
        return [multiplier, *(replace(multiplier, tensors=t) for t in more)]

    def _bound(self, copies: Sequence[Multiplier], kernels: Fixed, x: Rows, y: Any) -> list[Callable[[], None]]:
        return [replace(one, family=kernels).bound(x.q, x.scale, y, x.task) for one in copies]

    def _run(self, copies: Sequence[Multiplier], kernels: Fixed, x: Rows, y: Any) -> None:
        self.device.fill(y, 0xFF)  # NaN: what is not written shows
        self.graphs.run(self._bound(copies[:1], kernels, x, y))

    def _time(self, copies: Sequence[Multiplier], kernels: Fixed, x: Rows, y: Any) -> Times:
        return timed(self.graphs, self._bound(copies, kernels, x, y))

    def _results(self, y: Any) -> NDArray[np.uint16]:
        return np.stack([self.device.get(y[int(r)]) for r in ends(y.shape[0], COMPARED)])

    def _wrong(self, stored: StoredLayer, said: str) -> None:
        advice = "report it; `humming-convert verify OUT --gpu --kernels chosen` checks what loading would take"
        self.findings.error("tune-wrong-result", said, layer=stored.name, advice=advice)


def source_of(multiplier: Multiplier, fixed: Fixed) -> KernelSource:
    task = "contiguous" if multiplier.layer.experts else "dense"
    return kernel_source(fixed.NAME, multiplier.layer, replace(multiplier.compute, task=task), fixed.chosen)


def order_of(fixed: Fixed) -> tuple[object, ...]:
    """What decides the order in which a result's products are added up."""
    t = fixed.chosen
    return fixed.NAME, t.tile_k, t.warps_k, t.steps, t.parts


def differs(
    want: NDArray[np.uint16], got: NDArray[np.uint16], multiplier: Multiplier, by: tuple[Family, Family], same_order: bool
) -> str | None:
    """How results differ by more than they may. by: who made which.  same_order: they may not at all."""
    if np.array_equal(want, got):
        return None
    count = int((want != got).sum())
    if same_order:
        return f"{count} of {want.size} results are not the same bits, though their sums are made in the same order"
    half = multiplier.layer.half
    a, b = as_float(want, half).astype(np.float64), as_float(got, half).astype(np.float64)
    size = np.sqrt(multiplier.layer.k * np.mean(a * a, axis=1, keepdims=True))  # about the sum of magnitudes of random rows
    share = sum(tolerance(family, multiplier.layer, multiplier.compute)[0] for family in by)
    allowed = 2 * HALF_STEP[half] * np.abs(a) + share * size
    off = ~(np.abs(a - b) <= allowed)
    return f"{int(off.sum())} of {want.size} results differ by more than rounding" if off.any() else None


def words(name: str, r: RangeFound) -> str:
    rows = f"more than {r.rows // 4}" if r.up_to is None else f"up to {r.up_to}"
    t = r.winner.chosen
    what = f"{r.winner.NAME}, {t.tile_m} rows, {t.parts} parts, {t.blocks} blocks"
    gain = f"{r.heuristic:.1f} -> {r.best:.1f} us: {what}" if r.changed else f"{r.heuristic:.1f} us: the heuristics' {what}"
    return f"{name}, {rows} rows: {gain} ({r.candidates} measured)"


@dataclass(frozen=True, slots=True)
class TuneResult:
    path: Path
    device: str
    layers: list[LayerFound]
    findings: Findings

    def as_dict(self) -> dict[str, Any]:
        """With the times, which the file has not."""
        layers = [{"name": x.name, "alike": x.alike, "ranges": [r.as_dict() for r in x.ranges]} for x in self.layers]
        return {"file": self.path.name, "device": self.device, "layers": layers}


def kinds(loaded: Loaded, pattern: str) -> dict[str, list[str]]:
    """Names of layers by key; UnknownLayer where no kernel reads one. Refused if no name matches the pattern."""
    out: dict[str, list[str]] = {}
    for name, stored in loaded.stored.items():
        if fnmatchcase(name, pattern):
            layer, compute, choice = loaded.configured(stored)
            out.setdefault(key_of(layer, choice.kernels.fitted(layer, compute)), []).append(name)
    if not out:
        findings = Findings()
        findings.error("selection-empty", f"no packed layer is called {pattern}", advice="`humming-convert kernels list OUT` names them")
        findings.raise_errors()
    return out


def tune(
    folder: Path,
    graphs_of: Callable[[Device], Graphs],
    *,
    pattern: str = "*",
    rank: int = 0,
    jobs: int | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> TuneResult:
    """Measures on the current GPU and writes the winners. Layers that the pattern leaves out keep what was found for them before, if it still holds.

    Refused, NoDevice, CompileError from below.
    """
    loaded = load_folder(folder, rank=rank, tuned=False)
    device = loaded.device
    tuner = Tuner(device, graphs_of(device), device.cache_bytes, told=told, jobs=jobs)
    found = []
    for names in kinds(loaded, pattern).values():
        one = loaded[names[0]]
        kernels = one.choice.kernels
        assert not isinstance(kernels, Tuned)  # it was loaded without
        found.append(tuner.layer(loaded.stored[names[0]], one.multiplier, kernels, len(names)))
    path = write(folder, device, found)
    return TuneResult(path, device.name, found, tuner.findings)


def write(folder: Path, device: Device, found: Sequence[LayerFound]) -> Path:
    """The winners into the folder's file, and the file into its manifest."""
    arch = architecture(device.sm)
    try:
        file = tuning_file(folder, device.sm) or TuningFile(arch=arch, devices=())
    except ValueError:  # a damaged one is made anew
        file = TuningFile(arch=arch, devices=())
    before = file.device(device.name)
    layers = {x.key: x for x in before.layers} if before is not None and why_not(before, device.sm) is None else {}
    layers |= {x.key: x.entry() for x in found}
    version = ".".join(map(str, compiler().version))
    entry = TunedDevice(
        name=device.name,
        sm=device.sm,
        compiler=version,
        templates=templates_digest(),
        layers=tuple(layers[key] for key in sorted(layers)),
    )
    path = folder / file_name(arch)
    put_file(path, encode(file.with_device(entry)))
    return path
