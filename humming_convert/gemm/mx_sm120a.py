"""The block-scaled kernel family of sm_120a: configures mx_sm120a.cuh. Compiled and looked at, never run, so that nothing chooses it.

In: a layer and its mathematics.  Out: what is multiplied and tile sizes, or the reason why not.
Facts: layouts.md 4.2 (mxmma_supported), 6.3 and 6.4 (scales).
"""

from __future__ import annotations

from dataclasses import replace

from humming_convert.gemm import operands
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tuning import Tuning

NAME = "mx_sm120a"
PARTS = False
MAPPED = False
ROWS = (8, 32)
BESIDE_E4M3 = {(4, 3), (5, 2), (2, 1), (2, 3), (3, 2)}  # exponent and mantissa bits of weights
TILE_BYTES = 128  # of a row of x


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """The first reason against it."""
    four = layer.act_bits == 4
    act, weight = (compute.act_exponent, compute.act_mantissa), (layer.exponent, layer.mantissa)
    group = 16 if four and layer.group_k == 16 else 32
    held = "e4m3" if group == 16 else "e8m0"
    reasons = (
        (sm // 10 != 12, "block-scaled mma.sync is an instruction of sm_120a"),
        (layer.ppu or layer.place not in ("standard", "flat"), f"no registers of {layer.place} words"),
        (four and (act, weight, layer.place) != ((2, 1), (2, 1), "flat"), "beside FP4 activations weights are E2M1 here"),
        (not four and (layer.act_bits != 8 or act != (4, 3)), "activations are E4M3 or E2M1 here"),
        (not four and (layer.kind != "floating" or weight not in BESIDE_E4M3), "weights that are no type of the instruction"),
        (layer.place == "flat" and layer.bits != layer.act_bits, "codes of half the width in rows"),
        (layer.zero != "none", "zero points have no place in the instruction"),
        (layer.group_k not in (0, group), f"a scale for {layer.group_k} columns"),
        (layer.group_k > 0 and layer.scale_type != held, f"scales of groups are {layer.scale_type}, not {held}"),
        (compute.act_second != "none", "activations with a second factor"),
        (compute.act_scale == "group" and (compute.act_group, compute.as_type) != (group, held), "activations with other groups or scales"),
        (layer.k * layer.act_bits // 8 % 16 != 0, "rows of x are not whole 16 bytes"),
    )
    return next((reason for against, reason in reasons if against), None)


def rounding(layer: Layer, compute: Compute) -> str:
    return operands.rounding(layer, compute)


def fitted(layer: Layer, compute: Compute) -> Compute:
    return replace(compute, operand="e2m1" if layer.act_bits == 4 else "e4m3")


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    return Tuning(threads=128, tile_m=8 if rows <= 8 else 32, tile_k=TILE_BYTES * 8 // layer.act_bits)


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 * 64


def candidates(layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
    return (tuning(layer, compute, rows),)
