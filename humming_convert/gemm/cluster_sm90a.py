"""The Hopper kernel family for many rows: configures cluster_sm90a.cuh for layers whose scales need not wait for sums.

In: a layer and its mathematics.  Out: what is multiplied, tile sizes and bytes of shared memory, or the reason why not.
Facts: layouts.md 5 (places), cuda_templates/cluster_sm90a.cuh; exactness: significand bits of scale and code together, below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from humming_convert.gemm import operands
from humming_convert.gemm.candidates import parts_around, varied
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.operands import fitted
from humming_convert.gemm.parts import MULTIPROCESSORS, bucket, parts_of
from humming_convert.gemm.stages import fitting, stage_bytes
from humming_convert.gemm.tasks import LISTED, Indexed
from humming_convert.gemm.tuning import Tuning

__all__ = ["NAME", "ROWS", "candidates", "fitted", "gathers", "rounding", "tuning", "why_not"]

NAME = "cluster_sm90a"
PARTS = True
MAPPED = True
TILE_N = 128  # rows of W of a block, at least
BLOCK = 64  # rows of W of a warpgroup
WIDE_N = 4 * BLOCK  # of a block with four
TILE_BYTES = 128  # of a row of x in a tile of K
BESIDE = 16  # bytes beside a row of results
NAMED = 16  # bytes that say which tile it is
GATHERED_FROM = 256  # rows of x in a tile: measured on an H200 (docs/performance.md)
IN_CLUSTER = 8  # blocks, at most: CUDA C++ Programming Guide, thread block clusters
ROOM = 226 * 1024  # bytes of shared memory of a multiprocessor, and what of it no stage has: for barriers, and until a multiple of 1024
OTHER = 1280


@dataclass(frozen=True, slots=True)
class Size:
    """stages: at most.  cluster: blocks that share rows of x.  blocks: of a multiprocessor.  fill: blocks that parts of K make for each multiprocessor.
    steps: whose operands are made at once.  steps_on_the_way: the same where sums want registers too (`on_the_way`).
    warpgroups: that multiply, each 64 rows of W.  goes_on: of Tuning."""

    stages: int
    cluster: int
    blocks: int
    fill: float
    steps: int = 4
    steps_on_the_way: int = 2
    warpgroups: int = 2
    goes_on: int = 0


# By bits of an activation and rows of x in a tile: measured on an H200 (docs/gemm.md)
SIZES = {
    16: {16: Size(12, 2, 2, 2), 32: Size(10, 2, 2, 2), 64: Size(6, 2, 2, 2, 2), 128: Size(6, 2, 1, 1), 256: Size(6, 2, 1, 1)},
    8: {16: Size(12, 2, 2, 1, 4, 4), 32: Size(10, 2, 2, 1), 64: Size(8, 2, 1, 1, 4, 4), 128: Size(6, 2, 1, 1), 256: Size(6, 2, 1, 1)},
}
# Rows up to which a tile is taken, where that is more than it has: two of them are quicker than one whose rows wait for parts of K. Not where rows of W
# alone are blocks enough (docs/decisions/085)
TAKEN_TO = {(8, 128): 256}
# Dense layers whose blocks of two warpgroups are more than there are multiprocessors, but those of four are not: one after the other costs more
FOR_WIDE = {
    16: {64: Size(6, 2, 1, 1, 4, warpgroups=4), 128: Size(6, 2, 1, 1, 2, warpgroups=4)},
    8: {128: Size(6, 2, 1, 1, 2, warpgroups=4)},
}
NEARLY_ALL = 0.75  # of the multiprocessors then have one
# Dense layers with more blocks than that whose sums are scaled on the way: blocks go on with another tile, by bits of an activation and rows of a tile
GOES_ON = {(8, 128)}
# Dense layers with a block for each multiprocessor at most: it has the registers of two
ALONE = {(16, 64): (1, 4)}  # blocks, steps
# Codes in planes, whose operands take more registers on their way: steps by rows of a tile
STEPS_OF_PLANES = {64: 4}
# Of weights as wide as activations, 64 rows: there is less to do than to wait for
FILL_OF_BYTES = {64: 0.5}
# Rows of experts, which have uneven numbers of them: blocks go on with another tile. Where there are two tiles of W, and with few registers' sums, four warpgroups
FOR_EXPERTS = {
    16: {48: Size(6, 2, 2, 2, 2), 256: Size(6, 2, 1, 1, goes_on=1)},
    8: {
        16: Size(12, 2, 2, 1, 4, 4, goes_on=1),
        32: Size(10, 2, 2, 1, goes_on=1),
        48: Size(8, 2, 1, 1, 4, 2),
        64: Size(8, 2, 1, 1, 4, 4, goes_on=1),
        256: Size(6, 2, 1, 1, goes_on=1),
    },
}
FOR_WIDE_EXPERTS = {
    16: {48: Size(6, 2, 1, 2, 4, warpgroups=4, goes_on=1), 64: Size(6, 2, 1, 2, 4, warpgroups=4, goes_on=1)},
    8: {48: Size(8, 2, 1, 1, 4, 2, warpgroups=4, goes_on=1), 64: Size(8, 2, 1, 1, 4, 4, warpgroups=4, goes_on=1)},
}
ROWS = (8, 16, 20, 32, 48, 64, 128, 256, 512, 1024, 2048)  # 8, 20, 32, 48: tiles of 16, 32, 48 and 64 rows, which experts of fewer have

# scales that a 16-bit float holds
HELD = {("f16", "f16"), ("e4m3", "f16")} | {(scale, "bf16") for scale in ("bf16", "e8m0", "e5m3", "e4m3", "e5m2")}
# scales whose product with an E2M1 number it holds too: powers of two, or four bits beside two, and every exponent within its range
EXACT = {("e8m0", "bf16"), ("e4m3", "bf16"), ("e4m3", "f16")}


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """The first reason against it."""
    kind = operands.operand_of(layer, compute)
    tile_k = TILE_BYTES * 8 // layer.act_bits
    step = 256 // layer.act_bits
    groups = [g for g in (layer.group_k, compute.act_group) if g]
    halfs = kind in ("f16", "bf16")
    rounded = halfs and not _exact(layer, kind)
    reasons = (
        (sm != 90, "wgmma is an instruction of sm_90a"),
        (kind in (None, "s4"), "wgmma multiplies 16-bit floats, E4M3 and 8-bit integers here"),
        *operands.of_words(layer),
        (layer.interleave == "native", "codes of a register are not a shift and a mask apart"),
        (layer.zero == "floating", "floating zero points are taken from sums"),
        *operands.of_steps(layer, compute),
        (layer.shape_n % TILE_N != 0 or layer.shape_k % tile_k != 0, f"not whole tiles of {TILE_N} x {tile_k}"),
        (any(g % step or (g % tile_k and tile_k % g) for g in groups), "groups end inside a step or a tile"),
        (halfs and layer.scale_place != "normal", "scales are not those of rows and groups"),
        (halfs and not _held(layer, kind), "a 16-bit operand does not hold the scales, or not their product with a code"),
        (rounded and not compute.rounds, "scales are multiplied into operands, which rounds"),
        (rounded and layer.scale_2 != "none", "a second scale beside rounded weights"),
    )
    return operands.first_of(reasons) or operands.why_not(layer, str(kind))


def _held(layer: Layer, kind: str | None) -> bool:
    """Whether the operand's type has room for scales, and for codes times them. Weights of a float16 model are taken to be float16 numbers."""
    wide = kind == "f16" and layer.scale_type == "e4m3" and layer.bits > 4
    return (layer.scale_type, kind) in HELD and not wide


