"""The plan for people and for programs: rows of a table, one JSON document (schemas/plan.schema.json)."""

from __future__ import annotations

from typing import Any

from humming_convert.plan.fingerprint import options_of
from humming_convert.plan.recipe import describe
from humming_convert.plan.types import Plan, PlannedLayer, PlannedTensor

FEW_ROWS = 40  # layers shown without --verbose


def layer_rows(plan: Plan, *, verbose: bool) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(head, rows): one a layer; without verbose, layers that differ in nothing but their number stand in one row."""
    head = ("layer", "source", "N x K", "pads", "activation", "packed as", "bytes")
    rows: dict[tuple[str, ...], list[str]] = {}
    for p in plan.layers:
        key = _row(p)
        names = rows.setdefault((*key, p.layer.name) if verbose else key, [])
        if p.layer.name not in names:  # the same of every rank
            names.append(p.layer.name)
    out = [(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} like it", *key[:6]) for key, names in rows.items()]
    if not verbose and len(out) > FEW_ROWS:
        out = [*out[:FEW_ROWS], (f"… {len(out) - FEW_ROWS} more kinds of layers (--verbose)", *[""] * 6)]
    return head, out


def _row(p: PlannedLayer) -> tuple[str, ...]:
    layer = p.layer
    experts = f"{layer.experts} x " if layer.experts is not None else ""
    shape = f"{experts}{layer.n} x {layer.k}"
    size = f"{sum(t.nbytes for t in p.outputs.values()):,}"
    if p.recipe is None:
        return describe(layer.form), shape, "-", "-", "standard form", size
    c = p.recipe.config
    pads = f"+{c.pad_shape_n} x +{c.pad_shape_k}"
    return describe(layer.form), shape, pads, c.a_dtype, f"{c.b_dtype}, {p.recipe.weight.place}", size


def _tensor(t: PlannedTensor) -> dict[str, Any]:
    return {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "file": t.file, "offset": t.offset, "bytes": t.nbytes}


def plan_document(plan: Plan) -> dict[str, Any]:
    """What `plan --json` prints."""
    request = plan.request
    return {
        "format": "humming-plan",
        "format_version": 1,
        "fingerprint": plan.fingerprint,
        "target": {"name": request.target.name, "sm": request.target.sm, "ppu": request.target.ppu} if request.target else None,
        "act": plan.act,
        "options": options_of(request),
        "source": {"name": plan.source.name, "revision": plan.source.revision, "families": list(plan.families)},
        "layers": [
            {
                "name": p.layer.name,
                "vllm": p.vllm,
                "family": p.layer.family,
                "parts": list(p.layer.parts),
                "n": p.layer.n,
                "k": p.layer.k,
                "experts": p.layer.experts,
                "tp_rank": request.ranks[p.rank].tp_rank,
                "ep_rank": request.ranks[p.rank].ep_rank,
                "max_tp": p.max_tp,
                "config": p.recipe.config.as_dict() if p.recipe else None,
                "answers": dict(p.answers),
                "tensors": {role: _tensor(t) for role, t in p.outputs.items()},
            }
            for p in plan.layers
        ],
        "plain": [{**_tensor(x.output), "dequantized": x.dequantized.reason if x.dequantized is not None else None} for x in plan.plain],
        "files": [{"name": f.name, "bytes": f.nbytes} for f in plan.files],
        "findings": [f.as_dict() for f in plan.findings],
        "totals": dict(plan.totals),
    }
