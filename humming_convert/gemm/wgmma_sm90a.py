"""The Hopper kernel family: configures wgmma_sm90a.cuh for layers whose operands wgmma has.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places), cuda_templates/fragments.cuh, operands.cuh (what each operand can hold).
"""

from __future__ import annotations

from dataclasses import replace

from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tuning import Tuning

NAME = "wgmma_sm90a"
TILE_K = 128
SIZES = (8, 16, 32, 64)  # rows of x in a tile: sums of 64 take 128 registers
ROWS = SIZES
SHARED = 108 * 1024  # two blocks of 227 KB: one multiplies while the other makes operands
SCALE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int16": 2}
STAGES = 4
NUMBERS = {(4, 3): "e4m3", (0, 0): "s8"}  # exponent and mantissa bits of 8-bit activations -> operand


def operand(layer: Layer, compute: Compute) -> str | None:
    """What is multiplied; None: wgmma has no such activations."""
    if layer.act_bits == 16:
        return layer.half
    return NUMBERS.get((compute.act_exponent, compute.act_mantissa)) if layer.act_bits == 8 else None


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """The first reason against it."""
    kind = operand(layer, compute)
    step = 256 // layer.act_bits
    reasons = (
        (sm != 90, "wgmma is an instruction of sm_90a"),
        (kind is None, "wgmma multiplies 16-bit floats, E4M3 and 8-bit integers here"),
        (layer.place not in ("standard", "packed_k", "flat"), f"no registers of {layer.place} words"),
        (layer.ppu, "rows are in the order of another GPU"),
        (layer.interleave == "native", "codes of a register are not a shift and a mask apart"),
        (layer.zero == "floating", "floating zero points are taken from sums"),
        (compute.flush < layer.shape_k and (compute.flush < step or compute.flush & (compute.flush - 1)), "groups end inside a step"),
        (layer.k * layer.act_bits // 8 % 16 != 0, "rows of x are not whole 16 bytes"),
    )
    for against, reason in reasons:
        if against:
            return reason
    return _codes(layer, str(kind))


def _codes(layer: Layer, kind: str) -> str | None:
    """Does an operand hold the codes?"""
    integers, b = layer.kind == "offset_binary", layer.bits
    if layer.place == "flat" and not (b == 8 or (b == 4 and kind == "s8")):
        return f"{b}-bit codes in rows"
    if layer.place != "flat" and b >= layer.act_bits:
        return "codes as wide as the activation"
    if kind == "s8":
        fits = (integers and layer.map == "none") or (
            not integers and (layer.exponent, layer.mantissa) == (2, 1) and layer.interleave == "mode3"
        )
    elif kind == "e4m3":
        if layer.interleave == "mode2":
            fits = (layer.exponent, layer.mantissa, b) == (2, 1, 4)
        elif integers:
            fits = (layer.map == "midpoint" and b <= 5) or (layer.map == "zero_point" and b <= 4)
        elif layer.exponent == 0:
            fits = layer.mantissa <= 4
        else:
            fits = layer.exponent <= 4 and layer.mantissa <= 3 and (layer.special == "none" or b == 8)
    else:
        wide = 10 if kind == "f16" else 7
        if integers:
            fits = layer.map != "none" or b <= wide
        else:
            fits = layer.mantissa <= wide and layer.exponent <= 5
    return None if fits else f"{kind} operands do not hold these codes"


def fitted(layer: Layer, compute: Compute) -> Compute:
    kind = operand(layer, compute)
    assert kind is not None
    return replace(compute, operand=kind)


def stage_bytes(layer: Layer, threads: int, tile_m: int) -> int:
    """kStageBytes of wgmma_sm90a.cuh: rows of x; words, scales and zero points of 64 rows for each warp."""
    rows = threads // 32 * 64
    scales = layer.scale_place == "normal" and layer.group_k > 0
    groups = max(1, TILE_K // layer.group_k) if scales else 0
    zeros = scales and layer.zero == "integer" and layer.zero_groups == 1
    each = rows * SCALE_BYTES.get(layer.scale_type, 1) + (rows * layer.zero_width // 8 if zeros else 0)
    whole = tile_m * TILE_K * layer.act_bits // 8 + rows * TILE_K * layer.bits // 8 + groups * each
    return -(-whole // 1024) * 1024


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    tile_m = next((size for size in SIZES if rows <= size), SIZES[-1])
    threads = 128
    each = stage_bytes(layer, threads, tile_m)
    tiles = -(-layer.shape_k // TILE_K)
    stages = max(2, min(STAGES, SHARED // each, tiles))
    return Tuning(threads=threads, tile_m=tile_m, tile_k=TILE_K, stages=stages, shared=stages * each + 1024)


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 * 64
