"""`verify --gpu`: the packed layers of a folder multiplied on a GPU and compared with float64, layer by layer.

In: a folder, perhaps its source, perhaps a sample.  Out: findings that name wrong layers, and a `gpu` section for each layer of the manifest.
The yardstick is the source's dequantized weights where a source is given and the layer lost nothing on the way; else the packed layer as
numpy reads it (reference.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from humming_convert.checkpoint import open_checkpoint
from humming_convert.checkpoint.reading import reader
from humming_convert.findings import Finding, Findings, Refused
from humming_convert.gemm.cache import build_all
from humming_convert.gemm.check import Checker, LayerCheck
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.families import PLAIN, Kernels, choose
from humming_convert.gemm.layer import UnknownLayer
from humming_convert.gemm.nvrtc import architecture
from humming_convert.gemm.rewrite import rewrite
from humming_convert.gemm.stored import StoredLayer, manifest_names, stored_layers
from humming_convert.gemm.tunings import Tunings, tunings_of
from humming_convert.manifest.read import read_manifest
from humming_convert.plan.build import make_plan
from humming_convert.plan.fingerprint import request_of
from humming_convert.plan.types import PlannedLayer
from humming_convert.standard.dequantize import dequantized
from humming_convert.standard.expr import Context, Weight
from humming_convert.standard.lossy import Meter

F64 = NDArray[np.float64]


@dataclass(slots=True)
class GpuVerification:
    """results: layers that were checked, with what stands in the manifest."""

    folder: Path
    device: Device
    findings: Findings = field(default_factory=Findings)
    results: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    left_out: int = 0

    @property
    def failed(self) -> bool:
        return bool(self.findings.errors)

    def document(self) -> dict[str, Any]:
        wrong = sum(not r["ok"] for r in self.results.values())
        worst = max((r["max_error"] for r in self.results.values()), default=0.0)
        return {
            "device": self.device.name,
            "sm": self.device.sm,
            "layers": len(self.results),
            "wrong": wrong,
            "left_out": self.left_out,
            "weights": sum(r["weights"] for r in self.results.values()),
            "max_error": worst,
            "findings": [f.as_dict() for f in self.findings],
        }

    def summary(self) -> str:
        d = self.document()
        state = "FAILED" if self.failed else "ok"
        return (
            f"{self.device.name}: {state}, {d['layers']} layers, {d['weights']} weights one by one, {d['wrong']} layers wrong, "
            f"{d['left_out']} left out, largest error of a product {d['max_error']:.1e} of the sum of magnitudes"
        )


def chosen(layers: list[StoredLayer], sample: float | None) -> list[StoredLayer]:
    """A share of the layers, spread over the model: the first and the last are among them."""
    if sample is None or sample >= 1 or not layers:
        return layers
    count = max(1, round(len(layers) * sample))
    return [layers[i] for i in sorted({int(i) for i in np.linspace(0, len(layers) - 1, count)})]


def verify_gpu(
    folder: Path,
    device: Device,
    *,
    source: Path | None = None,
    sample: float | None = None,
    kernels: Literal["plain", "chosen"] = "plain",
    record: bool = True,
    jobs: int | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> GpuVerification:
    """Checks a folder's packed layers. kernels: those of the referee, or those that `hc.load` chooses for each layer. Refused if the folder or the source cannot be read; CompileError, NoDevice from below."""
    found = GpuVerification(folder, device)
    every = list(stored_layers(folder))
    layers = chosen(every, sample)
    found.left_out = len(every) - len(layers)
    from_source = _source_weights(folder, source) if source is not None else {}
    checkers: list[tuple[StoredLayer, Checker]] = []
    tunings = tunings_of(folder, device.name, device.sm)
    for stored in layers:
        try:
            checkers.append(
                (stored, _checker(stored, device, from_source.get((stored.rank, stored.name)), tunings if kernels == "chosen" else None))
            )
        except UnknownLayer as unknown:
            found.findings.error("gpu-unknown-layer", f"the kernels cannot read this layer: {unknown}", layer=stored.name)
    wanted = {(s.name, s.generated): (s, architecture(device.sm)) for _, c in checkers for s in c.sources()}
    told(f"{len(wanted)} kernels for {len(checkers)} layers")
    build_all(device.cache, list(wanted.values()), jobs)
    for number, (stored, checker) in enumerate(checkers):
        checker.packed = stored.tensors()
        result = checker.check()
        checker.packed = {}
        _tell(found, stored, result, checker.family)
        told(f"[{number + 1}/{len(checkers)}] {stored.name}: {'ok' if result.ok else 'WRONG'}")
    if record:
        _record(found)
    return found