def _folds(layer: Layer, compute: Compute) -> bool:
    """Whether scales go into the exponents of E4M3 operands: `kFolds`."""
    return layer.scale_type == "fused_e8m0" and layer.scale_place == "normal" and compute.operand == "e4m3"


def on_the_way(layer: Layer, compute: Compute) -> bool:
    """Whether sums of 8-bit operands are added up on the way, in registers of their own: `kOnTheWay` of cluster_stages_sm90a.cuh."""
    return _scaled(layer, compute) or (compute.operand == "e4m3" and not compute.rounds)


def _scaled(layer: Layer, compute: Compute) -> bool:
    """Whether they are scaled there: `kScaledOnTheWay`."""
    one = (_folds(layer, compute) or compute.flush >= layer.shape_k) and compute.act_scale != "group"
    return layer.act_bits == 8 and not one


def _by_halves(layer: Layer, compute: Compute) -> bool:
    """Whether sums on the way have one scale for all of a tile of K, so that 256 rows are multiplied as two halves: `kInTurns`, `kSegments`."""
    return (compute.act_group if _folds(layer, compute) else compute.flush) >= TILE_BYTES


def _block_scales(layer: Layer, compute: Compute) -> bool:
    """Whether scales of W are multiplied into those of activations: `kBlockScales`."""
    grouped = compute.act_scale == "group" and layer.scale_place == "block"
    return grouped and layer.group_n % BLOCK == 0 and layer.group_k % compute.act_group == 0


