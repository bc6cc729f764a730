"""Which versions of the library read the stored configurations the same way, and which would make these very bytes.

In: a plan.  Out: versions. Each layer is configured again as the other version does, its own data questions included.
Facts: layouts.md 9 (every difference between 0.1.19 and 0.1.20), runtimes.md 3.4.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from humming_convert import passes
from humming_convert.checkpoint.tensors import Read
from humming_convert.findings import Refused
from humming_convert.layouts.reread import Tensors, bytes_differ, reading_differs
from humming_convert.layouts.small import REFERENCE
from humming_convert.plan.answer import SMALL, answers_for
from humming_convert.plan.recipe import resolved
from humming_convert.plan.types import Plan, PlannedLayer, Request
from humming_convert.standard.expr import Context
from humming_convert.standard.lossy import Meter
from humming_convert.targets.environment import VERSIONS

__all__ = ["VERSIONS", "layer_accepts", "layer_same_bytes", "versions"]


def versions(plan: Plan, read: Read) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(accepted, same_bytes), ascending; the version the plan was made for is always in both, and a version that is not known in none."""
    own = plan.request.humming_version
    others = [v for v in VERSIONS if v != own] if own in VERSIONS else []
    accepted = [v for v in others if not any(layer_accepts(p, v) for p in plan.layers)]
    same = [v for v in accepted if not any(layer_same_bytes(p, plan.request, v, read) for p in plan.layers)]
    return _ascending(own, accepted), _ascending(own, same)


def _ascending(own: str, others: list[str]) -> tuple[str, ...]:
    return tuple(sorted({own, *others}, key=lambda v: tuple(int(x) for x in v.split("."))))


def layer_accepts(planned: PlannedLayer, version: str) -> list[str]:
    """What another version reads otherwise in the layer's configuration; [] if nothing."""
    recipe = planned.recipe
    if recipe is None:
        return []  # the standard form holds no decision of a library version
    env = replace(recipe.environment, humming_version=version)
    return reading_differs(recipe.config.as_dict(), recipe.flags, recipe.pair.target, env)


def layer_same_bytes(planned: PlannedLayer, request: Request, version: str, read: Read) -> list[str]:
    """In what another version's bytes of the layer differ; [] if in nothing."""
    own, layer = planned.recipe, planned.layer
    if own is None:
        return []
    env = replace(own.environment, humming_version=version)
    target = own.pair.target
    # a static input scale shapes no bytes of the others
    answers = answers_for(layer, own.input, target, env, request, read, known=own.answers)
    try:
        other = resolved(
            n=layer.n,
            k=layer.k,
            experts=layer.experts,
            stack_n=layer.stack_n,
            form=layer.form,
            input=own.input,
            target=target,
            env=env,
            param_dtype=own.param_dtype,
            has_bias=own.has_bias,
            answers=answers,
            pad_n=request.pad_n,
            pad_k=request.pad_k,
            entry=own.entry,
            e0m=request.e0m == "auto",
        )
    except Refused as refused:
        return [f"refused: {refused.findings[0].message}"]
    by = passes.SMALL_PASSES if layer.n * layer.k * (layer.experts or 1) >= SMALL else REFERENCE
    return bytes_differ(own, other, partial(_small, planned, read), by)


def _small(planned: PlannedLayer, read: Read) -> Tensors:
    context = Context(read=read, meter=Meter())
    return {role: expr.evaluate(context) for role, expr in planned.layer.tensors.items() if role != "weight"}
