"""From forms, shapes, a target and the answers of the data to the recipe of a packed layer, or why there is none.

In: everything but the numbers.  Out: a LayerRecipe with every output's dtype and shape.
Facts: layouts.md 2 (order of steps), 3, 4.1, 4.3, 5.0, 11; 9 for 0.1.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from humming_convert.layouts.config import Entry, LayerConfig, LayerRecipe, Merge, ScalePlace, SmallRecipe
from humming_convert.layouts.e8m0 import LIMIT
from humming_convert.layouts.questions import Answers, asks_fp16_range, asks_no_zero_code, asks_range_fit, asks_tensor_scales
from humming_convert.layouts.recipe import CodeMap, Interleave, Place, WeightRecipe
from humming_convert.standard.forms import InputForm, ScaleForm, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES, STORED_AS, number
from humming_convert.targets.configure import channel_for_int8, check_schema, check_zero_points, configure, model_scales, split_group
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import layout_exists, verdict
from humming_convert.targets.pair import (
    E4M3,
    E8M0,
    Pair,
    flags,
    pair_of,
    should_apply_bs_on_c,
    use_block_scaled_mma,
    use_flat_weight,
    use_ldmatrix_dequant,
    use_native_dequant,
    use_packed_k_layout,
    use_raw_weight,
)
from humming_convert.targets.refusals import refuse
from humming_convert.targets.table import Target

SIXTEEN = ("float16", "bfloat16")


class Settled(Struct, frozen=True, kw_only=True):
    """What S0 to S3 decide before shapes matter."""

    pair: Pair
    merge: Merge
    maps: tuple[CodeMap, ...]
    zero_shift: int
    fp16_range: bool


def merged(p: Pair, answers: Answers, entry: Entry, parts: int) -> tuple[Pair, Merge]:
    """S0: tensor scales of fused parts, and float32 scales (serve only)."""
    if entry == "humming-layer":
        return p, "none"
    if p.kind == "tensor" or p.scale_2 == "tensor":
        if not asks_tensor_scales(p, entry, parts) or answers.get("tensor_scales_equal"):
            return replace(p, bs="float32") if p.kind == "tensor" else p, "equal"
        if p.kind == "tensor":
            return replace(p, kind="channel", bs=p.c.name), "to_channel"
        if p.kind == "group":
            return replace(p, scale_2="channel"), "to_channel_2"
        return replace(p, bs=p.c.name, scale_2="none"), "into_channel"
    return model_scales(p), "none"


def check_stored_types(p: Pair, entry: Entry) -> None:
    """S4: what the library's exact type check refuses, as far as forms show it. `p`: after S0."""
    if entry != "humming-layer" and p.kind in ("group", "channel") and p.bs in (*SIXTEEN, "float32") and p.bs != p.c.name:
        raise refuse("tensor_dtype", f"weight scales in {p.bs} for a model in {p.c}")


def settle(p: Pair, answers: Answers, entry: Entry, parts: int, e0m: bool, k: int) -> Settled:
    """S0 to S3: the configured pair, and the maps of codes and zero points. Raises Refused where the library does."""
    check_schema(p)
    given_scale_2 = p.scale_2
    p, merge = merged(p, answers, entry, parts)
    check_zero_points(p)
    maps: list[CodeMap] = []
    zero_shift = 0
    mid = 1 << (p.b.bits - 1)
    if asks_no_zero_code(p, entry, e0m) and p.env.e0m_wants_k_of_32 and k % 32:
        # whatever the codes are: the library unpacks them to look
        raise refuse("e0m_k_not_multiple_of_32", f"codes that may become sign-magnitude, with K = {k}")
    if asks_no_zero_code(p, entry, e0m) and (p.zero_point == "none" or answers.get("zero_points_shift")) and answers.get("no_zero_code"):
        maps.append("e0m")
        zero_shift = -mid if p.zero_point == "fp" else 0
        p = replace(p, b=number(f"float{p.b.bits}e0m{p.b.bits - 1}"))
    if entry == "vllm":
        if p.zero_point != "none" and p.a.bits == p.b.bits:
            raise refuse("equal_bits_zero_point", f"zero points with {p.b} weights and {p.a} activations")
        if not (v := verdict(p)).ok:
            raise refuse("schema_incompatible", f"{p.b} weights with {p.a} activations on {p.target}: {v.reason}")
    if p.a.is_integer and p.b.is_e0m:
        if p.zero_point == "int":
            raise refuse("e0m_int_zero_point", f"{p.b} weights with integer zero points and {p.a} activations")
        maps.append("e0m_to_int")
        zero_shift += mid if p.zero_point == "fp" else 0
        p = replace(p, b=number(f"uint{p.b.bits}"))
    if maps and p.env.e0m_wants_k_of_32 and k % 32:
        raise refuse("e0m_k_not_multiple_of_32", f"sign-magnitude codes with K = {k}")
    asked = split_group(channel_for_int8(p))
    p = configure(asked)
    if asks_range_fit(p) and answers.get("range_fit"):
        p = configure(replace(asked, scale_2="channel"))
    fp16_range = asks_fp16_range(p, entry) and answers.get("fp16_range")
    if fp16_range and p.scale_2 != "channel":
        p = replace(p, scale_2="tensor")
    check_stored_types(p, entry)
    if given_scale_2 == "tensor" and p.scale_2 == "channel" and merge != "to_channel_2":
        raise refuse("tensor_dtype", "a float32 secondary scale, and the activation asks for one per row in the model dtype")
    return Settled(pair=p, merge=merge, maps=tuple(maps), zero_shift=zero_shift, fp16_range=fp16_range)


