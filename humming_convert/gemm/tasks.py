"""Which rows meet which expert: lists for tasks.cuh, so that each tile of rows has one expert.

In: the expert of every row, which `contiguous` and `masked` make from counts.  Out: rows in the order of experts, each expert's filled up to
whole tiles with -1, and a tile's expert. All three kinds of MoE go through the same lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int32]
NOBODY = -1  # the expert of a row that is not multiplied


def contiguous(counts: Sequence[int] | NDArray[Any]) -> Rows:
    """Rows of expert 0, then of expert 1, ...: counts [experts] -> the expert of every row."""
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def masked(counts: Sequence[int] | NDArray[Any], most: int) -> Rows:
    """Room for `most` rows of every expert, of which the first counts[e] are there: [experts * most]."""
    wanted = np.asarray(counts)[:, None]
    assert (wanted <= most).all(), (counts, most)
    experts = np.arange(wanted.shape[0], dtype=np.int32)[:, None]
    return np.where(np.arange(most)[None, :] < wanted, experts, np.int32(NOBODY)).reshape(-1)


def indexed(expert_of_row: NDArray[Any], tile_m: int) -> tuple[Rows, Rows]:
    """rows [tiles * tile_m], experts [tiles]. Rows of NOBODY are in no tile."""
    rows: list[Rows] = []
    experts: list[int] = []
    for e in np.unique(expert_of_row[expert_of_row >= 0]):
        mine = np.flatnonzero(expert_of_row == e).astype(np.int32)
        tiles = -(-mine.size // tile_m)
        rows.append(np.pad(mine, (0, tiles * tile_m - mine.size), constant_values=-1))
        experts += [int(e)] * tiles
    return (np.concatenate(rows) if rows else np.empty(0, np.int32)).astype(np.int32), np.asarray(experts, np.int32)
