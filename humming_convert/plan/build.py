"""Building the plan: headers, configs and small tensors to every output tensor's name, shape, file and offset.

In: a checkpoint and a request.  Out: a Plan, or Refused with all findings. Nothing is written.
Facts: architecture.md 1, 9.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from humming_convert.checkpoint.config import normalise_method
from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.reading import snapshot
from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Finding, Findings
from humming_convert.formats.checks import run_checks
from humming_convert.formats.registry import Reading, read_layers
from humming_convert.formats.source import Source
from humming_convert.model.check import check_tied_head
from humming_convert.model.conform import check_matrix
from humming_convert.model.fuse import FusedModel, fuse_model
from humming_convert.model.options import ModelOptions
from humming_convert.model.parallel import Heads, max_tp
from humming_convert.model.standard_form import standard_model
from humming_convert.plan.asked import check_asked
from humming_convert.plan.files import lay_out
from humming_convert.plan.fingerprint import fingerprint
from humming_convert.plan.recipe import Packing, plan_packed
from humming_convert.plan.types import Dequantized, PlainTensor, Plan, PlannedLayer, Request, planned_tensor
from humming_convert.standard.dequantize import DequantizedWeight
from humming_convert.standard.expr import Cast, Expr, Stored
from humming_convert.standard.layer import ROLES, StandardLayer


def make_plan(
    checkpoint: Checkpoint, request: Request, read: Read, findings: Findings, *, headers_only: bool = False, reading: Reading | None = None
) -> Plan:
    """The plan. `read` is used for scale-like tensors, and for weights where a question needs them. Raises Refused with every finding.

    reading: of this checkpoint with the same options, where several targets share one; what it found is in `findings` already.
    """
    states = snapshot(checkpoint.weights)
    if reading is None:
        reading = read_source(checkpoint, request, read, findings, headers_only=headers_only)
    if not reading.layers and not findings.errors:
        findings.error(
            "nothing-quantized",
            "no layer of this checkpoint is quantized; there is nothing to convert",
            file="config.json",
            advice="give the quantized checkpoint, or serve this one as it is",
        )
    findings.raise_errors()
    layers, excluded = _selected(reading.layers, request, findings)
    plain_names = [v.name for v in reading.passthrough]
    # errors of the model are not the end yet: what could be fused is looked at too, so that all findings come at once
    model = _model(checkpoint, layers, excluded, plain_names, request, read, findings, headers_only)
    heads = Heads.of(checkpoint.text_config)
    if request.standard:
        planned: list[PlannedLayer] = [_standard_layer(x, model, checkpoint, heads) for x in model.layers]
        check_asked(planned, request, findings)
    else:
        assert request.target is not None
        packing = Packing(request=request, target=request.target, read=read, findings=findings, headers_only=headers_only, heads=heads)
        if request.tp > 1 and not model.family.known:
            findings.warning(
                "parallel-unverified",
                f"model_type {checkpoint.model_type!r} is not in the table of families: layers are cut for {request.tp} ranks by their last names",
                file="config.json",
                advice="compare with how the runtime shares out this model before the folder is used",
            )
        planned = [p for x in model.layers for p in plan_packed(x, model.vllm.get(x.name), packing)]
    _permit(planned, model, request, findings)
    findings.raise_errors()
    plain = _plain(reading, excluded, model, request)
    _check_names(planned, plain, findings)
    labels = None if request.standard else tuple(r.label for r in request.ranks)
    files, planned, plain = lay_out(planned, plain, labels=labels, shard_size=request.shard_size)
    totals = {
        "layers": len({p.layer.name for p in planned}),
        "modules": len({part for p in planned for part in p.layer.parts}),
        "bytes_in": sum(v.nbytes for v in _unique(reading, layers)),
        "bytes_out": sum(f.nbytes for f in files),
        "passthrough": {
            "tensors": sum(p.dequantized is None for p in plain),
            "bytes": sum(p.output.nbytes for p in plain if p.dequantized is None),
        },
        "open_questions": sorted({q for p in planned for q, a in p.answers.items() if a is None}),
    }
    result = Plan(
        source=checkpoint,
        request=request,
        act=request.act,
        layers=tuple(planned),
        plain=tuple(plain),
        files=tuple(files),
        findings=tuple(findings),
        families=tuple(sorted({x.family for x in reading.layers})),
        fingerprint="",
        totals=totals,
        states=states,
    )
    return replace(result, fingerprint=fingerprint(result))


def read_source(checkpoint: Checkpoint, request: Request, read: Read, findings: Findings, *, headers_only: bool) -> Reading:
    """The source's layers, their numbers checked. Errors go to findings."""
    primary: Mapping[str, Any] = checkpoint.sections[0].body if checkpoint.sections else {}
    source = Source(
        checkpoint=checkpoint,
        method=normalise_method(primary) if primary else "",
        config=primary,
        options=request.read,
        read=read,
        findings=findings,
        headers_only=headers_only,
    )
    reading = read_layers(source)
    if not headers_only:
        run_checks([c for layer in reading.layers for c in layer.checks], read, findings)
    return reading


