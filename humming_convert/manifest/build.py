"""The manifest: what a folder holds, where it came from, what was lost on the way, and that it was proven.

In: a Plan and the engine's results.  Out: one plain JSON document. Nothing of time, host, path, worker or rate is in it: the same
source and options give the same manifest.
Facts: architecture.md 9.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from humming_convert import __version__
from humming_convert.manifest.digests import manifest_digest
from humming_convert.manifest.types import FileEntry, LayerResult
from humming_convert.model.parallel import Rank
from humming_convert.plan.fingerprint import options_of
from humming_convert.plan.types import Plan, PlannedLayer, Request
from humming_convert.standard.forms import InputForm, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES

NAME = "humming_manifest.json"
FORMAT_VERSION = 1
TOOL = "humming-convert"


def build_manifest(
    plan: Plan,
    results: Mapping[str, LayerResult],
    measures: Mapping[str, Sequence[Mapping[str, Any]]],
    files: Sequence[FileEntry],
    source_files: Sequence[FileEntry],
    accepted_by: tuple[Sequence[str], Sequence[str]],
    rank: int | None = None,
) -> dict[str, Any]:
    """results: by PlannedLayer.key.  measures: name of a dequantized plain tensor -> measures of its rounding.  files: every file of the
    folder but the manifest.  source_files: what was read.  accepted_by: versions.versions of the plan.  rank: whose layers; None in a folder of several ranks: the common part, which
    lists the ranks and holds no layers."""
    packed = not plan.request.standard
    accepted, same_bytes = accepted_by
    request = plan.request
    out: dict[str, Any] = {
        "format": "humming-packed" if packed else "humming-standard",
        "format_version": FORMAT_VERSION,
        "tool": {"name": TOOL, "version": __version__},
        "fingerprint": plan.fingerprint,
        "humming": {
            "version": request.humming_version,
            "entry": request.entry,
            "cuda_compiler_version": request.cuda_compiler_version,
            "cubin_patch": request.cubin_patch,
            "accepted": list(accepted),
            "same_bytes": list(same_bytes),
        },
        "dtype": MODEL_DTYPES[request.dtype],
        "options": options_of(request),
        "source": {
            "name": plan.source.name,
            "revision": plan.source.revision,
            "families": list(plan.families),
            "files": [f.as_dict() for f in sorted(source_files, key=lambda f: f.name)],
        },
        "parallel": _parallel(request, rank),
        "layers": [_layer(p, results[p.key]) for p in (plan.of_rank(rank) if rank is not None else ())],
        "dequantized": _dequantized(plan, measures),
        "passthrough": _passthrough(plan),
        "files": [f.as_dict() for f in sorted(files, key=lambda f: f.name)],
        "findings": [f.as_dict() for f in plan.findings],
        "totals": dict(plan.totals),
    }
    if request.target is not None:
        out["target"] = {"name": request.target.name, "sm": request.target.sm, "ppu": request.target.ppu}
        out["act"] = plan.act
    if rank is None:
        out["ranks"] = [{"tp_rank": r.tp_rank, "ep_rank": r.ep_rank, "file": rank_manifest(r)} for r in request.ranks]
    out["manifest_digest"] = manifest_digest(out)
    return out


def rank_manifest(rank: Rank) -> str:
    """Name of the full manifest of one rank of several (architecture.md 9.6)."""
    return f"humming_manifest-{rank.label}.json"


def _parallel(request: Request, rank: int | None) -> dict[str, int | None]:
    if rank is None:
        return {"tp_size": request.tp, "tp_rank": None, "ep_size": request.ep, "ep_rank": None}
    return asdict(request.ranks[rank])


def _layer(planned: PlannedLayer, result: LayerResult) -> dict[str, Any]:
    layer, recipe = planned.layer, planned.recipe
    config = recipe.config.as_dict() if recipe is not None else None
    out: dict[str, Any] = {
        "name": layer.name,
        "vllm": planned.vllm,
        "parts": list(layer.parts),
        "family": layer.family,
        "shape": {
            "n": layer.n,
            "k": layer.k,
            "experts": layer.experts,
            "pad_n": config["pad_shape_n"] if config is not None else 0,
            "pad_k": config["pad_shape_k"] if config is not None else 0,
            "stack_n": list(layer.stack_n),
        },
        "row_order": layer.row_order,
        "recoded": layer.recoded,
        "weight": weight_entry(layer.form),
        "tensors": {
            role: {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "file": t.file, "digest": result.digests[role]}
            for role, t in planned.outputs.items()
        },
        "lossy": [asdict(m) for m in sorted(result.lossy, key=lambda m: (m.step, m.tensor))],
        "proof": asdict(result.proof),
    }
    if recipe is not None and config is not None:
        out["input"] = input_entry(recipe.input, config)
        out["config"] = config
        out["flags"] = dict(recipe.flags)
    return out


def weight_entry(form: WeightForm) -> dict[str, Any]:
    """The standard form before e0m and activation; group sizes 0 where there is no group along that axis."""
    block = form.scale.kind == "block"
    return {
        "dtype": form.number.name,
        "scale": form.scale.kind,
        "group_size": form.scale.k if form.scale.kind in ("group", "block") else 0,
        "group_size_n": form.scale.n if block else 0,
        "scale_dtype": form.scale.dtype,
        "scale_2": form.scale_2,
        "zero_point": form.zero_point,
    }


def input_entry(given: InputForm, config: Mapping[str, Any]) -> dict[str, Any]:
    """The activation as the stored configuration has it."""
    assert config["input_quant_mode"] == given.mode, (config["input_quant_mode"], given)
    return {
        "dtype": config["a_dtype"],
        "mode": config["input_quant_mode"],
        "group_size": config["input_scale_group_size"],
        "scale_dtype": config["as_dtype"],
    }


def _dequantized(plan: Plan, measures: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One entry a module; `max_rel`: of its weight (and bias), 0 where nothing was rounded."""
    found: dict[str, dict[str, Any]] = {}
    for plain in plan.plain:
        why = plain.dequantized
        if why is None:
            continue
        entry = found.setdefault(
            why.name, {"name": why.name, "source_tensors": list(why.source_tensors), "reason": why.reason, "max_rel": 0.0}
        )
        entry["max_rel"] = max([entry["max_rel"], *(float(m["max_rel"]) for m in measures.get(plain.output.name, ()))])
    return list(found.values())


def _passthrough(plan: Plan) -> dict[str, int]:
    passed = [p.output for p in plan.plain if p.dequantized is None]
    return {"tensors": len(passed), "bytes": sum(t.nbytes for t in passed)}
