"""The Hopper kernel family: configures wgmma_sm90a.cuh for layers whose operands wgmma has.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places), cuda_templates/fragments.cuh.
"""

from __future__ import annotations

from dataclasses import replace

from humming_convert.gemm import operands
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.stages import fitting, stage_bytes
from humming_convert.gemm.tuning import Tuning

NAME = "wgmma_sm90a"
TILE_K = 128
SIZES = (8, 16, 32, 64)  # rows of x in a tile: sums of 64 take 128 registers
ROWS = SIZES
SHARED = 108 * 1024  # two blocks of 227 KB: one multiplies while the other makes operands
STAGES = 4


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """The first reason against it."""
    kind = operands.operand_of(layer, compute)
    step = 256 // layer.act_bits
    reasons = (
        (sm != 90, "wgmma is an instruction of sm_90a"),
        (kind in (None, "s4"), "wgmma multiplies 16-bit floats, E4M3 and 8-bit integers here"),
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
    return operands.why_not(layer, str(kind))


def fitted(layer: Layer, compute: Compute) -> Compute:
    kind = operands.operand_of(layer, compute)
    assert kind is not None
    return replace(compute, operand=kind)


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    tile_m = next((size for size in SIZES if rows <= size), SIZES[-1])
    threads = 128
    each = stage_bytes(layer, threads // 32, tile_m, TILE_K)
    stages = fitting(each, SHARED, min(STAGES, -(-layer.shape_k // TILE_K)))
    return Tuning(threads=threads, tile_m=tile_m, tile_k=TILE_K, stages=stages, shared=stages * each + 1024)


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 * 64