def _selected(layers: Sequence[StandardLayer], request: Request, findings: Findings) -> tuple[list[StandardLayer], list[StandardLayer]]:
    """(converted, passed through unchanged), by --include and --exclude on the source modules' names."""
    for option, pattern in (("--include", request.include), ("--exclude", request.exclude)):
        if pattern is not None and layers and not any(re.search(pattern, layer.name) for layer in layers):
            findings.error(
                "selection-empty",
                f"{option} {pattern!r} matches none of {len(layers)} quantized modules, the first {layers[0].name}",
                advice="`humming-convert inspect` lists them",
            )
    kept: list[StandardLayer] = []
    left: list[StandardLayer] = []
    for layer in layers:
        wanted = request.include is None or re.search(request.include, layer.name) is not None
        unwanted = request.exclude is not None and re.search(request.exclude, layer.name) is not None
        (kept if wanted and not unwanted else left).append(layer)
    if left and not kept:
        findings.error("selection-empty", "--include and --exclude leave no module to convert", advice="give a pattern that leaves some")
    elif left:
        findings.warning(
            "left-quantized",
            f"{left[0].name}{f' and {len(left) - 1} more' if len(left) > 1 else ''}: left in the source's own format, which the output's config "
            "does not speak of; a runtime that reads the whole folder cannot load them",
            layer=left[0].name if len(left) == 1 else None,
            count=len(left),
            advice="use such a folder to look at or to compare, not to serve",
        )
    return kept, left


def _model(
    checkpoint: Checkpoint,
    layers: list[StandardLayer],
    excluded: list[StandardLayer],
    plain: list[str],
    request: Request,
    read: Read,
    findings: Findings,
    headers_only: bool,
) -> FusedModel:
    options = ModelOptions(
        fuse=request.fuse,
        on_mixed=request.on_mixed,
        w13=request.w13,
        lm_head=request.lm_head,
        on_desc_act=request.read.on_desc_act,
        dtype=request.dtype,
        scale_dtype=request.scale_dtype,
    )
    check_tied_head(checkpoint, None if headers_only else read, findings)
    data = None if headers_only else read
    if request.standard:
        model = standard_model(checkpoint, layers, plain, options, read=data, excluded=excluded, findings=findings)
    else:
        model = fuse_model(checkpoint, layers, plain, options, excluded=excluded, findings=findings)
    if data is not None:
        for d in model.dequantize:
            check_matrix(d.layer, request.dtype, data, findings)
    return model


def _standard_layer(layer: StandardLayer, model: FusedModel, checkpoint: Checkpoint, heads: Heads) -> PlannedLayer:
    outputs = {
        role: planned_tensor(standard_name(layer, role, checkpoint.model_type), role, layer.tensors[role].dtype, layer.tensors[role].shape)
        for role in ROLES
        if role in layer.tensors
    }
    return PlannedLayer(layer=layer, vllm=model.vllm.get(layer.name), recipe=None, outputs=outputs, max_tp=max_tp(layer, heads, stock=True))


def standard_name(layer: StandardLayer, role: str, model_type: str) -> str:
    """`<module>.<role>`; the stacked experts of gpt-oss as vLLM names them (architecture.md 9.4, formats.md 8.2)."""
    if layer.experts is not None and model_type == "gpt_oss":
        return layer.name + {"weight": "", "weight_scale": "_scale"}.get(role, "_" + role)
    return f"{layer.name}.{role}"


def _permit(planned: list[PlannedLayer], model: FusedModel, request: Request, findings: Findings) -> None:
    """--strict: warnings are errors. (Lossy steps that are not free are asked for by an option or refused where they arise.)"""
    if request.strict:
        for f in [f for f in findings if f.severity == "warning"]:
            findings.add(Finding(**{**f.as_dict(), "severity": "error", "advice": f"{f.advice or 'see the warning'} (--strict)"}))


def _plain(reading: Reading, excluded: list[StandardLayer], model: FusedModel, request: Request) -> list[PlainTensor]:
    views = [*reading.passthrough, *(v for x in excluded for v in x.source)]
    plain = [PlainTensor(output=planned_tensor(v.name, None, v.dtype, v.shape), expr=Stored(v)) for v in views]
    for d in model.dequantize:
        layer, reason, step = d.layer, d.reason, d.step
        why = Dequantized(name=layer.name, source_tensors=tuple(v.name for v in layer.source), reason=reason, step=step)
        shape = (*((layer.experts,) if layer.experts is not None else ()), layer.n, layer.k)
        matrix = DequantizedWeight(layer=layer, dtype=request.dtype, step=step)
        plain.append(PlainTensor(output=planned_tensor(f"{layer.name}.weight", None, request.dtype, shape), expr=matrix, dequantized=why))
        if (bias := layer.tensors.get("bias")) is not None:
            value: Expr = bias if bias.dtype == request.dtype else Cast(bias, request.dtype, "bias-cast", "bias")
            plain.append(
                PlainTensor(output=planned_tensor(f"{layer.name}.bias", None, request.dtype, bias.shape), expr=value, dequantized=why)
            )
    return plain


def _check_names(planned: Iterable[PlannedLayer], plain: Iterable[PlainTensor], findings: Findings) -> None:
    """No tensor of the output has the name of another one of the same rank: of two only one would be found. Raises Refused."""
    taken = {x.output.name: x.dequantized.name if x.dequantized is not None else x.output.name for x in plain}
    for layer in planned:
        for tensor in layer.outputs.values():
            if tensor.name in taken:
                findings.error(
                    "name-taken",
                    f"{tensor.name} of the output would be both this layer's and {taken[tensor.name]}",
                    layer=layer.layer.name,
                    tensor=tensor.name,
                    advice="remove the stale one from the checkpoint, or exclude one of them (--exclude)",
                )
    findings.raise_errors()


def _unique(reading: Reading, layers: list[StandardLayer]) -> tuple[TensorView, ...]:
    views = [*reading.passthrough, *(v for x in layers for v in x.source)]
    return tuple({v.name: v for v in views}.values())
