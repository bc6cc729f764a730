"""The Hopper kernel family: configures wgmma_sm90a.cuh for layers whose operands wgmma has.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places), cuda_templates/fragments.cuh.
"""

from __future__ import annotations

from humming_convert.gemm import operands
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.operands import fitted
from humming_convert.gemm.stages import fitting, stage_bytes
from humming_convert.gemm.tuning import Tuning

__all__ = ["NAME", "ROWS", "fitted", "tuning", "why_not"]

NAME = "wgmma_sm90a"
TILE_K = 128
SIZES = (8, 16, 32, 64)  # rows of x in a tile: sums of 64 take 128 registers
ROWS = SIZES
SHARED = 108 * 1024  # two blocks of 227 KB: one multiplies while the other makes operands
STAGES = 4


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """The first reason against it."""
    kind = operands.operand_of(layer, compute)
    reasons = (
        (sm != 90, "wgmma is an instruction of sm_90a"),
        (kind in (None, "s4"), "wgmma multiplies 16-bit floats, E4M3 and 8-bit integers here"),
        *operands.of_words(layer),
        (layer.interleave == "native", "codes of a register are not a shift and a mask apart"),
        (layer.zero == "floating", "floating zero points are taken from sums"),
        *operands.of_steps(layer, compute),
    )
    return operands.first_of(reasons) or operands.why_not(layer, str(kind))


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    tile_m = next((size for size in SIZES if rows <= size), SIZES[-1])
    threads = 128
    each = stage_bytes(layer, threads // 32, tile_m, TILE_K)
    stages = fitting(each, SHARED, min(STAGES, -(-layer.shape_k // TILE_K)))
    return Tuning(threads=threads, tile_m=tile_m, tile_k=TILE_K, stages=stages, shared=stages * each + 1024)


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 * 64
