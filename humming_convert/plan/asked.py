"""An activation that was asked for with --standard: no GPU is named there, but what runs on none is refused before vLLM refuses it.

In: the layers of the standard form and the request.  Out: error findings.
Facts: runtimes.md 1.4 (allow_fallback is false where an activation was asked for), layouts.md 10.1.
"""

from __future__ import annotations

from collections.abc import Iterable

from humming_convert.findings import Findings
from humming_convert.plan.recipe import describe, environment_of
from humming_convert.plan.types import PlannedLayer, Request
from humming_convert.targets.activations import activation
from humming_convert.targets.legality import compatible, legal_activations
from humming_convert.targets.table import TARGETS


def check_asked(planned: Iterable[PlannedLayer], request: Request, findings: Findings) -> None:
    """`act-illegal` for every layer that no target runs with `--act`."""
    if request.act == "auto":
        return
    wanted = activation(request.act, request.dtype)
    env = environment_of(request)
    for p in planned:
        form = p.layer.form
        verdicts = [compatible(form, wanted, target, env, request.dtype) for target in TARGETS]
        if any(v.ok for v in verdicts):
            continue
        legal = dict.fromkeys(a for target in TARGETS for a in legal_activations(form, target, env, request.dtype))
        findings.error(
            "act-illegal",
            f"{describe(form)} cannot run with {request.act} activations on any target: {verdicts[-1].reason}; legal: {' '.join(legal)}",
            layer=p.layer.name,
            advice="choose a legal activation, or leave --act out: vLLM then uses 16-bit activations",
        )
