"""The proof of scales, zero points and biases: what the file holds, out of its packed order again, against the standard form.

Small tensors are restored whole by the inverse of the layout; of large ones some groups of every kind of place are, by the numpy
reference, which shares nothing with the compiled passes. Facts: architecture.md 1, 5; layouts.md 6, 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.restore import unpack_small
from humming_convert.layouts.scales import normal_back, on_c_back
from humming_convert.layouts.zero_points import integer_back
from humming_convert.passes import equal_bytes
from humming_convert.plan.types import PlannedLayer
from humming_convert.proof.failed import ProofFailed
from humming_convert.proof.stream import some_places
from humming_convert.standard.dequantize import zero_codes

Array = NDArray[Any]
WHOLE = 1 << 18  # numbers of a layer's small tensors up to which all are restored
GROUPS = 8  # groups looked at in a large tensor, each with all its rows


def prove_small(planned: PlannedLayer, standard: Mapping[str, Array], want: Mapping[str, Array], back: Mapping[str, Array]) -> None:
    """standard: the layer's tensors as they went into packing; want: what packing made of them; back: what the file holds. Scales that are proven
    apart (`proof.scales`) are in none of them.

    Raises ProofFailed if a byte differs, or if the file's tensors do not say what the standard ones do.
    """
    for role, got in back.items():
        if role != "weight" and not _same(got, want[role]):
            raise ProofFailed(planned, role, f"{planned.outputs[role].name}: the file does not hold what was computed from the source")
    recipe = planned.recipe
    if recipe is None:
        return
    if sum(prod(x.shape) for role, x in planned.layer.tensors.items() if role != "weight") <= WHOLE:
        _restored(planned, recipe, standard, back)
    else:
        _sampled(planned, recipe, standard, back)


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and equal_bytes(np.ascontiguousarray(a), np.ascontiguousarray(b))


def _kept(recipe: LayerRecipe) -> bool:
    """Whether scales keep their numbers: no step merges, clamps or rounds them (those are measured instead)."""
    s = recipe.small
    return s.merge in ("none", "equal") and not (s.fused or s.int_scale or s.fp16_range or s.rebias or s.zero_shift)


def _same_groups(recipe: LayerRecipe, standard: Array) -> bool:
    """Whether packing kept the groups: it neither split nor spread them."""
    return recipe.small.groups in (0, standard.shape[-1])


def _restored(planned: PlannedLayer, recipe: LayerRecipe, standard: Mapping[str, Array], back: Mapping[str, Array]) -> None:
    roles = {role: x for role, x in back.items() if role in ("weight_scale", "weight_scale_2", "zero_point", "bias")}
    _, restored, _ = unpack_small(recipe, roles)
    for role, got in restored.items():
        comparable = role in standard and got.shape == standard[role].shape and got.dtype == standard[role].dtype
        if (
            comparable
            and (role in ("bias", "zero_point") or _kept(recipe))
            and not recipe.small.zero_shift
            and not _same(got, standard[role])
        ):
            raise ProofFailed(planned, role, f"{planned.outputs[role].name}: restored, it is not the standard form's {role}")


def _sampled(planned: PlannedLayer, recipe: LayerRecipe, standard: Mapping[str, Array], back: Mapping[str, Array]) -> None:
    """Some groups of one expert, all rows: scales in the two plain orders, integer zero points one group a row."""
    experts, ppu, n = recipe.experts or 1, recipe.pair.target.ppu, recipe.n
    expert = some_places(experts, 1, recipe.k)[0]

    def of(values: Mapping[str, Array], role: str) -> Array:
        return values[role][expert] if recipe.experts is not None else values[role]

    inverse = {"normal": lambda x: normal_back(x, ppu), "on_c": on_c_back}.get(recipe.small.place)
    if "weight_scale" in standard and inverse is not None and _kept(recipe) and _same_groups(recipe, of(standard, "weight_scale")):
        scale = of(standard, "weight_scale")
        groups = some_places(scale.shape[1], GROUPS, 0)
        got = inverse(of(back, "weight_scale")[groups])[:n]
        if not _same(got, np.ascontiguousarray(scale[:, groups])):
            raise ProofFailed(planned, "weight_scale", f"groups {groups.tolist()} restored are not those of the standard form")
    if recipe.form.zero_point == "int" and recipe.small.zero_groups == 1 and _same_groups(recipe, of(standard, "zero_point")):
        bits, zeros = recipe.weight.bits, of(standard, "zero_point")
        groups = some_places(zeros.shape[1], GROUPS, 0)
        got = integer_back(of(back, "zero_point")[groups], recipe.small.zero_width, 1, ppu)[:n]
        if not np.array_equal(got, zero_codes(np.ascontiguousarray(zeros[:, groups]), bits, n)):
            raise ProofFailed(planned, "zero_point", f"groups {groups.tolist()} restored are not those of the standard form")
