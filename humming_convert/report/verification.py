"""The page of `verify`: whether a folder is whole, what its proof says of each layer, and what the GPU said of it.

In: the manifests of a folder, and what was checked.  Out: a Report. Results of an earlier `verify --gpu` stand in the manifest.
Facts: architecture.md 9.5, 9.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint.tensors import DTYPES
from humming_convert.findings import Finding, counted
from humming_convert.plan.size import size
from humming_convert.report.marks import percent
from humming_convert.report.types import Cell, Layer, Map, Mark, Report, Table, Verdict, View
from humming_convert.standard.lossy import STEPS
from humming_convert.standard.numbers import number

Manifest = Mapping[str, Any]
Manifests = Sequence[tuple[int, Manifest]]
"""(number of the rank, its full manifest): ranks as `verify --gpu` counts them."""
GpuResults = Mapping[tuple[int, str], Mapping[str, Any]]
"""(number of the rank, layer) -> what `verify --gpu` found."""


GPU = "gpu-"  # codes of findings of `verify --gpu` begin so


class Checked(Struct, frozen=True, kw_only=True):
    """What a run of `verify` did. counts: what was looked at and how often.  proven: every layer was compared with the source.

    gpu: results of this run; those of earlier runs stand in the manifest.  unread: files that are missing, have a wrong header or may not be read.
    """

    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    gpu: GpuResults
    unread: frozenset[str] = frozenset()

    @property
    def proven(self) -> bool:
        return "layers proven" in self.counts

    @property
    def errors(self) -> int:
        return sum(f.severity == "error" for f in self.findings)


def report_verification(folder: Path, manifests: Manifests, checked: Checked) -> Report:
    """manifests: with layers, one a rank; none if they cannot be read."""
    layers = _map(manifests, checked)
    wrong = sum(any(v.mark == "failed" for v in x.verdicts) for x in layers.layers)
    failed = bool(checked.errors)
    packed = sum(v.verdicts[0].nbytes or 0 for v in layers.layers)
    facts = [
        ("layers", str(len(layers.layers))),
        *((what if what.endswith("proven") else f"{what} checked", str(count)) for what, count in checked.counts.items()),
    ]
    if layers.layers:
        facts += [("quantized tensors", size(packed)), ("padding", _padding(layers.layers))]
    findings = [("Findings of this check", checked.findings)]
    if manifests:
        findings.append(("Findings of the conversion", tuple(Finding(**f) for f in manifests[0][1]["findings"])))
    return Report(
        title=f"{folder.name}: verification failed" if failed else f"{folder.name}: verified",
        state=_state(checked, wrong),
        facts=facts,
        about=_about(manifests[0][1]) if manifests else [("folder", folder.name)],
        tables=[t for t in (_lossy(manifests), _gpu(layers, manifests, checked), _dequantized(manifests)) if t is not None],
        findings=findings,
        layers=layers,
    )


def _state(checked: Checked, wrong: int) -> Cell:
    """wrong: layers that failed a check, also one of an earlier run that the manifest holds; each has an error among the findings."""
    if checked.errors:
        errors = counted(checked.errors, "error")
        return Cell("failed", f"failed: {errors}, {counted(wrong, 'layer')} wrong; see the findings and the layers")
    gpu = f"; {counted(len(checked.gpu), 'layer')} multiplied on a GPU" if checked.gpu else ""
    if checked.proven:
        return Cell("proven", f"every byte is as written, and every layer was compared with the source{gpu}")
    return Cell("whole", f"every byte is as written; the proof is that of the conversion (--source repeats it){gpu}")


def _about(m: Manifest) -> list[tuple[str, str]]:
    source, target = m["source"], m.get("target")
    revision = f", revision {source['revision']}" if source["revision"] else ""
    out = [("source", f"{source['name']}{revision} ({', '.join(source['families'])})")]
    out.append(("made for", f"{target['name']}, activation {m['act']}" if target is not None else "the Humming standard form"))
    parallel = m["parallel"]
    if (parallel["tp_size"], parallel["ep_size"]) != (1, 1):
        out.append(("ranks", f"tp {parallel['tp_size']}, ep {parallel['ep_size']}"))
    out.append(("humming-kernels", f"{m['humming']['version']}; the same is read by {', '.join(m['humming']['accepted'])}"))
    out.append(("made by", f"{m['tool']['name']} {m['tool']['version']}"))
    return [*out, ("model dtype", m["dtype"]), ("fingerprint", m["fingerprint"])]


# ------------------------------------------------------------------ the map
def _map(manifests: Manifests, checked: Checked) -> Map:
    wrong: dict[str, list[Finding]] = {}
    for f in checked.findings:
        if f.severity == "error" and f.layer is not None:
            wrong.setdefault(f.layer, []).append(f)
    layers: list[Layer] = []
    any_gpu = False
    for rank, m in manifests:
        for entry in m["layers"]:
            found = checked.gpu.get((rank, entry["name"])) or entry.get("gpu")
            any_gpu |= found is not None
            mine = _of(entry, wrong.get(entry["name"], ()))
            verdicts = (_proof(entry, mine, checked), _on_gpu(entry, mine, found))
            layers.append(_layer(entry, verdicts, f"rank {rank}" if len(manifests) > 1 else ""))
    views = (View("proof", ""), View("GPU", ""))
    return Map(axes=("check", ""), views=views if any_gpu else views[:1], layers=tuple(x if any_gpu else x.first(1) for x in layers))


def _layer(entry: Mapping[str, Any], verdicts: tuple[Verdict, ...], rank: str) -> Layer:
    shape, weight = entry["shape"], entry["weight"]
    return Layer(
        name=entry["name"],
        source=f"{entry['family']}: {_form(weight)}",
        bits=number(weight["dtype"]).bits,
        n=shape["n"],
        k=shape["k"],
        experts=shape["experts"],
        parts=len(entry["parts"]),
        nbytes=None,
        verdicts=verdicts,
        rank=rank,
    )


def _form(weight: Mapping[str, Any]) -> str:
    """In the words of plan.recipe.describe."""
    zero = {"none": "", "int": " with zero points", "fp": " with float zero points"}[weight["zero_point"]]
    scale = {
        "tensor": "one scale",
        "channel": "a scale a row",
        "group": f"groups of {weight['group_size']}",
        "block": f"blocks of {weight['group_size_n']} x {weight['group_size']}",
    }[weight["scale"]]
    return f"{weight['dtype']}{zero}, {scale}"


def _verdict(entry: Mapping[str, Any], mark: Mark, why: str) -> Verdict:
    shape = entry["shape"]
    nbytes = sum(prod(t["shape"]) * DTYPES[t["dtype"]].itemsize for t in entry["tensors"].values())
    return Verdict(mark=mark, why=why, pad_n=shape["pad_n"], pad_k=shape["pad_k"], nbytes=nbytes)


def _of(entry: Mapping[str, Any], found: Sequence[Finding]) -> list[Finding]:
    """Of the findings of a layer's name those that are of this rank's: their file is one of its own, or none is named."""
    files = {t["file"] for t in entry["tensors"].values()}
    return [f for f in found if f.file is None or f.file in files]


def _proof(entry: Mapping[str, Any], wrong: Sequence[Finding], checked: Checked) -> Verdict:
    mine = [f for f in wrong if not f.code.startswith(GPU)]
    if mine:
        return _verdict(entry, "failed", f"{mine[0].code}: {mine[0].message}")
    if unread := sorted({t["file"] for t in entry["tensors"].values()} & checked.unread):
        return _verdict(entry, "unchecked", f"{', '.join(unread)} could not be read; the findings say why")
    when = "" if checked.proven else " (when it was converted)"
    if entry["lossy"]:
        steps = "; ".join(f"{x['step']} of {x['tensor']}: {x['count']:,} values, {_relative(x['max_rel'])}" for x in entry["lossy"])
        return _verdict(entry, "lossy", f"codes {entry['proof']['codes']}, {steps}{when}")
    return _verdict(entry, "proven", f"codes and scales equal{when}")


def _relative(share: float) -> str:
    return f"by {share:.1e} of a value at most" if share else "no relative size"


def _on_gpu(entry: Mapping[str, Any], wrong: Sequence[Finding], found: Mapping[str, Any] | None) -> Verdict:
    mine = [f for f in wrong if f.code.startswith(GPU)]
    if mine and found is None:
        return _verdict(entry, "failed", f"{mine[0].code}: {mine[0].message}")
    if found is None:
        return _verdict(entry, "unchecked", "not multiplied on a GPU")
    about = f"{found['device']}, {found['kernels']}: {found['weights']:,} weights"
    if not found["ok"]:
        return _verdict(entry, "failed", f"{about}; {'; '.join(found['wrong'])}")
    return _verdict(entry, "proven", f"{about}, largest error of a product {found['max_error']:.1e}")


def _padding(layers: Sequence[Layer]) -> str:
    """Of all weights together, by bits."""
    bits = [(x.bits * (x.experts or 1), x, x.verdicts[0]) for x in layers]
    real = sum(b * x.n * x.k for b, x, _ in bits)
    whole = sum(b * (x.n + v.pad_n) * (x.k + v.pad_k) for b, x, v in bits)
    return percent(1 - real / whole) if whole else "–"


# ------------------------------------------------------------------ tables
def _lossy(manifests: Manifests) -> Table | None:
    """One row a step: where, how many values, how far."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    layers: dict[str, int] = {}
    count = 0
    for _, m in manifests:
        for entry in m["layers"]:
            count += 1
            for x in entry["lossy"]:
                found.setdefault(x["step"], []).append(x)
            for step in {x["step"] for x in entry["lossy"]}:
                layers[step] = layers.get(step, 0) + 1
    if not manifests:
        return None
    if not found:
        return Table(title="Lossy steps", text="None: no value of any layer was changed.")
    rows = [
        (
            step,
            STEPS[step].text if step in STEPS else "",
            f"{layers[step]} of {count}",
            f"{sum(x['count'] for x in mine):,}",
            f"{max(x['max_abs'] for x in mine):.1e}",
            f"{max(x['max_rel'] for x in mine):.1e}",
        )
        for step, mine in sorted(found.items())
    ]
    head = ("step", "what it does", "layers", "values changed", "largest change", "relative")
    return Table(title="Lossy steps", head=head, rows=rows)


