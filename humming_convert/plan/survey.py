"""What each target would make of each layer, from headers alone: the one source of the verdicts of `inspect`, printed, as JSON and as a page.

In: a checkpoint's layers and what was found about them.  Out: the layers as the runtime fuses them, and one outcome for every kind of layer,
target and activation. Nothing is refused here, and no weight is read: where the data decide, a step is named that may change a value.
Facts: architecture.md 9.2, 9.5; layouts.md 2, 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.reading import reader_of
from humming_convert.checkpoint.tensors import Read
from humming_convert.findings import Finding, Findings
from humming_convert.formats.registry import Reading
from humming_convert.layouts.config import LayerRecipe
from humming_convert.model.conform import conform
from humming_convert.model.fuse import fuse_model
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
Mark = Literal["packs", "lossy", "plain", "refused"]
MERGED = {"to_channel": "scale-cast", "to_channel_2": "scale2-cast", "into_channel": "scale-cast"}
"""layouts.config.Merge -> the step that its rounding has."""


class Outcome(Struct, frozen=True, kw_only=True):
    """One layer with one activation on one target. reason: why it is refused, "" if it is not.  plain: why it is written as a plain matrix, "" if it packs.

    steps: names of standard.lossy.STEPS that may change a value.  pad_n, pad_k: rows and columns added.  nbytes: of the packed tensors, None where there are none.
    """

    reason: str = ""
    plain: str = ""
    steps: tuple[str, ...] = ()
    pad_n: int = 0
    pad_k: int = 0
    nbytes: int | None = None

    @property
    def mark(self) -> Mark:
        return "refused" if self.reason else "plain" if self.plain else "lossy" if self.steps else "packs"

    @property
    def why(self) -> str:
        """Beside the mark: the reason, or what may change values."""
        return self.reason or self.plain or (f"may change values: {', '.join(self.steps)}" if self.steps else "")


class Survey(Struct, frozen=True, kw_only=True):
    """views: (target, activation).  layers: as they would be written, each with its kind.  kinds: an outcome a view.

    whole: errors that are of no layer; with one of them no target packs anything, whatever its layers' outcomes are.
    findings: of fusing the modules; not those that the survey was given.
    """

    views: tuple[tuple[str, str], ...]
    layers: tuple[tuple[StandardLayer, int], ...] = ()
    kinds: tuple[tuple[Outcome, ...], ...] = ()
    whole: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


VIEWS = tuple((t, act) for t in TARGETS for act in SHOWN)
NAMES = tuple((t.name, act) for t, act in VIEWS)
APART = "it finds no place in a fused layer; the findings say why"


def survey(checkpoint: Checkpoint | None, reading: Reading, found: Iterable[Finding]) -> Survey:
    """reading: of this checkpoint, None if it could not be opened.  found: about it so far; a layer with an error is refused everywhere.

    Options are the defaults of `convert`."""
    findings = Findings()
    if checkpoint is None or not reading.layers:
        return Survey(views=NAMES, whole=tuple(_said(f) for f in found if f.severity == "error"))
    own: ModelDtype = "F16" if checkpoint.dtype == "F16" else "BF16"
    model = fuse_model(checkpoint, reading.layers, [v.name for v in reading.passthrough], ModelOptions(dtype=own), findings=findings)
    errors = [f for f in (*found, *findings) if f.severity == "error"]
    wrong = {f.layer: _said(f) for f in reversed(errors) if f.layer is not None}  # the first error of each
    heads, read = Heads.of(checkpoint.text_config), reader_of(checkpoint)
    number: dict[tuple[Any, ...], int] = {}
    kinds: list[tuple[Outcome, ...]] = []
    layers: list[tuple[StandardLayer, int]] = []

    def add(layer: StandardLayer, key: tuple[Any, ...], outcomes: Callable[[], tuple[Outcome, ...]]) -> None:
        if key not in number:
            number[key] = len(kinds)
            kinds.append(outcomes())
        layers.append((layer, number[key]))

    def everywhere(layer: StandardLayer, outcome: Outcome) -> None:
        add(layer, (outcome,), lambda: (outcome,) * len(VIEWS))

    placed = {part for x in model.layers for part in x.parts} | {part for d in model.dequantize for part in d.layer.parts}
    apart = [x for x in reading.layers if not placed.intersection(x.parts)]
    plain = {d.layer.name: f"{d.reason} ({d.step})" for d in model.dequantize}
    for layer in (*model.layers, *(d.layer for d in model.dequantize), *apart):
        reason = next((wrong[name] for name in (layer.name, *layer.parts) if name in wrong), "")
        if reason or layer.name in plain:
            everywhere(layer, Outcome(reason=reason, plain=plain.get(layer.name, "")))
        elif not placed.intersection(layer.parts):
            everywhere(layer, Outcome(reason=APART))
        else:
            add(layer, _kind(layer), partial(_outcomes, layer, own, heads, read))
    told = {name for layer, _ in layers for name in (layer.name, *layer.parts)}
    whole = [_said(f) for f in errors if f.layer not in told]
    return Survey(views=NAMES, layers=tuple(layers), kinds=tuple(kinds), whole=tuple(dict.fromkeys(whole)), findings=tuple(findings))


def _said(f: Finding) -> str:
    return f"{f.code}: {f.message}"


def _kind(layer: StandardLayer) -> tuple[Any, ...]:
    """Layers that agree in this have the same outcomes: all that the plan of a layer reads in a header."""
    dtypes = tuple((role, expr.dtype, expr.shape) for role, expr in layer.tensors.items())
    facts = layer.facts.get("scales_from"), tuple(sorted(layer.facts.get("missing_input_scale", {})))
    return layer.family, layer.form, layer.n, layer.k, layer.experts, layer.stack_n, layer.row_order, dtypes, facts


def _outcomes(layer: StandardLayer, own: ModelDtype, heads: Heads, read: Read) -> tuple[Outcome, ...]:
    return tuple(_outcome(layer, t, act, own, heads, read) for t, act in VIEWS)


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
