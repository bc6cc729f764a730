"""Everything beside the weight: scales, zero points, secondary scales and biases of a layer, without the weight.

In: a LayerRecipe and standard tensors by role.  Out: packed tensors by role, and what the weight's maps need.
Facts: layouts.md 2 (order of steps), 3, 6 to 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import DTYPES, NAMES
from humming_convert.layouts import e8m0, padding, zero_points
from humming_convert.layouts.config import LayerRecipe, ScalePlace
from humming_convert.layouts.orders import order_c
from humming_convert.layouts.scales import normal, place_scales
from humming_convert.layouts.weights import WeightAux
from humming_convert.standard.expr import cast_values
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import STORED_AS, scale_values
from humming_convert.targets.refusals import refuse

Array = NDArray[Any]
Tensors = Mapping[str, Array]
INPUT_SCALES = ("input_scale", "input_scale_2")  # static scales of activations, one an expert: they have no layout (architecture.md 9.2)


class SmallPasses(Struct, frozen=True):
    """What goes over every scale of a layer; compiled passes do the same as these references. place: `place_scale` of every expert [E, N', G]."""

    place: Callable[[Array, ScalePlace, bool], Array] = place_scales
    row_range: e8m0.RowRange = e8m0.row_range
    raise_rows: e8m0.RaiseRows = e8m0.raise_rows


REFERENCE = SmallPasses()


class Apart(Struct, frozen=True):
    """What must be known of scales that go to their place apart. lows: S5's low of each expert, below which no scale is; None: nothing is fused."""

    lows: NDArray[np.uint8] | None = None


class State(Struct):
    """The tensors of a layer on their way, always with an experts axis (1 for none).

    scale: [E, N, G] (block: [E, N/gn, G]; tensor: [E]); None where scales go to their place apart.  zero: codes or values [E, N, G].  scale_2: [E] or [E, N].  bias: [E, N].
    scale_name: how the bytes of `scale` are read (Humming's name).
    """

    scale: Array | None
    scale_name: str
    zero: Array | None = None
    scale_2: Array | None = None
    bias: Array | None = None
    aux: dict[str, Array] = field(default_factory=dict)


# --- Into the state


def cast(x: Array, dtype: str, step: str, role: str, meter: Meter) -> Array:
    """Values in another dtype, measured."""
    out = cast_values(x, dtype)
    if out is not x:
        meter.record(step, role, x.astype(np.float64), out.astype(np.float64))
    return out


def scales_apart(recipe: LayerRecipe) -> bool:
    """Whether scales only move, are padded, and lowered by a number for each expert (S5): nothing merges, rounds or rewrites them otherwise, and of
    the rest of the layer only what S5 makes of that number depends on them."""
    small = recipe.small
    made = small.merge not in ("none", "equal") or small.fp16_range or small.int_scale or small.rebias
    by_row = small.fused and recipe.form.scale_2 == "channel"
    return not made and not by_row and recipe.source.scale.kind in ("channel", "group") and small.place not in ("tensor", "block")


def take(recipe: LayerRecipe, tensors: Tensors, meter: Meter, apart: bool = False) -> State:
    """Standard tensors with an experts axis, cast as the entry's loader does; types are checked as the library does (S4)."""
    e, n, param = recipe.experts or 1, recipe.n, recipe.param_dtype
    source = recipe.source
    wanted = set() if apart else {"weight_scale"}
    wanted |= {"zero_point"} if source.zero_point != "none" else set()
    wanted |= {"weight_scale_2"} if source.scale_2 != "none" else set()
    wanted |= {"bias"} if recipe.has_bias else set()
    for role in sorted(wanted ^ (set(tensors) - {"weight", *INPUT_SCALES})):
        raise refuse("tensor_missing", f"{role} is {'missing' if role in wanted else 'there, and the form has none'}")

    def values16(role: str, step: str) -> Array:
        x = tensors[role]
        if recipe.entry != "humming-layer" and NAMES[x.dtype] not in (param, *(("F32",) if step == "scale-cast" else ())):
            raise refuse("tensor_dtype", f"{role} is {NAMES[x.dtype]}, the model is {param}")
        if NAMES[x.dtype] not in ("F16", "BF16", "F32"):
            raise refuse("tensor_dtype", f"{role} is {NAMES[x.dtype]}, not a float of 16 or 32 bits")
        return x

    def shaped(x: Array, role: str, *shape: int) -> Array:
        if x.size != e * int(np.prod(shape)) or x.shape[-1:] != shape[-1:]:
            raise refuse("tensor_shape", f"{role} has shape {x.shape}, its form wants {shape} for each of {e} experts")
        return x.reshape(e, *shape)

    kind = source.scale.kind
    name = "float32" if kind in ("block", "tensor") else source.scale.dtype
    scale = None if apart else tensors["weight_scale"]
    if scale is None:
        s = State(scale=None, scale_name=name)
    elif kind == "tensor":
        s = State(scale=typed(scale, "weight_scale", "F32").reshape(e, -1), scale_name=name)
    elif kind == "block":
        rows = n // source.scale.n if source.scale.n else 1
        s = State(scale=shaped(typed(scale, "weight_scale", "F32"), "weight_scale", rows, recipe.k // source.scale.k), scale_name=name)
    else:
        if name in ("float16", "bfloat16", "float32"):
            scale = values16("weight_scale", "scale-cast")
            if recipe.small.merge in ("none", "equal"):
                scale = cast(scale, param, "scale-cast", "weight_scale", meter)
        else:
            bytes_ = scale.dtype == np.uint8 and STORED_AS[name].startswith("F8")
            scale = scale.view(DTYPES[STORED_AS[name]]) if bytes_ else typed(scale, "weight_scale", STORED_AS[name])
        s = State(scale=columns(recipe, scale, "weight_scale"), scale_name=name)
    if source.zero_point == "int":
        words = typed(tensors["zero_point"], "zero_point", "I32")
        z = words.reshape(e, n * recipe.weight.bits // 32, -1)
        s.zero = columns(recipe, zero_points.unpack_standard(z, recipe.weight.bits, n), "zero_point")
    elif source.zero_point == "fp":
        z = cast(values16("zero_point", "zero-point"), param, "scale-cast", "zero_point", meter)
        s.zero = columns(recipe, z, "zero_point")
    if source.scale_2 == "tensor":
        s.scale_2 = typed(tensors["weight_scale_2"], "weight_scale_2", "F32").reshape(e, -1)
    elif source.scale_2 == "channel":
        s.scale_2 = shaped(
            cast(values16("weight_scale_2", "scale-cast"), param, "scale-cast", "weight_scale_2", meter), "weight_scale_2", n
        )
    if recipe.has_bias:
        s.bias = shaped(cast(values16("bias", "bias-cast"), param, "bias-cast", "bias", meter), "bias", n)
    return s


def typed(x: Array, role: str, dtype: str) -> Array:
    if NAMES.get(x.dtype) != dtype:
        raise refuse("tensor_dtype", f"{role} is {NAMES.get(x.dtype, x.dtype)}, its form wants {dtype}")
    return x


def columns(recipe: LayerRecipe, x: Array, role: str) -> Array:
    """S4 a: [E, N, L] with each column repeated to the groups of the configuration (splits, one-column scales)."""
    p = recipe.pair
    groups = recipe.k // p.gw if p.gw else 1
    length = x.shape[-1]
    if x.size != (recipe.experts or 1) * recipe.n * length:
        raise refuse("tensor_shape", f"{role} has shape {x.shape}, the layer {recipe.n} rows")
    x = x.reshape(recipe.experts or 1, recipe.n, length)
    if recipe.small.groups and length not in (0, groups) and groups % length == 0:
        x = np.repeat(x, groups // length, axis=-1)
    if x.shape[-1] != groups:
        raise refuse("tensor_shape", f"{role} has {length} columns, the form {groups}")
    return x


# --- Steps


def merge(recipe: LayerRecipe, s: State, meter: Meter) -> None:
    """S0: tensor scales [E, s] of the parts become one, or a row vector."""
    how, e = recipe.small.merge, recipe.experts or 1
    key = s.scale if recipe.source.scale.kind == "tensor" else s.scale_2
    if recipe.source.scale.kind == "tensor" or recipe.source.scale_2 == "tensor":
        assert key is not None
        if key.shape[1] not in (1, len(recipe.stack_n)):
            raise refuse("tensor_shape", f"{key.shape[1]} tensor scales an expert for {len(recipe.stack_n)} parts")
        one = np.ascontiguousarray(key[:, 0])
        rows = np.repeat(key, recipe.stack_n, axis=1) if key.shape[1] > 1 else np.repeat(key, recipe.n, axis=1)
    if how in ("none", "equal"):
        if recipe.source.scale.kind == "tensor":
            s.scale = one
        elif recipe.source.scale_2 == "tensor":
            s.scale_2 = one
        return
    param = recipe.param_dtype
    if how == "to_channel":
        s.scale = cast(rows, param, "scale-cast", "weight_scale", meter)[..., None]
    elif how == "to_channel_2":
        s.scale_2 = cast(rows, param, "scale2-cast", "weight_scale_2", meter)
    else:
        assert s.scale is not None
        product = scale_values(s.scale, s.scale_name).astype(np.float32).reshape(e, recipe.n, 1) * rows[..., None]
        s.scale = cast(product, param, "scale-cast", "weight_scale", meter)
        s.scale_2 = None
    if how != "to_channel_2":
        s.scale_name = "float16" if param == "F16" else "bfloat16"


def shift_zero_points(recipe: LayerRecipe, s: State, meter: Meter) -> None:
    """S2a (and S1 of 0.1.19): floating zero points move by the midpoint, in float32, rounded to the model dtype."""
    if recipe.small.zero_shift and s.zero is not None:
        moved = s.zero.astype(np.float32) + np.float32(recipe.small.zero_shift)
        s.zero = cast(moved, recipe.param_dtype, "scale-cast", "zero_point", meter)


def into_fp16_range(recipe: LayerRecipe, s: State, meter: Meter) -> None:
    """S3: E8M0 exponents moved into float16's range, the factor into the secondary scale."""
    if not recipe.small.fp16_range:
        return
    assert s.scale is not None
    before = s.scale.view(np.uint8)
    moved, factor = e8m0.fp16_range(before)
    wide = factor.reshape(-1, *(1,) * (moved.ndim - 1)).astype(np.float64)
    meter.record("e8m0-fp16", "weight_scale", np.exp2(before - 127.0), np.exp2(moved - 127.0) * wide)
    s.scale = moved.view(s.scale.dtype)
    if recipe.form.scale_2 == "channel":
        assert s.scale_2 is not None
        product = s.scale_2.astype(np.float32) * factor[:, None]
        s.scale_2 = cast(product, recipe.param_dtype, "scale2-cast", "weight_scale_2", meter)
    else:
        s.scale_2 = factor if s.scale_2 is None else s.scale_2 * factor


def missing_scale_2(recipe: LayerRecipe, s: State) -> None:
    """S4 c: fused and integer scales always have a secondary scale; ones where none is given."""
    if s.scale_2 is None and (recipe.small.fused or recipe.small.int_scale):
        e = recipe.experts or 1
        channel = recipe.form.scale_2 == "channel"
        s.scale_2 = np.ones((e, recipe.n), DTYPES[recipe.param_dtype]) if channel else np.ones(e, np.float32)


def integer_scale_type(recipe: LayerRecipe, s: State, meter: Meter) -> None:
    """S4 b: scales that will be integers are rounded to the model dtype first."""
    if recipe.small.int_scale and s.scale_name not in ("float16", "bfloat16"):
        assert s.scale is not None
        s.scale = cast(scale_values(s.scale, s.scale_name).astype(np.float32), recipe.param_dtype, "scale-cast", "weight_scale", meter)
        s.scale_name = recipe.config.c_dtype


def pad(recipe: LayerRecipe, s: State, by: SmallPasses) -> None:
    """Section 3."""
    p, n = recipe.pair, recipe.config.shape_n
    g = recipe.config.shape_k // p.gw if p.gw else 1
    if s.scale is None:
        pass
    elif p.kind == "block":
        s.scale = padding.extend(s.scale, n // p.gn if p.gn else 1, g)
    elif recipe.small.fused:
        rows_with_maximum = recipe.environment.pads_rows_with_maximum
        s.scale = padding.extend_fused(s.scale.view(np.uint8), n, g, rows_with_maximum, by.row_range).view(s.scale.dtype)
    elif p.kind != "tensor":
        s.scale = padding.extend(s.scale, n, g, padding.ONE if s.scale_name == "float8e8m0" else 0)
    if s.zero is not None:
        s.zero = padding.extend(s.zero, n, g)
    if s.scale_2 is not None and s.scale_2.ndim == 2:
        s.scale_2 = padding.extend(s.scale_2, n, None)
    if s.bias is not None:
        s.bias = padding.extend(s.bias, n, None)


def fuse(recipe: LayerRecipe, s: State, by: SmallPasses, apart: Apart | None = None) -> None:
    """S5: the scales of 8-bit activations; the weight's offsets go to `aux`. Of scales apart none is below its expert's low: no offsets."""
    small = recipe.small
    if not small.fused:
        return
    if apart is not None:
        assert apart.lows is not None and s.scale_2 is not None and scales_apart(recipe)
        none = np.zeros((recipe.config.shape_n, recipe.config.shape_k // recipe.pair.gw), np.uint8)
        s.aux["offsets"] = np.broadcast_to(none, (recipe.experts or 1, *none.shape))
        s.scale_2 = e8m0.factor_of(apart.lows) * s.scale_2.astype(np.float32)
        return
    assert s.scale is not None and s.scale_2 is not None
    channel = recipe.form.scale_2 == "channel"
    before = s.scale.view(np.uint8)
    scale_2 = s.scale_2.astype(np.float32)
    new, offsets, factor = e8m0.fused_scales(before, channel, small.fused, small.fused_plus, by.row_range, by.raise_rows)
    s.aux["offsets"] = offsets
    s.aux["scales"], s.aux["scale_2"] = before, scale_2 if channel else scale_2[:, None]
    s.scale, s.scale_2 = new.view(s.scale.dtype), factor * scale_2


def as_integers(recipe: LayerRecipe, scale: Array, scale_2: Array, meter: Meter) -> tuple[Array, Array]:
    """S9: packed scales as int16 under their 16-bit dtype, one factor for the whole tensor."""
    w = scale.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.float32(np.abs(w).max() / np.float32(1024))
        quotient = np.nan_to_num(np.rint(w / factor), nan=0.0, posinf=0.0, neginf=0.0).astype(np.int16)
    meter.record("int-weight-scale", "weight_scale", w, quotient.astype(np.float32) * factor)
    return quotient.view(scale.dtype), scale_2.astype(np.float32) * factor


# --- Out of the state


def pack_small(
    recipe: LayerRecipe, tensors: Tensors, meter: Meter, by: SmallPasses = REFERENCE, *, apart: Apart | None = None
) -> tuple[dict[str, Array], WeightAux]:
    """Packed tensors of every role but `weight`, and what the weight's maps need.

    tensors: the standard form of `recipe.source` by role; a `weight` among them is not looked at, static input scales go through.
    apart: all but `weight_scale`, which is neither among the tensors nor among what is made (`scales_apart`).
    """
    s = take(recipe, tensors, meter, apart is not None)
    merge(recipe, s, meter)
    shift_zero_points(recipe, s, meter)
    into_fp16_range(recipe, s, meter)
    integer_scale_type(recipe, s, meter)
    missing_scale_2(recipe, s)
    pad(recipe, s, by)
    fuse(recipe, s, by, apart)
    small, ppu = recipe.small, recipe.pair.target.ppu
    out: dict[str, Array] = {}
    if s.scale is None:
        assert apart is not None and scales_apart(recipe)
    elif small.place == "tensor":
        out["weight_scale"] = s.scale
    else:
        scale = s.scale
        if small.rebias:
            new = e8m0.rebias(scale.view(np.uint8))
            # the kernels mask the byte to a float16 exponent: 0 is read as 0, not as 2^-15 (seen on the GPU, docs/gemm.md)
            read = np.where(new == 0, 0.0, np.exp2(e8m0.rebias_back(new) - 127.0))
            meter.record("e8m0-fp16", "weight_scale", np.exp2(scale.view(np.uint8) - 127.0), read)
            scale = new.view(scale.dtype)
        out["weight_scale"] = by.place(scale, small.place, ppu)
    if s.zero is not None:
        if recipe.form.zero_point == "int":
            if "int_to_float_zp" in recipe.weight.maps:
                s.aux["zero"] = np.ascontiguousarray(s.zero)
            placed = by.place(s.zero, "normal", ppu)
            out["zero_point"] = np.stack([zero_points.joined(z, small.zero_width, small.zero_groups) for z in placed])
        else:
            out["zero_point"] = np.stack([normal(z, ppu) for z in s.zero])
    if small.int_scale:
        assert s.scale_2 is not None
        out["weight_scale"], s.scale_2 = as_integers(recipe, out["weight_scale"], s.scale_2, meter)
    if s.scale_2 is not None:
        channel = s.scale_2.ndim == 2
        out["weight_scale_2"] = (
            order_c(cast(s.scale_2, recipe.param_dtype, "scale2-cast", "weight_scale_2", meter)) if channel else s.scale_2
        )
    if s.bias is not None:
        out["bias"] = order_c(s.bias)
    for role, x in out.items():
        dtype, shape = recipe.outputs[role]
        out[role] = np.ascontiguousarray(x).reshape(shape)
        assert NAMES[x.dtype] == dtype, (role, x.dtype, dtype)
    for role in INPUT_SCALES:
        if role in tensors:
            out[role] = typed(tensors[role], role, "F32").reshape(recipe.experts or 1)
    return out, WeightAux(**s.aux)
