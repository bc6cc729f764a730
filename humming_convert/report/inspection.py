"""The page of `inspect`: what is in a checkpoint, and what each target would make of each layer.

In: an Inspection.  Out: a Report. Layers are those that the runtime fuses; nothing but headers is read for their verdicts.
"""

from __future__ import annotations

from humming_convert.findings import counted
from humming_convert.plan.evidence import ZeroPoints
from humming_convert.plan.inspect import Inspection
from humming_convert.plan.size import size
from humming_convert.plan.survey import Outcome, Survey
from humming_convert.plan.verdicts import Verdicts
from humming_convert.report.layers import source_layer
from humming_convert.report.types import Cell, Map, Report, Table, Verdict, View
from humming_convert.standard.numbers import MODEL_DTYPES

FIRST = "sm90"  # the target that the map begins with


def report_inspection(found: Inspection) -> Report:
    """A page for any folder, also for one that is no checkpoint: then findings are all there is."""
    c = found.checkpoint
    name = c.name if c is not None else found.folder.name
    layers = _map(found.survey, c.dtype if c is not None else "BF16")
    plain = found.reading.passthrough
    facts = [
        ("layers, as fused", str(len(layers.layers))),
        ("modules", str(sum(x.experts or 1 for x in found.reading.layers))),
        ("quantized", size(sum(v.nbytes for x in found.reading.layers for v in x.source))),
        ("not quantized", f"{size(sum(v.nbytes for v in plain))} in {counted(len(plain), 'tensor')}"),
    ]
    about = [("checkpoint", name)]
    if c is not None:
        about += [("revision", c.revision)] if c.revision else []
        about += [("model type", c.model_type or "unknown"), ("model dtype", MODEL_DTYPES.get(c.dtype, c.dtype))]
        about += [("files", f"{len(c.weights)} with {counted(len(c.tensors), 'tensor')}")]
        about += [("quantization", s.place) for s in c.sections]
    tables = [_sources(found)] if found.reading.layers else []
    if layers.layers:
        tables.append(_targets(found.verdicts()))
    return Report(
        title=f"{name}: what is in it",
        state=_state(found, bool(layers.layers)),
        facts=facts,
        about=about,
        tables=tables,
        findings=[("Findings", found.findings)],
        layers=layers,
        tail=[_zero_points(z) for z in found.zero_points],
    )


def _state(found: Inspection, any_layers: bool) -> Cell:
    """Errors of fusing alone refuse the packed forms, perhaps not the standard form."""
    if found.errors:
        what = "no target can pack it as it is" if set(found.errors) <= set(found.survey.findings) else "refused as it is"
        return Cell("refused", f"{what}: {len(found.errors)} error{'s' * (len(found.errors) > 1)}, see the findings")
    if not any_layers:
        return Cell("plain", "no quantized layer: nothing to convert")
    warnings = sum(f.severity == "warning" for f in found.findings)
    return Cell("packs", "can be read" + (f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""))


def _sources(found: Inspection) -> Table:
    rows = [(kind, count, size(nbytes)) for kind, count, nbytes in found.kinds()]
    plain = found.reading.passthrough
    if plain:
        rows.append(("not quantized (tensors)", len(plain), size(sum(v.nbytes for v in plain))))
    return Table(title="What is stored", head=("format", "modules", "bytes"), rows=rows)


def _map(surveyed: Survey, dtype: str) -> Map:
    kinds = [tuple(_verdict(o) for o in kind) for kind in surveyed.kinds]
    layers = tuple(source_layer(x, kinds[kind]) for x, kind in surveyed.layers)
    own = "fp16" if dtype == "F16" else "bf16"
    views = tuple(View(*v) for v in surveyed.views)
    return Map(axes=("target", "activation"), views=views, layers=layers, first=views.index(View(FIRST, own)))


def _verdict(o: Outcome) -> Verdict:
    return Verdict(mark=o.mark, why=o.why, pad_n=o.pad_n, pad_k=o.pad_k, nbytes=o.nbytes)


def _targets(v: Verdicts) -> Table:
    letters = v.letters()
    return Table(
        title="What each target could run all layers with",
        text="One sign for all layers together: lossy if a step may change a value of any layer, refused if any layer is; letters give the reasons.",
        head=("target", *v.acts),
        rows=[(" ".join(targets), *(Cell(c.mark, " ".join(letters[r] for r in c.reasons)) for c in cells)) for targets, cells in v.rows()],
        below=[f"{sign}: {text}" for sign, text in v.below()],
        wide=True,
    )


def _zero_points(z: ZeroPoints) -> Table:
    head, *lines = z.lines()
    rows = [(label, count, f"{100 * count / sum(z.counts):.1f} %") for label, count in z.bins()]
    below = [head.partition(": ")[2], *(x.strip() for x in lines[len(rows) :])]
    return Table(title=f"Zero points as stored, {z.bits} bits", head=("value", "how often", "share"), rows=rows, below=below, wide=True)