def _exact(layer: Layer, kind: str | None) -> bool:
    return (layer.exponent, layer.mantissa) == (2, 1) and (layer.scale_type, kind) in EXACT


def rounding(layer: Layer, compute: Compute) -> str:
    """A word of operands.ROUNDINGS."""
    kind = operands.operand_of(layer, compute)
    if kind in ("f16", "bf16"):
        return "none" if _exact(layer, kind) else "weights"
    return "sums" if kind == "e4m3" and compute.rounds and not on_the_way(layer, fitted(layer, compute)) else "none"


def _sizes(layer: Layer, compute: Compute) -> dict[int, Size]:
    """Those of SIZES that the kernel has for a layer."""
    on_way = on_the_way(layer, compute)
    sizes = SIZES[layer.act_bits]
    if layer.experts:
        sizes = sizes | FOR_EXPERTS[layer.act_bits]
        if layer.shape_n % WIDE_N == 0:
            sizes |= {m: s for m, s in FOR_WIDE_EXPERTS[layer.act_bits].items() if m < 64 or not on_way}
    elif _dense_goes_on(layer, compute):
        sizes = sizes | {256: replace(sizes[256], goes_on=1)}
    return {m: sizes[m] for m in sorted(sizes) if m <= 128 or not on_way or _by_halves(layer, compute)}


def _dense_goes_on(layer: Layer, compute: Compute) -> bool:
    """Whether blocks of dense layers go on with another tile of 256 rows: not where warpgroups that take turns have operands to make and sums to scale all
    the time, as measured."""
    return not _scaled(layer, compute) or compute.act_scale == "group"


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    sizes = _sizes(layer, compute)
    most = rows + round(2 * math.sqrt(rows)) if layer.experts else rows  # experts do not have the same number
    enough = not layer.experts and layer.shape_n // TILE_N >= MULTIPROCESSORS
    tile_m = next((m for m in sizes if most <= m or (most <= TAKEN_TO.get((layer.act_bits, m), m) and not enough)), max(sizes))
    size = sizes[tile_m] if layer.experts else _dense(layer, compute, tile_m, rows, sizes[tile_m])
    if not layer.bits == layer.act_bits == 8:
        return _tuning(layer, compute, tile_m, rows, size)
    if not on_the_way(layer, compute):
        size = replace(size, fill=FILL_OF_BYTES.get(tile_m, size.fill))
    return _joined_if_few(_tuning(layer, compute, tile_m, rows, size), layer, rows)


def _dense(layer: Layer, compute: Compute, tile_m: int, rows: int, size: Size) -> Size:
    """How a dense layer's blocks fill the GPU: by its rows of W and the parts that K has then."""
    wide = FOR_WIDE[layer.act_bits].get(tile_m)
    if wide is not None and rows <= tile_m and layer.shape_n % WIDE_N == 0 and not on_the_way(layer, compute):
        across = layer.shape_n // WIDE_N
        if NEARLY_ALL * MULTIPROCESSORS <= across <= MULTIPROCESSORS:
            return wide
    if (layer.act_bits, tile_m) in GOES_ON and rows <= tile_m and on_the_way(layer, compute) and layer.shape_n // TILE_N > MULTIPROCESSORS:
        return replace(size, goes_on=1)
    if layer.bits & (layer.bits - 1):
        size = replace(size, steps=STEPS_OF_PLANES.get(tile_m, size.steps))
    blocks, steps = ALONE.get((layer.act_bits, tile_m), (0, 0))
    if blocks and rows <= tile_m and layer.shape_n // TILE_N * _tuning(layer, compute, tile_m, rows, size).parts <= MULTIPROCESSORS:
        size = replace(size, blocks=blocks, steps=steps)
    return size


def _joined_if_few(tuning: Tuning, layer: Layer, rows: int) -> Tuning:
    """Parts of K as blocks of one cluster, where all blocks fit into half of the places, as weights that wait for memory alone want it."""
    across = layer.shape_n // tile_n(tuning) * (bucket(rows, tuning.tile_m) // tuning.tile_m)
    few = 2 * across * tuning.parts <= MULTIPROCESSORS * tuning.blocks
    return replace(tuning, joined=1) if few and _joins(tuning) else tuning


