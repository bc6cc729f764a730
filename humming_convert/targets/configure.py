"""From a pair as asked for to the configuration that the library would store, or the reason why it stores none.

In: a Pair.  Out: the Pair with mode, scale types and signs settled, fused and integer scales decided.
Facts: layouts.md 1 (schema), 4.1 (resolution order).
"""

from __future__ import annotations

from msgspec.structs import replace

from humming_convert.standard.numbers import number
from humming_convert.targets.pair import E4M3, E8M0, FP4, Pair, mma_scale_group_size, use_block_scaled_mma
from humming_convert.targets.refusals import refuse

MODES: dict[str, tuple[bool, bool, bool]] = {  # mode -> quantizes, group scale, secondary scale (layouts.md 4.1)
    "none": (False, False, False),
    "static_tensor": (True, False, False),
    "dynamic_token": (True, False, False),
    "dynamic_group": (True, True, False),
    "static_tensor_dynamic_group": (True, True, True),
    "dynamic_group_token": (True, True, True),
}


def check_schema(p: Pair) -> None:
    """What no tensors can be described for (layouts.md 1)."""
    if p.scale_2 != "none" and not (p.kind == "group" or (p.kind == "channel" and p.scale_2 == "tensor")):
        raise refuse("secondary_scale_not_legal", f"a {p.scale_2} secondary scale beside {p.kind} scales")
    if (p.gw > 0) != (p.kind in ("group", "block")):
        raise refuse("scale_group_not_legal", f"{p.kind} scales with a group size of {p.gw}")


def check_zero_points(p: Pair) -> None:
    """The same for zero points; of the form after S0, which can make channel scales of tensor scales (layouts.md 1, 2)."""
    if p.zero_point == "int" and p.kind not in ("group", "channel"):
        raise refuse("zero_point_needs_group_or_channel", f"integer zero points with {p.kind} scales")


def check_types(p: Pair) -> None:
    """layouts.md 4.1, step 3 (also the first rule of compatibility)."""
    if p.a.bits == 16 and p.a != p.c:
        raise refuse("activation_not_model_dtype", f"activations in {p.a} for a model in {p.c}")
    if p.a.name == "float8e5m2" and p.c.name != "bfloat16":
        raise refuse("e5m2_activation_needs_bf16_output", f"E5M2 activations for a model in {p.c}")
    if p.a.bits == 16 and p.bs in ("float16", "bfloat16") and p.bs != p.a.name:
        raise refuse("scale_16bit_type_differs_from_activation", f"weight scales in {p.bs}, activations in {p.a}")


def split_group(p: Pair) -> Pair:
    """S2c: group sizes that are not powers of two become the largest power of two that divides them."""
    if p.kind != "group" or p.gw & (p.gw - 1) == 0 or not p.env.splits_groups:
        return p
    part = p.gw & -p.gw
    if p.gi:
        raise refuse("split_group_with_group_input_scale", f"weight groups of {p.gw} with activation groups of {p.gi}")
    if part < 256 // p.a.bits:
        raise refuse("split_group_below_mma_k", f"groups of {p.gw} split into {part}, below one MMA step of {256 // p.a.bits}")
    return replace(p, gw=part)


def model_scales(p: Pair) -> Pair:
    """S0: the serving caller rounds float32 channel and group scales to the model dtype."""
    plain = p.kind in ("group", "channel") and p.bs == "float32" and p.scale_2 != "tensor"
    return replace(p, bs=p.c.name) if plain else p


def channel_for_int8(p: Pair) -> Pair:
    """S2b: MXFP4 with int8 activations takes a secondary scale per row."""
    mxfp4 = p.b.name == "float4e2m1" and p.bs == E8M0 and p.kind == "group"
    return replace(p, scale_2="channel") if p.a.name == "int8" and mxfp4 else p


def configure(p: Pair) -> Pair:
    """The configured pair. Raises Refused as the library does."""
    quantizes, grouped, secondary = MODES[p.mode]
    if quantizes != (p.a.bits != 16) or grouped != (p.gi > 0):
        raise refuse("input_mode_not_legal", f"mode {p.mode} with activations in {p.a}, group {p.gi}")
    check_types(p)
    if p.b.is_integer:
        signed = p.a.is_integer and p.a.bits == p.b.bits
        p = replace(p, b=number(f"{'int' if signed else 'uint'}{p.b.bits}"))
    scaled = use_block_scaled_mma(p)
    grouped_weight = p.kind == "group"
    if p.target.family == "umma" and scaled and "float4e0m3" in (p.a.name, p.b.name) and mma_scale_group_size(p) != 16:
        raise refuse("e0m3_umma_needs_group_16", f"e0m3 on {p.target} with a scale group of {mma_scale_group_size(p)}")
    if secondary and not scaled:
        raise refuse(
            "secondary_input_scale_needs_block_scaled_mma", f"mode {p.mode}, and {p.target} has no block-scaled MMA for this combination"
        )
    if scaled and grouped_weight and p.gi and p.gi != p.gw:
        raise refuse("input_and_weight_group_differ", f"activation groups of {p.gi}, weight groups of {p.gw} with block-scaled MMA")
    if p.mode == "dynamic_group_token" and not (p.a.name in FP4 and p.gi == 16):
        raise refuse("input_mode_not_legal", "dynamic_group_token is for FP4 activations in groups of 16")
    if p.a.bits == 16:
        as_ = None
    elif p.as_ is not None:
        as_ = p.as_
    elif scaled and p.gi:
        as_ = p.bs if grouped_weight else E4M3 if p.gi == 16 else E8M0
    else:
        as_ = "float32"
    p = replace(p, as_=as_)
    if p.mode == "dynamic_group_token" and p.as_ != E4M3:
        raise refuse("input_mode_not_legal", "dynamic_group_token needs E4M3 scales")
    if scaled and grouped_weight and p.gi and p.as_ != p.bs:
        raise refuse("input_and_weight_scale_type_differ", f"activation scales in {p.as_}, weight scales in {p.bs} with block-scaled MMA")
    scaled = use_block_scaled_mma(p)
    fused = not (scaled and p.a.name == E4M3) and p.a.name in (E4M3, "int8") and p.b.name == "float4e2m1" and p.bs == E8M0 and p.gw > 0
    int_scale = not fused and p.a.is_integer and p.scale_2 != "channel" and p.gi == 0 and p.gw > 0 and p.gn == 1
    if fused or int_scale:
        p = replace(p, kind="group", scale_2="channel" if p.scale_2 == "channel" else "tensor", fused=fused, int_scale=int_scale)
    return replace(p, bs=p.c.name) if int_scale else p
