"""The Hopper kernel family: configures wgmma_sm90a.cuh for layers whose operands wgmma has.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places), cuda_templates/fragments.cuh.
"""

from __future__ import annotations

from humming_convert.gemm import operands
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.operands import fitted
from humming_convert.gemm.parts import bucket, parts_of
from humming_convert.gemm.stages import fitting, stage_bytes
from humming_convert.gemm.tuning import Tuning

__all__ = ["NAME", "ROWS", "fitted", "tuning", "why_not"]

NAME = "wgmma_sm90a"
PARTS = True
TILE_K = 128
SIZES = (8, 16, 32, 64)  # rows of x in a tile: sums of 64 take 128 registers
ROWS = (*SIZES, 128, 256, 512, 1024)
# Blocks of a multiprocessor, of which one multiplies while others make operands. One where there are few tiles of rows: K is split into fewer
# parts then, whose sums cost more than waiting does.
FEW_ROWS = 128
ROOM = 220 * 1024
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
    blocks, threads = 1 if rows <= FEW_ROWS else 2, 128
    each = stage_bytes(layer, threads // 32, tile_m, TILE_K)
    stages = fitting(each, ROOM // blocks - 1024, min(STAGES, -(-layer.shape_k // TILE_K)))
    parts = parts_of(layer, threads // 32 * 64, TILE_K, tile_m, bucket(rows, tile_m), blocks)
    return Tuning(threads=threads, tile_m=tile_m, tile_k=TILE_K, stages=stages, shared=stages * each + 1024, parts=parts)


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 * 64
