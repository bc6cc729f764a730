"""Packed tensors back to the standard form: the inverse of `pack_small` and of `prepare`, up to the named lossy steps.

In: a LayerRecipe and packed tensors.  Out: standard tensors, unpadded, and the form that they are in.
Facts: layouts.md 2 to 8.

The form is the source's wherever the steps can be undone. What merged (tensor scales of unequal parts; a factor with a secondary scale
that was given) comes back merged: the same values in another form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import DTYPES
from humming_convert.layouts import e8m0, zero_points
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.orders import order_c
from humming_convert.layouts.prepare import PackedLayer, Standard
from humming_convert.layouts.resolve import scale_dtype
from humming_convert.layouts.scales import normal_back, unplace_scale
from humming_convert.layouts.small import scales_apart
from humming_convert.layouts.weights import WeightAux, unpack_weight
from humming_convert.standard.expr import cast_values
from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.packing import stream_pack

Array = NDArray[Any]


def restored_form(recipe: LayerRecipe) -> WeightForm:
    """The form of the restored tensors, as far as it does not depend on the data: secondary scales that packing added are still there."""
    source, p = recipe.source, recipe.pair
    kind = source.scale.kind if recipe.small.merge != "to_channel" else "channel"
    dtype = p.bs if p.bs.startswith("float8") or kind in ("block", "tensor") else p.c.name
    scale = ScaleForm(kind=kind, dtype=dtype, k=source.scale.k, n=source.scale.n)
    return WeightForm(number=source.number, scale=scale, scale_2=recipe.form.scale_2, zero_point=source.zero_point)


def unpack_scale(recipe: LayerRecipe, packed: Array) -> Array:
    """[E, N, G]: out of the packed order, unpadded, still with the codes of S5 or S7; integers of S9 as float32."""
    p, config = recipe.pair, recipe.config
    rows = config.shape_n // p.gn if p.kind == "block" and p.gn else config.shape_n
    groups = config.shape_k // p.gw if p.gw else 1
    ppu = p.target.ppu
    shape = recipe.outputs["weight_scale"][1][-2:]
    out = np.stack([unplace_scale(x, recipe.small.place, ppu, rows, groups) for x in packed.reshape(recipe.experts or 1, *shape)])
    n = recipe.n // p.gn if p.kind == "block" and p.gn else recipe.n
    out = np.ascontiguousarray(out[:, :n, : recipe.k // p.gw if p.gw else 1])
    if recipe.small.int_scale:
        return out.view(np.int16).astype(np.float32)
    return out.view(DTYPES[scale_dtype(p)])


def undo_factors(recipe: LayerRecipe, scale: Array, scale_2: Array | None, form: WeightForm) -> tuple[Array, Array | None, WeightForm]:
    """S3, S5, S7, S9 undone. A secondary scale that they added is taken away again."""
    small, added = recipe.small, recipe.source.scale_2 == "none"
    if small.rebias:
        scale = e8m0.rebias_back(scale.view(np.uint8)).view(scale.dtype)
    if scale_2 is None or not (small.fused or small.fp16_range or small.int_scale):
        return scale, scale_2, form
    factor = scale_2.astype(np.float32)
    whole = added and bool((np.isfinite(factor) & (factor > 0)).all())
    if small.int_scale:
        form = replace(form, scale=replace(form.scale, dtype="float32"))
        return (scale * factor.reshape(-1, 1, 1), None, replace(form, scale_2="none")) if added else (scale, scale_2, form)
    if small.fused:
        # a factor that float16 rounded to 0 says no more where the row was; then the row's low end is taken to be 2^0
        low = np.frexp(factor)[1] - 1 + 128 if whole else np.full(factor.shape, 127)
        moved = scale.view(np.uint8).astype(np.int32) - small.fused_plus + low.reshape(low.shape[0], -1, 1)
        scale = moved.astype(np.uint8).view(scale.dtype)
        scale_2 = (
            None if whole else cast_values(factor * np.float32(2), recipe.param_dtype) if scale_2.ndim == 2 else factor * np.float32(2)
        )
    elif whole:
        shift = (np.frexp(factor)[1] - 1).reshape(-1, *(1,) * (scale.ndim - 1))
        scale, scale_2 = (scale.view(np.uint8).astype(np.int32) + shift).astype(np.uint8).view(scale.dtype), None
    return scale, scale_2, form if scale_2 is not None else replace(form, scale_2="none")


def unpack_small(recipe: LayerRecipe, packed: Mapping[str, Array]) -> tuple[WeightForm, dict[str, Array], WeightAux]:
    """Form and standard tensors of every role but `weight`, and what `unpack_weight` needs. Without scales, where they go apart."""
    e, n, p = recipe.experts or 1, recipe.n, recipe.pair
    form = restored_form(recipe)
    lead = () if recipe.experts is None else (recipe.experts,)
    out: dict[str, Array] = {}
    aux = WeightAux()
    scale_2: Array | None = None
    if "weight_scale_2" in packed:
        x = packed["weight_scale_2"]
        scale_2 = order_c(x.reshape(e, -1))[:, :n] if recipe.form.scale_2 == "channel" else x.reshape(e)
    if recipe.small.place == "tensor":
        out["weight_scale"] = packed["weight_scale"]
    elif "weight_scale" in packed or not scales_apart(recipe):
        scale, scale_2, form = undo_factors(recipe, unpack_scale(recipe, packed["weight_scale"]), scale_2, form)
        scale = source_columns(recipe, scale)
        out["weight_scale"] = scale.reshape(*lead, *scale.shape[1:])
    if scale_2 is not None:
        out["weight_scale_2"] = scale_2.reshape(*lead, n) if scale_2.ndim == 2 else scale_2.reshape(lead or (1,))
    if "zero_point" in packed:
        shape = recipe.outputs["zero_point"][1][-2:]
        stored = packed["zero_point"].reshape(e, *shape)
        groups = recipe.k // p.gw if p.gw else 1
        if recipe.form.zero_point == "int":
            padded = np.stack(
                [zero_points.integer_back(z, recipe.small.zero_width, recipe.small.zero_groups, p.target.ppu) for z in stored]
            )
            aux = WeightAux(zero=padded)
            z = zero_points.pack_standard(source_columns(recipe, padded[:, :n, :groups]), recipe.weight.bits)
        else:
            z = np.stack([normal_back(z, p.target.ppu) for z in stored])[:, :n, :groups]
            if recipe.small.zero_shift:
                z = cast_values(z.astype(np.float32) - np.float32(recipe.small.zero_shift), recipe.param_dtype)
            z = source_columns(recipe, z)
        out["zero_point"] = np.ascontiguousarray(z.reshape(*lead, *z.shape[1:]))
    if "bias" in packed:
        out["bias"] = np.ascontiguousarray(order_c(packed["bias"])[..., :n])
    return form, {role: np.ascontiguousarray(x) for role, x in out.items()}, aux


def source_columns(recipe: LayerRecipe, x: Array) -> Array:
    """S4 a undone: one column for each group of the source."""
    if not recipe.small.groups:
        return x
    return x[..., :: x.shape[-1] // (recipe.k // recipe.source.scale.k)]


def restore(packed: PackedLayer) -> Standard:
    """The standard layer that a packed one stands for."""
    recipe = packed.recipe
    form, tensors, aux = unpack_small(recipe, packed.tensors)
    words = packed.tensors["weight"].reshape(recipe.experts or 1, *recipe.weight.shape)
    codes = [unpack_weight(recipe.weight, w, aux.of_expert(e)) for e, w in enumerate(words)]
    weight = np.stack([stream_pack(c, recipe.weight.bits) for c in codes])
    tensors["weight"] = weight if recipe.experts is not None else weight[0]
    return Standard(form=form, n=recipe.n, k=recipe.k, experts=recipe.experts, stack_n=recipe.stack_n, tensors=tensors)
