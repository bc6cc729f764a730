"""Parts of K that several blocks multiply, as parts_sm80.cuh adds them up.

In: a layer, the sizes of a tile, how many tiles of rows there are.  Out: how many parts; bytes for their sums.
They depend on nothing else, so that sums come in the same order on every GPU of an architecture.
"""

from __future__ import annotations

from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tuning import Tuning

MULTIPROCESSORS = 132  # of an H100 or H200; that of other GPUs are as many within a factor of two
ROOM = 64 << 20  # bytes of sums
MOST = 4  # more take longer to add up than they save (docs/performance.md)


def parts_of(layer: Layer, tile_n: int, tile_k: int, tile_m: int, rows: int, blocks: float, known: int) -> int:
    """Blocks along K that give each multiprocessor `blocks`, as far as there are tiles of K, MOST at most; 1 with experts, where rows make blocks enough.
    known: rows up to which a family has kernels for each number of parts; one kernel is for all beyond."""
    if layer.experts or rows > known:
        return 1
    across, tiles = -(-layer.n // tile_n) * -(-rows // tile_m), -(-layer.shape_k // tile_k)
    wanted = min(tiles, MOST, max(1, int(MULTIPROCESSORS * blocks) // across), max(1, ROOM // (across * sum_bytes(tile_n, tile_m))))
    return none_empty(tiles, wanted)


def none_empty(tiles: int, wanted: int) -> int:
    """At most so many parts of the tiles of K: all as long, apart from the last, and that has one too. Kernels of other numbers do not compile."""
    each = -(-tiles // min(wanted, tiles))
    return -(-tiles // each)


def bucket(rows: int, tile_m: int) -> int:
    """Rows as parts are made for: tiles of rows by powers of two, so that there are few kernels."""
    tiles = -(-rows // tile_m)
    return tile_m * (1 << (tiles - 1).bit_length())


def sum_bytes(tile_n: int, tile_m: int) -> int:
    """Of one block: an entry for each row of W and of x."""
    return 4 * tile_n * tile_m


def resident(tuning: Tuning) -> int:
    """Blocks that are there at once, in whole clusters, where each goes on with another tile. On a GPU with fewer multiprocessors some begin later."""
    return MULTIPROCESSORS * tuning.blocks // tuning.cluster * tuning.cluster
