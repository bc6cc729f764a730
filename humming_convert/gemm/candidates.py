"""Tunings around the one that a family's heuristics choose: other tiles of rows, other parts of K, another bound for registers.

In: a family's `tuning` and `tile_n`.  Out: tunings that the family's kernel can run, the heuristics' first.
Nothing here knows sizes of a family: whatever its heuristics give for some number of rows is a tile that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.parts import ROOM, bucket, none_empty, sum_bytes
from humming_convert.gemm.tuning import Tuning

REGISTERS = 64 * 1024  # of a multiprocessor
FEWEST = 64  # registers of a thread: below it every kernel here keeps sums in memory


def varied(
    tuning: Callable[[Layer, Compute, int], Tuning],
    tile_n: Callable[[Tuning], int],
    sizes: Sequence[int],
    layer: Layer,
    compute: Compute,
    rows: int,
    *,
    blocks: bool,
) -> tuple[Tuning, ...]:
    """sizes: numbers of rows that ask for every tile.  blocks: whether the bound for registers may differ from the heuristics'."""
    first = tuning(layer, compute, rows)
    tiles = {t.tile_m: t for t in (*(tuning(layer, compute, size) for size in sizes), first)}
    near = sorted(tiles)
    at = near.index(first.tile_m)
    found = [first]
    for tile_m in near[max(0, at - 1) : at + 2]:
        base = first if tile_m == first.tile_m else tiles[tile_m]
        found += [replace(base, parts=parts) for parts in parts_around(layer, base, tile_n(base), rows, first.parts)]
    if blocks:
        found += [replace(first, blocks=b) for b in (first.blocks - 1, first.blocks + 1) if 0 < b <= REGISTERS // (FEWEST * first.threads)]
    return tuple(dict.fromkeys(found))


def parts_around(layer: Layer, tuning: Tuning, tile_n: int, rows: int, parts: int) -> Iterator[int]:
    """As many, twice, half as many, one; none of them empty, and their sums in ROOM. With experts K is not divided."""
    across = -(-layer.n // tile_n) * -(-bucket(rows, tuning.tile_m) // tuning.tile_m)
    tiles = -(-layer.shape_k // tuning.tile_k)
    for wanted in (parts, 2 * parts, parts // 2, 1):
        if wanted >= 1 and (wanted == 1 or not layer.experts):
            found = none_empty(tiles, wanted)
            if found == 1 or across * found * sum_bytes(tile_n, tuning.tile_m) <= ROOM:
                yield found
