"""The Hopper kernel family: configures wgmma_sm90a.cuh for layers whose operands wgmma has.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places), cuda_templates/fragments.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass

from humming_convert.gemm import operands
from humming_convert.gemm.candidates import varied
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.operands import fitted, rounding
from humming_convert.gemm.parts import bucket, parts_of
from humming_convert.gemm.stages import fitting, stage_bytes
from humming_convert.gemm.tuning import Tuning

__all__ = ["NAME", "ROWS", "candidates", "fitted", "rounding", "tuning", "why_not"]

NAME = "wgmma_sm90a"
PARTS = True
MAPPED = False
TILE_K = 128
STAGES = 6
BESIDE = 4  # words beside a row of sums
ROOM = 220 * 1024  # bytes of shared memory of a multiprocessor, of 227 KB


@dataclass(frozen=True, slots=True)
class Size:
    """warpgroups: of a block.  share: that have the same rows of W.  blocks: of a multiprocessor."""

    warpgroups: int
    share: int
    blocks: int


# By rows of x in a tile: measured on an H200 (docs/gemm.md)
SIZES = {
    8: Size(2, 2, 1),
    16: Size(2, 2, 1),
    32: Size(2, 2, 1),
    64: Size(2, 2, 1),
    128: Size(2, 2, 1),
}
ROWS = (*SIZES, 256, 512, 1024)


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
    tile_m = next((size for size in SIZES if rows <= size), max(SIZES))
    size = SIZES[tile_m]
    blocks_n, tiles = 4 * size.warpgroups // size.share, -(-layer.shape_k // TILE_K)
    each = stage_bytes(layer, blocks_n, tile_m, TILE_K)
    stages = fitting(each, ROOM // size.blocks - 1024, min(STAGES, tiles))
    return Tuning(
        threads=128 * size.warpgroups,
        tile_m=tile_m,
        tile_k=TILE_K,
        stages=stages,
        shared=max(stages * each, tile_m * (64 * blocks_n + BESIDE) * 4) + 1024,
        parts=parts_of(layer, 64 * blocks_n, TILE_K, tile_m, bucket(rows, tile_m), size.blocks, ROWS[-1]),
        blocks=size.blocks,
        share=size.share,
    )


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 // tuning.share * 64


def candidates(layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
    return varied(tuning, tile_n, ROWS, layer, compute, rows, blocks=False)
