"""The page of `inspect`: what is in a checkpoint, and what each target would make of each layer.

In: an Inspection.  Out: a Report. Layers are those that the runtime fuses; nothing but headers is read for their verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from humming_convert.findings import Finding, Findings
from humming_convert.plan.evidence import ZeroPoints, letter
from humming_convert.plan.inspect import Inspection, size
from humming_convert.plan.survey import Outcome, Survey, survey
from humming_convert.report.layers import source_layer
from humming_convert.report.types import Cell, Map, Report, Table, Verdict, View
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import MODEL_DTYPES

FIRST = "sm90"  # the target that the map begins with


def report_inspection(found: Inspection) -> Report:
    """A page for any folder, also for one that is no checkpoint: then findings are all there is."""
    c = found.checkpoint
    name = c.name if c is not None else found.folder.name
    surveyed = survey(c, found.reading) if c is not None and found.reading.layers else None
    findings = Findings(found.findings)
    findings.extend(surveyed.findings if surveyed is not None else ())
    layers = _map(surveyed, tuple(findings), c.dtype) if surveyed is not None and c is not None else Map(axes=("", ""), views=(), layers=())
    plain = found.reading.passthrough
    facts = [
        ("layers, as fused", str(len(layers.layers))),
        ("modules", str(sum(x.experts or 1 for x in found.reading.layers))),
        ("quantized", size(sum(v.nbytes for x in found.reading.layers for v in x.source))),
        ("not quantized", f"{size(sum(v.nbytes for v in plain))} in {len(plain)} tensors"),
    ]
    about = [("checkpoint", name)]
    if c is not None:
        about += [("revision", c.revision)] if c.revision else []
        about += [("model type", c.model_type or "unknown"), ("model dtype", MODEL_DTYPES.get(c.dtype, c.dtype))]
        about += [("files", f"{len(c.weights)} with {len(c.tensors)} tensors")]
        about += [("quantization", s.place) for s in c.sections]
    tables = [_sources(found)] if found.reading.layers else []
    if layers.layers:
        tables.append(_targets(layers))
    return Report(
        title=f"{name}: what is in it",
        state=_state(tuple(findings), bool(layers.layers)),
        facts=facts,
        about=about,
        tables=tables,
        findings=[("Findings", tuple(findings))],
        layers=layers,
        tail=[_zero_points(z) for z in found.zero_points],
    )


def _state(findings: Sequence[Finding], any_layers: bool) -> Cell:
    errors = sum(f.severity == "error" for f in findings)
    if errors:
        return Cell("refused", f"refused as it is: {errors} error{'s' * (errors > 1)}, see the findings")
    if not any_layers:
        return Cell("plain", "no quantized layer: nothing to convert")
    warnings = sum(f.severity == "warning" for f in findings)
    return Cell("packs", "can be read" + (f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""))


def _sources(found: Inspection) -> Table:
    rows = [(kind, count, size(nbytes)) for kind, count, nbytes in found.kinds()]
    plain = found.reading.passthrough
    if plain:
        rows.append(("not quantized (tensors)", len(plain), size(sum(v.nbytes for v in plain))))
    return Table(title="What is stored", head=("format", "modules", "bytes"), rows=rows)


# ------------------------------------------------------------------ the map
def _map(surveyed: Survey, findings: Sequence[Finding], dtype: str) -> Map:
    wrong = {f.layer: f for f in findings if f.severity == "error" and f.layer is not None}
    count = len(surveyed.views)
    kinds = [tuple(_verdict(o) for o in kind) for kind in surveyed.kinds]
    layers = []
    for x, kind in surveyed.layers:
        broken = _broken(x, wrong)
        layers.append(source_layer(x, (broken,) * count if broken is not None else kinds[kind]))
    for d in surveyed.dequantized:
        broken = _broken(d.layer, wrong)
        layers.append(source_layer(d.layer, (broken or Verdict(mark="plain", why=f"{d.reason} ({d.step})"),) * count))
    for x in surveyed.apart:
        broken = _broken(x, wrong) or Verdict(mark="refused", why="it finds no place in a fused layer; the findings say why")
        layers.append(source_layer(x, (broken,) * count))
    own = "fp16" if dtype == "F16" else "bf16"
    views = tuple(View(*v) for v in surveyed.views)
    return Map(axes=("target", "activation"), views=views, layers=tuple(layers), first=views.index(View(FIRST, own)))


def _broken(layer: StandardLayer, wrong: Mapping[str, Finding]) -> Verdict | None:
    """Refused everywhere, if an error finding is of the layer or of one of its parts."""
    for name in (layer.name, *layer.parts):
        if name in wrong:
            return Verdict(mark="refused", why=f"{wrong[name].code}: {wrong[name].message}")
    return None


def _verdict(o: Outcome) -> Verdict:
    if o.reason:
        return Verdict(mark="refused", why=o.reason)
    why = f"may change values: {', '.join(o.steps)}" if o.steps else ""
    return Verdict(mark="lossy" if o.steps else "packs", why=why, pad_n=o.pad_n, pad_k=o.pad_k, nbytes=o.nbytes)


# ------------------------------------------------------------------ targets
def _targets(m: Map) -> Table:
    """A row for targets that do the same, a column an activation; reasons by their letters below."""
    by_line = Counter(x.verdicts for x in m.layers)
    letters: dict[str, str] = {}
    first: dict[str, tuple[str, int]] = {}
    acts = list(dict.fromkeys(v.name for v in m.views))
    rows: dict[tuple[Cell, ...], list[str]] = {}
    for target in dict.fromkeys(v.group for v in m.views):
        cells = []
        for act in acts:
            i = m.views.index(View(target, act))
            refused: Counter[str] = Counter()
            marks = set()
            for line, count in by_line.items():
                marks.add(line[i].mark)
                if line[i].mark == "refused":
                    refused[line[i].why] += count
            for why, count in refused.items():
                letters.setdefault(why, letter(len(letters)))
                first.setdefault(why, (next(x.name for x in m.layers if x.verdicts[i].why == why), count))
            if refused:
                cells.append(Cell("refused", " ".join(letters[w] for w in refused)))
            elif "lossy" in marks:
                cells.append(Cell("lossy"))
            else:
                cells.append(Cell("packs" if "packs" in marks else "plain"))
        rows.setdefault(tuple(cells), []).append(target)
    below = [f"{sign}: {why} ({first[why][1]} of {len(m.layers)} layers, the first {first[why][0]})" for why, sign in letters.items()]
    return Table(
        title="What each target could run all layers with",
        text="One sign for all layers together: lossy if a step may change a value of any layer, refused if any layer is; letters give the reasons.",
        head=("target", *acts),
        rows=[(" ".join(names), *cells) for cells, names in rows.items()],
        below=below,
        wide=True,
    )


def _zero_points(z: ZeroPoints) -> Table:
    head, *lines = z.lines()
    rows = [(label, count, f"{100 * count / sum(z.counts):.1f} %") for label, count in z.bins()]
    below = [head.partition(": ")[2], *(x.strip() for x in lines[len(rows) :])]
    return Table(title=f"Zero points as stored, {z.bits} bits", head=("value", "how often", "share"), rows=rows, below=below, wide=True)