def _checker(stored: StoredLayer, device: Device, source: PlannedLayer | None, tunings: Tunings | None) -> Checker:
    """tunings: None for the referee's kernels."""
    layer = stored.layer
    compute = Compute.of(layer, stored.config, sm=device.sm, rounds=tunings is not None)
    family: Kernels = PLAIN if tunings is None else tunings.applied(choose(layer, compute, device.sm), layer, compute).kernels

    def weights(e: int) -> F64:
        if source is not None and not stored.entry["lossy"]:
            return _dequantized(source, e)
        return stored.reference(stored.tensors()).weights(e)

    def bias(e: int) -> F64:
        return stored.reference({r: x for r, x in stored.tensors().items() if r == "bias"}).bias(e)

    return Checker(device, layer, compute, {}, weights, bias, stored.given_scale(), family=family)


def _source_weights(folder: Path, source: Path) -> dict[tuple[int, str], PlannedLayer]:
    """(rank, layer) -> the layer as it was planned from the source."""
    findings = Findings()
    checkpoint = open_checkpoint(source, findings)
    if checkpoint is None:
        raise Refused(findings)
    out: dict[tuple[int, str], PlannedLayer] = {}
    for rank, name in enumerate(manifest_names(folder)):
        manifest = read_manifest(folder, name)
        plan = make_plan(checkpoint, request_of(manifest["options"]), reader("mmap"), findings)
        out |= {(rank, p.layer.name): p for p in plan.of_rank(rank)}
    return out


def _dequantized(planned: PlannedLayer, e: int) -> F64:
    """Weights of one expert of a planned layer, from the source's bytes."""
    layer, context = planned.layer, Context(read=reader("mmap"), meter=Meter())
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)
    small = {r: x.evaluate(context) for r, x in layer.tensors.items() if r not in ("weight", "bias", "input_scale", "input_scale_2")}
    if layer.experts is not None:
        small = {r: x[e : e + 1] if x.ndim == 1 else x[e] for r, x in small.items()}
    return dequantized(layer.form, weight.expert_codes(context, e), small, layer.stack_n, slice(0, layer.n))


def _tell(found: GpuVerification, stored: StoredLayer, result: LayerCheck, family: Kernels) -> None:
    for wrong in result.wrong:
        found.findings.add(
            Finding(
                severity="error",
                code="gpu-wrong-result",
                layer=stored.name,
                tensor=stored.entry["tensors"]["weight"]["name"],
                file=stored.entry["tensors"]["weight"]["file"],
                message=str(wrong),
                advice="convert this layer again and verify with --source; if it stays, report it",
                count=wrong.count,
            )
        )
    about = {"device": found.device.name, "sm": found.device.sm, "kernels": family.NAME}
    found.results[stored.rank, stored.name] = about | result.as_dict()


def _record(found: GpuVerification) -> None:
    """The `gpu` section of every checked layer, into its manifest."""

    def of_rank(rank: int) -> Iterator[tuple[str, dict[str, Any]]]:
        return ((name, r) for (n, name), r in found.results.items() if n == rank)

    for rank, name in enumerate(manifest_names(found.folder)):
        mine = dict(of_rank(rank))

        def change(manifest: dict[str, Any], mine: dict[str, dict[str, Any]] = mine) -> None:
            for layer in manifest["layers"]:
                if layer["name"] in mine:
                    layer["gpu"] = mine[layer["name"]]

        if mine:
            rewrite(found.folder, change, name)