def _joins(tuning: Tuning) -> bool:
    """Whether parts of K may be blocks of one cluster."""
    return tuning.parts > 1 and tuning.cluster * tuning.parts <= IN_CLUSTER and tuning.tile_m // 8 % tuning.parts == 0


def _tuning(layer: Layer, compute: Compute, tile_m: int, rows: int, size: Size) -> Tuning:
    tile_k, across = TILE_BYTES * 8 // layer.act_bits, BLOCK * size.warpgroups
    act_groups = max(1, tile_k // compute.act_group) if compute.act_scale == "group" else 0
    sets = size.warpgroups if _block_scales(layer, compute) and layer.group_n % across else 1
    each = stage_bytes(layer, size.warpgroups, tile_m, tile_k, 4 * tile_m * act_groups * sets)
    parts = parts_of(layer, across, tile_k, tile_m, bucket(rows, tile_m), size.fill, ROWS[-1])
    goes_on = size.goes_on if parts == 1 else 0
    aside = (_aside(layer, compute, tile_m, across, act_groups > 0) + NAMED) * (2 if goes_on else 1)
    table = tile_m * (4 * across + BESIDE)
    if goes_on:  # beside the stages, 64 rows at a time
        table = min(tile_m, 64) * ((4 if compute.output == "f32" else 2) * across + BESIDE)
    stages = fitting(each, ROOM // size.blocks - OTHER - aside - (table if goes_on else 0), size.stages)
    whole = layer.shape_n // across % size.cluster == 0
    return Tuning(
        threads=128 * (size.warpgroups + 1),
        tile_m=tile_m,
        tile_k=tile_k,
        stages=stages,
        shared=(stages * each + table if goes_on else max(stages * each, table)) + aside + 1024,
        steps=size.steps_on_the_way if on_the_way(layer, compute) else size.steps,
        parts=parts,
        blocks=size.blocks,
        cluster=size.cluster if whole and compute.task != Indexed.name else 1,  # lists are copied by each block for itself
        goes_on=goes_on,
    )


def _aside(layer: Layer, compute: Compute, tile_m: int, across: int, act_groups: bool) -> int:
    """Bytes beside the stages: `Beside` of results_sm90a.cuh."""
    listed, wide = compute.task in LISTED, layer.act_bits == 16
    rows = (listed or act_groups, listed, compute.act_scale == "token")
    columns = (not wide and not _folds(layer, compute) and not _scaled(layer, compute), layer.scale_2 != "none", layer.has_bias)
    return 4 * (tile_m * sum(rows) + across * sum(columns))


def gathers(tuning: Tuning) -> bool:
    """Whether rows that lists name are brought side by side first: what copies row by row cost grows with the tile, what it costs to gather does not."""
    return tuning.tile_m >= GATHERED_FROM


def tile_n(tuning: Tuning) -> int:
    return (tuning.threads - 128) // 2


def candidates(layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
    """The usual ones, those with operands of more or fewer steps at once or with twice as many rows of W, and those whose parts of K are blocks of one cluster."""
    first, sizes = tuning(layer, compute, rows), _sizes(layer, compute)
    found = [replace(t, joined=0) for t in varied(tuning, tile_n, ROWS, layer, compute, rows, blocks=False)]
    for tile_m in (m for m in sizes if m // 2 <= first.tile_m <= 2 * m):
        size = sizes[tile_m]
        for warpgroups, steps, blocks, goes_on in product((2, 4), (2, 4), (1, 2), (0, 1)):
            wide = warpgroups == 4
            if wide and (layer.shape_n % WIDE_N or tile_m > (48 if on_the_way(layer, compute) else 128) or (tile_m, steps) == (128, 4)):
                continue
            if blocks == 2 and (wide or tile_m > 64):
                continue
            changed = {"warpgroups": warpgroups, "steps": steps, "steps_on_the_way": steps, "blocks": blocks, "goes_on": goes_on}
            other = _tuning(layer, compute, tile_m, rows, replace(size, **changed))
            if goes_on:
                found.append(other)
                continue
            found += [replace(other, parts=p) for p in parts_around(layer, other, tile_n(other), rows, other.parts)]
    found = [t for t in found if t.parts == 1 or not t.goes_on]
    joined = [replace(t, joined=1) for t in found if not layer.experts and _joins(t)]
    return tuple(dict.fromkeys((first, *found, *joined)))
