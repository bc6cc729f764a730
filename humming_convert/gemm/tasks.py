"""Which rows meet which expert: lists for tasks.cuh, so that each tile of rows has one expert.

In: the expert of every row.  Out: rows in the order of experts, each expert's filled up to whole tiles with -1, and a tile's expert.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int32]


def indexed(expert_of_row: NDArray[Any], tile_m: int) -> tuple[Rows, Rows]:
    """rows [tiles * tile_m], experts [tiles]. An expert of -1 has no row multiplied."""
    rows: list[Rows] = []
    experts: list[int] = []
    for e in np.unique(expert_of_row[expert_of_row >= 0]):
        mine = np.flatnonzero(expert_of_row == e).astype(np.int32)
        tiles = -(-mine.size // tile_m)
        rows.append(np.pad(mine, (0, tiles * tile_m - mine.size), constant_values=-1))
        experts += [int(e)] * tiles
    return (np.concatenate(rows) if rows else np.empty(0, np.int32)).astype(np.int32), np.asarray(experts, np.int32)
