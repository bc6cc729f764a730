"""The mma.sync kernel family of sm_80 and newer: configures mma_sm80.cuh for layers whose operands mma.sync has.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places); bytes of shared memory of a multiprocessor: CUDA C++ Programming Guide, technical specifications.
"""

from __future__ import annotations

from humming_convert.gemm import operands
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.operands import fitted
from humming_convert.gemm.stages import fitting, stage_bytes
from humming_convert.gemm.tuning import Tuning

__all__ = ["NAME", "ROWS", "fitted", "tuning", "why_not"]

NAME = "mma_sm80"
THREADS = 128
SHARED = 49 * 1024  # two blocks of the 100 KB of sm_86, sm_89 and sm_120: one multiplies while the other makes operands
STAGES = 4


WARPS_K = {8: 4, 16: 4, 32: 2, 64: 1}  # by rows of x in a tile: few rows have few blocks, so that the warps of a block split K
SIZES = tuple(WARPS_K)
ROWS = SIZES
SEGMENT = 64  # columns of K between two scalings, at most
PANEL = 128  # bytes of a row of x: a tile of K has whole ones


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """The first reason against it."""
    kind = operands.operand_of(layer, compute)
    reasons = (
        (sm < 80, "cp.async and mma.sync of 32 bytes of K need sm_80"),
        (kind is None, "mma.sync multiplies 16-bit floats, E4M3, INT8 and INT4 here"),
        (kind == "e4m3" and sm < 89, "mma.sync multiplies E4M3 from sm_89 on"),
        *operands.of_words(layer),
        (layer.zero == "floating" and kind == "e4m3", "sums of E4M3 are too short to take floating zero points from"),
        *operands.of_steps(layer, compute),
    )
    return operands.first_of(reasons) or operands.why_not(layer, str(kind))


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    tile_m = next((size for size in SIZES if rows <= size), SIZES[-1])
    warps_k, step = WARPS_K[tile_m], 256 // layer.act_bits
    tile_k = max(SEGMENT * warps_k, PANEL * 8 // layer.act_bits)
    each = stage_bytes(layer, THREADS // 32 // warps_k, tile_m, tile_k)
    stages = fitting(each, SHARED, STAGES)
    steps = (SEGMENT if warps_k > 1 else tile_k) // step
    sums = 0 if warps_k == 1 else THREADS * 4 * 4 * tile_m // 8 * 4  # float32, of four row tiles of all warps
    shared = max(stages * each, sums)
    return Tuning(threads=THREADS, tile_m=tile_m, tile_k=tile_k, stages=stages, shared=shared, warps_k=warps_k, steps=steps)


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 // tuning.warps_k * 64
