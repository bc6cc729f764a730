"""Bytes of a stage of shared memory, as stages_sm80.cuh counts them.

In: a layer and the sizes of a tile.  Out: bytes; `fitting` stages of them.
"""

from __future__ import annotations

from humming_convert.gemm.layer import Layer

SCALE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int16": 2}
UNIT = 1024  # stages begin at multiples of it


def stage_bytes(layer: Layer, blocks: int, tile_m: int, tile_k: int, more: int = 0) -> int:
    """Rows of x; words, scales and zero points of `blocks` times 64 rows of W; `more` bytes. tile_m: rows of x.  tile_k: columns of K."""
    rows = 64 * blocks
    staged = layer.scale_place == "normal" and layer.group_k > 0
    groups = max(1, tile_k // layer.group_k) if staged else 0
    zero_bits = {"integer": layer.zero_width, "floating": 16}.get(layer.zero, 0) if layer.zero_groups == 1 else 0
    each = rows * SCALE_BYTES.get(layer.scale_type, 1) + rows * zero_bits // 8
    whole = tile_m * tile_k * layer.act_bits // 8 + rows * tile_k * layer.bits // 8 + groups * each + more
    return -(-whole // UNIT) * UNIT


def fitting(each: int, room: int, most: int) -> int:
    """Stages of `each` bytes in `room`: at least two, at most `most`."""
    return max(2, min(most, room // each))
