"""The page of `plan`: every layer as `convert` would write it, one view a target.

In: the plans of one source.  Out: a Report. Figures are the plans' own totals.
"""

from __future__ import annotations

from collections.abc import Sequence

from humming_convert.findings import Finding
from humming_convert.plan.size import size
from humming_convert.plan.survey import possible_steps
from humming_convert.plan.types import Plan, PlannedLayer
from humming_convert.report.layers import source_layer
from humming_convert.report.types import Cell, Layer, Map, Report, Table, Verdict, View
from humming_convert.standard.numbers import MODEL_DTYPES


def report_plans(plans: Sequence[Plan], *, headers_only: bool = False) -> Report:
    """plans: of one source, one a target, at least one."""
    source, totals = plans[0].source, plans[0].totals
    findings = tuple(dict.fromkeys(f for p in plans for f in p.findings))
    facts = [
        ("layers", str(totals["layers"])),
        ("modules", str(totals["modules"])),
        ("read", size(totals["bytes_in"])),
        ("written", ", ".join(size(p.totals["bytes_out"]) for p in plans)),
    ]
    revision = [("revision", source.revision)] if source.revision else []
    return Report(
        title=f"{source.name}: the plan",
        state=_state(findings, headers_only),
        facts=facts,
        about=[
            ("checkpoint", source.name),
            *revision,
            ("model type", source.model_type or "unknown"),
            ("source formats", ", ".join(plans[0].families)),
            *([("read", "headers only: no code and no scale was looked at")] if headers_only else []),
        ],
        tables=[_plans(plans), *_questions(plans)],
        findings=[("Findings", findings)],
        layers=_map(plans),
    )


def _state(findings: Sequence[Finding], headers_only: bool) -> Cell:
    warnings = sum(f.severity == "warning" for f in findings)
    return Cell(
        "packs",
        "can be converted so"
        + (" as far as headers tell" if headers_only else "")
        + (f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""),
    )


def _view(p: Plan) -> View:
    return View(p.request.target.name if p.request.target is not None else "standard form", f"act {p.act}")


def _plans(plans: Sequence[Plan]) -> Table:
    rows = [
        (
            _view(p).group,
            p.act,
            MODEL_DTYPES[p.request.dtype],
            f"{p.totals['layers']} of {len(p.request.ranks)} rank{'s' * (len(p.request.ranks) > 1)}",
            size(p.totals["bytes_out"]),
            len(p.files),
            p.fingerprint,
        )
        for p in plans
    ]
    head = ("target", "activation", "model dtype", "layers", "bytes", "files", "fingerprint")
    return Table(title="What would be written", head=head, rows=rows)


def _questions(plans: Sequence[Plan]) -> list[Table]:
    """What only the data can answer, where they were not read."""
    names = sorted({str(q) for p in plans for q in p.totals["open_questions"]})
    text = "Headers alone were read; these questions stay open until the data are: " + ", ".join(names)
    return [Table(title="Open questions", text=text)] if names else []


def _map(plans: Sequence[Plan]) -> Map:
    found: dict[tuple[str, int], dict[int, PlannedLayer]] = {}
    for i, plan in enumerate(plans):
        for p in plan.layers:
            found.setdefault((p.layer.name, p.rank), {})[i] = p
    ranks = any(len(p.request.ranks) > 1 for p in plans)
    layers = tuple(_layer(mine, len(plans), f"rank {rank}" if ranks else "") for (_, rank), mine in found.items())
    return Map(axes=("target", "activation"), views=tuple(_view(p) for p in plans), layers=layers)


def _layer(mine: dict[int, PlannedLayer], views: int, rank: str) -> Layer:
    verdicts = tuple(_verdict(mine.get(i)) for i in range(views))
    return source_layer(next(iter(mine.values())).layer, verdicts, rank)


def _verdict(p: PlannedLayer | None) -> Verdict:
    if p is None:
        return Verdict(mark="unchecked", why="no layer of this plan")
    steps, config = possible_steps(p), p.recipe.config if p.recipe is not None else None
    how = f"{config.a_dtype} activations, packed as {config.b_dtype}" if config is not None else "standard form"
    return Verdict(
        mark="lossy" if steps else "packs",
        why=f"{how}; may change values: {', '.join(steps)}" if steps else how,
        pad_n=config.pad_shape_n if config is not None else 0,
        pad_k=config.pad_shape_k if config is not None else 0,
        nbytes=sum(t.nbytes for t in p.outputs.values()),
    )