def _gpu(layers: Map, manifests: Manifests, checked: Checked) -> Table | None:
    """One row a device and kernel family."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for rank, m in manifests:
        for entry in m["layers"]:
            now = checked.gpu.get((rank, entry["name"]))
            found = now or entry.get("gpu")
            if found is not None:
                groups.setdefault((found["device"], found["kernels"], "now" if now else "before, from the manifest"), []).append(found)
    if not groups:
        return None
    rows = []
    for (device, kernels, when), mine in groups.items():
        wrong = sum(not x["ok"] for x in mine)
        said = Cell("failed", f"{wrong} wrong") if wrong else Cell("proven", "all right")
        worst = max(x["max_error"] for x in mine)
        rows.append(
            (device, kernels, when, f"{len(mine)} of {len(layers.layers)}", f"{sum(x['weights'] for x in mine):,}", f"{worst:.1e}", said)
        )
    head = ("device", "kernels", "when", "layers", "weights one by one", "largest error", "result")
    text = "Layers multiplied on a GPU and compared with float64; an error is a share of the sum of magnitudes of a product."
    return Table(title="Results on a GPU", text=text, head=head, rows=rows)


def _dequantized(manifests: Manifests) -> Table | None:
    rows = [(x["name"], x["reason"], f"{x['max_rel']:.1e}") for _, m in manifests[:1] for x in m["dequantized"]]
    if not rows:
        return None
    return Table(title="Written as plain matrices", head=("module", "why", "relative change"), rows=rows)
