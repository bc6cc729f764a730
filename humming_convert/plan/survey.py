"""What each target would make of each layer, from headers alone: the verdicts that `inspect --html` shows.

In: a checkpoint's layers.  Out: the layers as the runtime fuses them, and one outcome for every kind of layer, target and activation.
Nothing is refused here, and no weight is read: where the data decide, a step is named that may change a value.
Facts: architecture.md 9.2, 9.5; layouts.md 2, 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.reading import reader_of
from humming_convert.checkpoint.tensors import Read
from humming_convert.findings import Finding, Findings
from humming_convert.formats.registry import Reading
from humming_convert.layouts.config import LayerRecipe
from humming_convert.model.conform import conform
from humming_convert.model.fuse import Dequantize, fuse_model
from humming_convert.model.options import ModelOptions
from humming_convert.model.parallel import Heads
from humming_convert.plan.recipe import Packing, plan_packed
from humming_convert.plan.types import PlannedLayer, Request
from humming_convert.standard.expr import Cast
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import STEPS
from humming_convert.standard.rewrite import to_rows
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import compatible
from humming_convert.targets.report import SHOWN
from humming_convert.targets.table import TARGETS, Target

ModelDtype = Literal["BF16", "F16"]
MERGED = {"to_channel": "scale-cast", "to_channel_2": "scale2-cast", "into_channel": "scale-cast"}
"""layouts.config.Merge -> the step that its rounding has."""


class Outcome(Struct, frozen=True, kw_only=True):
    """One layer with one activation on one target. reason: why it is refused, "" if it packs.

    steps: names of standard.lossy.STEPS that may change a value.  pad_n, pad_k: rows and columns added.  nbytes: of the packed tensors.
    """

    reason: str = ""
    steps: tuple[str, ...] = ()
    pad_n: int = 0
    pad_k: int = 0
    nbytes: int = 0


class Survey(Struct, frozen=True, kw_only=True):
    """views: (target, activation).  layers: fused, each with its kind.  kinds: an outcome a view.

    dequantized: layers that are written as plain matrices.  apart: modules that found no place in a layer; `findings` say why.
    """

    views: tuple[tuple[str, str], ...]
    layers: tuple[tuple[StandardLayer, int], ...]
    kinds: tuple[tuple[Outcome, ...], ...]
    dequantized: tuple[Dequantize, ...]
    apart: tuple[StandardLayer, ...]
    findings: tuple[Finding, ...]


VIEWS = tuple((t, act) for t in TARGETS for act in SHOWN)


def survey(checkpoint: Checkpoint, reading: Reading) -> Survey:
    """reading: of this checkpoint. Options are the defaults of `convert`."""
    findings = Findings()
    own: ModelDtype = "F16" if checkpoint.dtype == "F16" else "BF16"
    model = fuse_model(checkpoint, reading.layers, [v.name for v in reading.passthrough], ModelOptions(dtype=own), findings=findings)
    heads, read = Heads.of(checkpoint.text_config), reader_of(checkpoint)
    number: dict[tuple[Any, ...], int] = {}
    kinds: list[tuple[Outcome, ...]] = []
    layers: list[tuple[StandardLayer, int]] = []
    for layer in model.layers:
        key = _kind(layer)
        if key not in number:
            number[key] = len(kinds)
            kinds.append(tuple(_outcome(layer, t, act, own, heads, read) for t, act in VIEWS))
        layers.append((layer, number[key]))
    placed = {part for x in model.layers for part in x.parts} | {part for d in model.dequantize for part in d.layer.parts}
    return Survey(
        views=tuple((t.name, act) for t, act in VIEWS),
        layers=tuple(layers),
        kinds=tuple(kinds),
        dequantized=model.dequantize,
        apart=tuple(x for x in reading.layers if not placed.intersection(x.parts)),
        findings=tuple(findings),
    )


def _kind(layer: StandardLayer) -> tuple[Any, ...]:
    """Layers that agree in this have the same outcomes: all that the plan of a layer reads in a header."""
    dtypes = tuple((role, expr.dtype, expr.shape) for role, expr in layer.tensors.items())
    facts = layer.facts.get("scales_from"), tuple(sorted(layer.facts.get("missing_input_scale", {})))
    return layer.family, layer.form, layer.n, layer.k, layer.experts, layer.stack_n, layer.row_order, dtypes, facts


def _outcome(layer: StandardLayer, target: Target, act: str, own: ModelDtype, heads: Heads, read: Read) -> Outcome:
    if target.sm < 80 and act == "bf16":
        return Outcome(reason="the target has no bfloat16")
    # a 16-bit activation that is asked for is the model dtype from then on
    dtype: ModelDtype = "F16" if act == "fp16" or target.sm < 80 else "BF16" if act == "bf16" else own
    findings, request = Findings(), Request(target=target, act=act, dtype=dtype)
    packing = Packing(request=request, target=target, read=read, findings=findings, headers_only=True, heads=heads)
    planned = plan_packed(layer, None, packing)
    if not planned:
        return Outcome(reason=_rule(layer, request, target) or "; ".join(f.message for f in findings.errors))
    (p,) = planned
    assert p.recipe is not None
    config = p.recipe.config
    return Outcome(
        steps=possible_steps(p),
        pad_n=config.pad_shape_n,
        pad_k=config.pad_shape_k,
        nbytes=sum(t.nbytes for t in p.outputs.values()),
    )


def _rule(layer: StandardLayer, request: Request, target: Target) -> str:
    """The rule of the target that the layer breaks, in its own words; "" if it breaks none of them."""
    static = "input_scale_2" in layer.tensors
    given = activation(request.act, request.dtype, static=static)
    if layer.form.scale.kind == "block":
        layer = to_rows(layer)
    return compatible(conform(layer, request.dtype).form, given, target, Environment(), request.dtype).reason


def possible_steps(planned: PlannedLayer) -> tuple[str, ...]:
    """Names of the steps that may change a value of a layer, in the order of the table; how far, only the data say."""
    found = {expr.step for expr in planned.layer.tensors.values() if isinstance(expr, Cast)}
    if planned.recipe is not None:
        found |= set(_recipe_steps(planned.recipe))
    return tuple(name for name in STEPS if name in found)


def _recipe_steps(recipe: LayerRecipe) -> Iterable[str]:
    small = recipe.small
    done: Mapping[str, bool] = {
        MERGED.get(small.merge, ""): small.merge in MERGED,
        "e8m0-fp16": small.fp16_range or small.rebias,
        "e8m0-range": bool(small.fused),
        "int-weight-scale": small.int_scale,
    }
    yield from (step for step, used in done.items() if used)
    if small.zero_shift:
        yield "scale-cast"
