"""The mma.sync kernel family of sm_80 and newer: configures mma_sm80.cuh for layers whose operands mma.sync has.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places); bytes of shared memory of a multiprocessor: CUDA C++ Programming Guide, technical specifications.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from humming_convert.gemm import operands
from humming_convert.gemm.candidates import parts_around, varied
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.operands import fitted, rounding
from humming_convert.gemm.parts import MULTIPROCESSORS, bucket, parts_of
from humming_convert.gemm.stages import fitting, stage_bytes
from humming_convert.gemm.tuning import Tuning

__all__ = ["NAME", "ROWS", "candidates", "fitted", "rounding", "tuning", "why_not"]

NAME = "mma_sm80"
PARTS = True
MAPPED = False
STAGES = 4


@dataclass(frozen=True, slots=True)
class Size:
    """warps_n, warps_k: of a block, along rows of W and along K.  blocks: of a multiprocessor.  shared: bytes of shared memory of one."""

    warps_n: int
    warps_k: int
    blocks: int
    shared: int


# By rows of x in a tile: few rows have few blocks, so that the warps of a block split K. Measured on an H200 (docs/gemm.md); one block fits
# into the 99 KB of sm_86, sm_89 and sm_120.
SIZES = {
    8: Size(1, 4, 4, 45 * 1024),
    16: Size(1, 4, 3, 74 * 1024),
    32: Size(2, 2, 2, 99 * 1024),
    64: Size(2, 2, 1, 99 * 1024),
}
# Dense layers beside 16-bit activations, by shape (docs/decisions/085). By bits of a weight and rows of a tile: one block more of a multiprocessor where all
# blocks are there at once then, and without it are not
ONE_MORE = {(8, 16)}
# By rows of a tile: as many segments of a warp in a tile of K, for floats of 4 bits in groups of GROUP columns or fewer: more to do between two waits
SEGMENTS = {16: 2}
GROUP = 32
ROWS = (*SIZES, 128, 256, 512, 1024)
SEGMENT = 64  # columns of K between two scalings, at most
FEW = 32  # rows of x up to which other shapes of blocks are candidates
ROOM = 220 * 1024  # bytes of shared memory for them, of the 227 KB of sm_90 and sm_100; what a GPU has not is not measured (gemm/tune.py)
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
    tile_m = next((size for size in SIZES if rows <= size), max(SIZES))
    size, segments = SIZES[tile_m], 1
    if layer.experts or layer.act_bits != 16:
        return _tuning(layer, tile_m, rows, size)
    if layer.kind == "floating" and layer.bits <= 4 and 0 < layer.group_k <= GROUP:
        segments = SEGMENTS.get(tile_m, 1)
        segments = segments if layer.shape_k % (segments * SEGMENT * size.warps_k) == 0 else 1
    found = _tuning(layer, tile_m, rows, size, segments)
    across = -(-layer.n // tile_n(found)) * -(-bucket(rows, tile_m) // tile_m) * found.parts
    if (layer.bits, tile_m) in ONE_MORE and size.blocks * MULTIPROCESSORS < across <= (size.blocks + 1) * MULTIPROCESSORS:
        return _tuning(layer, tile_m, rows, replace(size, blocks=size.blocks + 1), segments)
    return found


def _tuning(layer: Layer, tile_m: int, rows: int, size: Size, segments: int = 1) -> Tuning:
    """segments: of a warp in a tile of K."""
    step = 256 // layer.act_bits
    tile_k = max(segments * SEGMENT * size.warps_k, PANEL * 8 // layer.act_bits)
    each = stage_bytes(layer, size.warps_n, tile_m, tile_k)
    stages = fitting(each, size.shared, STAGES)
    threads = 32 * size.warps_n * size.warps_k
    return Tuning(
        threads=threads,
        tile_m=tile_m,
        tile_k=tile_k,
        stages=stages,
        shared=max(stages * each, 0 if size.warps_k == 1 else threads * 2 * tile_m * 4),  # float32, of all warps
        warps_k=size.warps_k,
        steps=(SEGMENT if size.warps_k > 1 else tile_k) // step,
        parts=parts_of(layer, 64 * size.warps_n, tile_k, tile_m, bucket(rows, tile_m), size.blocks, ROWS[-1]),
        blocks=size.blocks,
    )


def tile_n(tuning: Tuning) -> int:
    return tuning.threads // 32 // tuning.warps_k * 64


def candidates(layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
    """Beside the usual ones, with few rows: tiles of twice as many columns of K, and blocks of twice and four times as many warps, whose sums need not go by
    way of memory."""
    found = list(varied(tuning, tile_n, ROWS, layer, compute, rows, blocks=True))
    tile_m = found[0].tile_m
    if tile_m > FEW:
        return tuple(found)
    size = SIZES[tile_m]
    for more, segments in ((1, 2), (2, 1), (4, 1)):
        blocks = max(1, size.blocks // more)
        shared = size.shared if more == 1 else ROOM // blocks - 1024
        other = _tuning(layer, tile_m, rows, replace(size, warps_k=more * size.warps_k, blocks=blocks, shared=shared), segments)
        if layer.shape_k % other.tile_k == 0 and other.shared <= ROOM:
            found += [replace(other, parts=p) for p in parts_around(layer, other, tile_n(other), rows, other.parts)]
    return tuple(dict.fromkeys(found))