def place_of(p: Pair, n_padded: int) -> tuple[Place, Interleave, bool]:
    """layouts.md 4.3: place, interleave, swapped blocks."""
    fused_e4m3 = p.fused and p.a.name == E4M3
    if use_raw_weight(p):
        return "raw", "mode3", False
    if use_flat_weight(p):
        return "flat", "mode3", False
    if use_packed_k_layout(p, n_padded):
        return "packed_k", "mode2" if fused_e4m3 else "mode3", not p.fused
    if use_native_dequant(p):
        return "standard", "native", False
    return "standard", "mode2" if fused_e4m3 else "mode3", False


def weight_shape(p: Pair, place: Place, n: int, k: int) -> tuple[int, int]:
    """layouts.md 11, for padded n, k."""
    a, b = p.a.bits, p.b.bits
    match place:
        case "standard":
            return k * a // 256, n * 8 * b // a
        case "packed_k":
            return k // 64, n * 2 * b
        case "raw":
            return n, (-(-k // 128) * 128 if a == 8 and b < 8 else k) * b // 32
        case "flat":
            return n, k * b // 32


def late_maps(p: Pair, place: Place) -> tuple[CodeMap, ...]:
    """Maps after padding: S5, 5.0 a, 5.0 b."""
    a, b = p.a, p.b
    out: list[CodeMap] = ["fused_e8m0"] if p.fused else []
    if (a.is_integer and b.is_integer and a.bits == b.bits) or use_ldmatrix_dequant(p):
        out.append("sign_flip")
    whole = a.name == "bfloat16" and (b.bits > 7 or (b.bits > 6 and p.zero_point == "int"))
    if place in ("standard", "packed_k") and b.is_integer and not a.is_integer and p.zero_point != "fp" and (a.bits < 16 or whole):
        out.append("int_to_float_zp" if p.zero_point == "int" else "int_to_float")
    return tuple(out)


def scale_place(p: Pair) -> ScalePlace:
    """layouts.md 6, first match."""
    if p.kind == "tensor":
        return "tensor"
    if p.kind == "block":
        return "block"
    if use_block_scaled_mma(p) and p.kind == "group":
        if p.target.family == "umma":
            return "umma"
        return "mx1" if 256 // p.a.bits == p.gw else "mx4"
    return "on_c" if should_apply_bs_on_c(p) else "normal"


def check_sizes(
    p: Pair, place: Place, scales: ScalePlace, n: int, k: int, group: int, block_rows: int, n_padded: int, k_padded: int
) -> None:
    """Sizes that have to divide (layouts.md 3, 5, 6). `group`, `block_rows`: as given, before a split."""
    a, b = p.a.bits, p.b.bits
    if not layout_exists(p):
        raise refuse("interleave_undefined", f"{p.b} codes are wider than {p.a} activations")
    if group and k % group:
        raise refuse("k_not_multiple_of_group", f"K = {k} does not hold whole groups of {group}")
    if n_padded % 64:  # whatever the layout: `transform` asserts it first
        raise refuse("n_not_multiple_of_64", f"padded N = {n_padded}")
    if (k * b) % 32:
        raise refuse("row_not_whole_codes", f"{k} codes of {b} bits do not fill whole words")
    if p.zero_point == "int" and (n * b) % 32:
        raise refuse("row_not_whole_codes", f"{n} zero points of {b} bits do not fill whole words")
    if p.kind == "block" and block_rows and n % block_rows:
        raise refuse("n_not_multiple_of_block", f"N = {n} does not hold whole blocks of {block_rows}")
    if k_padded % (512 // a):
        raise refuse("k_not_multiple_of_tile", f"padded K = {k_padded}, and a tile has {512 // a} columns")
    groups = k_padded // p.gw if p.gw else 1
    if groups % {"mx1": 2, "mx4": 4}.get(scales, 1):
        raise refuse("k_not_whole_groups_of_word", f"{groups} scale columns do not fill whole words")
    if (k_padded * b) % {"flat": 128, "raw": 32}.get(place, 1):
        raise refuse("raw_row_not_whole_words", f"padded rows of {k_padded * b} bits")
    if p.fused and (p.gw < 32 or p.gw & (p.gw - 1)):
        raise refuse("fused_group_not_legal", f"groups of {p.gw}")


def zero_layout(p: Pair, k_padded: int) -> tuple[int, int]:
    """layouts.md 7: stored width, groups joined in a row (v)."""
    if p.zero_point != "int":
        return 0, 1
    width = 4 if p.b.bits <= 4 else 8
    joined = 64 // p.gw if use_block_scaled_mma(p) and p.a.bits == 4 and p.gw else 1
    if joined <= 1:
        return width, 1
    if width != 4:
        raise refuse("grouped_zero_point_above_4_bits", f"{p.b} zero points with block-scaled {p.a} activations")
    if (k_padded // p.gw) % joined:
        raise refuse("k_not_whole_groups_of_word", f"{k_padded // p.gw} groups of zero points are joined by {joined}")
    return width, joined


def scale_dtype(p: Pair) -> str:
    """safetensors dtype of the standard weight scales under the configuration (layouts.md 1)."""
    if p.kind in ("block", "tensor"):
        return "F32"
    return STORED_AS[p.c.name] if p.bs in (*SIXTEEN, "float32") else STORED_AS[p.bs]


def output_shapes(
    p: Pair, weight: WeightRecipe, small: SmallRecipe, n: int, k: int, experts: int | None, has_bias: bool
) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """layouts.md 11. n, k: padded."""
    e = () if experts is None else (experts,)
    g = k // p.gw if p.gw else 1
    param = STORED_AS[p.c.name]
    shapes: dict[ScalePlace, tuple[int, ...]] = {
        "tensor": (),
        "block": (g, n // p.gn if p.gn else 1),
        "umma": (-(-g // 4), -(-n // 128) * 128),
        "mx1": (g // 2, n // 2),
        "mx4": (g // 4, n),
        "on_c": (g, n),
        "normal": (g, n),
    }
    words = small.place in ("umma", "mx1", "mx4")
    out: dict[str, tuple[str, tuple[int, ...]]] = {"weight": ("I32", (*e, *weight.shape))}
    out["weight_scale"] = ("I32" if words else scale_dtype(p), (*e, *shapes[small.place]) or (1,))
    if p.zero_point == "int":
        v = small.zero_groups
        out["zero_point"] = ("I32", (*e, g // v, n * v // 8 if v > 1 else n * small.zero_width // 32))
    elif p.zero_point == "fp":
        out["zero_point"] = (param, (*e, g, n))
    if p.scale_2 == "tensor":
        out["weight_scale_2"] = ("F32", e or (1,))
    elif p.scale_2 == "channel":
        out["weight_scale_2"] = (param, (*e, n))
    if has_bias:
        out["bias"] = (param, (*e, n))
    return out


def resolve(
    *,
    n: int,
    k: int,
    experts: int | None,
    stack_n: tuple[int, ...],
    form: WeightForm,
    input: InputForm,  # noqa: A002
    target: Target,
    env: Environment,
    param_dtype: str,
    has_bias: bool,
    answers: Answers,
    pad_n: int,
    pad_k: int,
    entry: Entry,
    e0m: bool,
) -> LayerRecipe:
    """The recipe of one layer. Raises Refused where the library refuses, or where its bytes would mean nothing.

    n, k: of the fused layer, not padded.  stack_n: rows of the parts of one expert.  param_dtype: BF16 or F16.
    entry `vllm` asks compatibility first; `direct` does not; `humming-layer` follows the library's layer object.
    """
    if sum(stack_n) != n:
        raise refuse("tensor_shape", f"parts of {stack_n} rows in a layer of {n}")
    assert MODEL_DTYPES[param_dtype]
    asked = pair_of(form, input, target, env, param_dtype)
    if entry == "humming-layer" and len(stack_n) > 1 and (asked.kind == "tensor" or asked.scale_2 == "tensor"):
        raise refuse("tensor_shape", "the library's layer takes one tensor scale; use --entry vllm for fused parts")
    s = settle(asked, answers, entry, len(stack_n), e0m, k)
    p = s.pair
    n_padded, k_padded = -(-n // pad_n) * pad_n, -(-k // pad_k) * pad_k
    place, interleave, swapped = place_of(p, n_padded)
    scales = scale_place(p)
    width, joined = zero_layout(p, k_padded)
    check_sizes(p, place, scales, n, k, asked.gw, asked.gn, n_padded, k_padded)
    zero_columns = k_padded // p.gw if p.gw else 1
    late = late_maps(p, place)
    zero_group = k_padded // zero_columns
    if "int_to_float_zp" in late and -(-k_padded // zero_group) != zero_columns:
        raise refuse("zero_point_groups_uneven", f"{zero_columns} columns of zero points for padded K = {k_padded}")
    weight = WeightRecipe(
        bits=p.b.bits,
        act_bits=p.a.bits,
        n=n,
        k=k,
        pad_n=n_padded - n,
        pad_k=k_padded - k,
        maps=(*s.maps, *late),
        place=place,
        interleave=interleave,
        swapped=swapped,
        ppu=target.ppu and place != "flat",
        group=p.gw if p.fused else zero_group if "int_to_float_zp" in late else 0,
        shape=weight_shape(p, place, n_padded, k_padded),
    )
    rebias = p.bs == E8M0 and p.c.name == "float16" and not p.fused and not use_block_scaled_mma(p) and p.kind != "tensor"
    small = SmallRecipe(
        merge=s.merge,
        zero_shift=s.zero_shift,
        fp16_range=s.fp16_range,
        groups=k // p.gw if p.kind == "group" and not p.fused and env.splits_groups else 0,
        int_scale=p.int_scale,
        fused=LIMIT[p.a.name] if p.fused else 0,
        fused_plus=1 if p.fused and p.a.name == E4M3 else 0,
        rebias=rebias,
        place=scales,
        zero_width=width,
        zero_groups=joined,
    )
    derived: Mapping[str, Any] = flags(p, n_padded)
    config = LayerConfig(
        sm_version=target.sm,
        shape_n=n_padded,
        shape_k=k_padded,
        pad_shape_n=n_padded - n,
        pad_shape_k=k_padded - k,
        num_experts=experts or 0,
        b_dtype=p.b.name,
        a_dtype=p.a.name,
        c_dtype=p.c.name,
        bs_dtype=p.bs,
        as_dtype=p.as_,
        input_quant_mode=p.mode,
        input_scale_group_size=p.gi,
        weight_scale_group_size=p.gw,
        weight_scale_group_size_n=p.gn,
        weight_scale_type=p.kind,
        weight_scale_2_type=p.scale_2,
        use_int_weight_scale=p.int_scale,
        use_fused_e8m0_scale=p.fused,
        has_zero_point=p.zero_point != "none",
        is_fp_zero_point=p.zero_point == "fp",
        has_bias=has_bias,
        use_packed_k_layout=bool(derived["use_packed_k_layout"]),
    )
    return LayerRecipe(
        config=config,
        flags=derived,
        source=form,
        form=WeightForm(number=p.b, scale=ScaleForm(kind=p.kind, dtype=p.bs, k=p.gw, n=p.gn), scale_2=p.scale_2, zero_point=p.zero_point),
        input=InputForm(number=p.a, mode=p.mode, group=p.gi, scale_dtype=p.as_),
        pair=p,
        weight=weight,
        small=small,
        outputs=output_shapes(p, weight, small, n_padded, k_padded, experts, has_bias),
        environment=env,
        n=n,
        k=k,
        experts=experts,
        stack_n=tuple(stack_n),
        entry=entry,
        param_dtype=param_dtype,
        has_bias=has_bias,
        answers=answers,
    )
