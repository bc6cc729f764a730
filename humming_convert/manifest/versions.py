"""Which versions of the library read the stored configurations the same way, and which would make these very bytes.

Facts: layouts.md 9 (every difference between 0.1.19 and 0.1.20), runtimes.md 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from humming_convert.plan.types import Plan, PlannedLayer

KNOWN = ("0.1.19", "0.1.20")


def versions(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(accepted, same_bytes), ascending; the version the plan was made for is always in both.

    Another version is named only where layouts.md 9 lists no difference that this plan's layers can meet.
    """
    own = plan.request.humming_version
    alike = tuple(v for v in KNOWN if v != own and own in KNOWN and _none_differs(plan.layers))
    found = tuple(sorted({own, *alike}, key=lambda v: tuple(int(x) for x in v.split("."))))
    return found, found


def _none_differs(layers: Sequence[PlannedLayer]) -> bool:
    return all(_same_in_both(layer) for layer in layers)


def _same_in_both(planned: PlannedLayer) -> bool:
    """No row of layouts.md 9 applies: group splitting, one-column spread, E8M0 range fit and row padding, e0m with float zero points,
    words that do not hold 32 codes."""
    form, k = planned.layer.form, planned.layer.k
    if planned.recipe is None:
        return True  # the standard form holds no decision of a library version
    group = form.scale.k
    power_of_two = group & (group - 1) == 0
    several_columns = form.scale.kind != "group" or group < k
    fused = planned.recipe.config.use_fused_e8m0_scale
    return power_of_two and several_columns and not fused and form.zero_point != "fp" and k % 32 == 0


__all__ = ["KNOWN", "versions"]
