"""Which rows meet which expert: what tasks.cuh needs of a call, and how many tiles of rows there are at most.

In: `Dense`, `Indexed`, `Contiguous` or `Masked`.  Out: Lists for a launch.  Contiguous and masked take the counts of rows as they are on the
device: the kernel finds its expert by itself, and nothing waits for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm.device import Device

Rows = NDArray[np.int32]
NOBODY = -1  # the expert of a row that is not multiplied


@dataclass(frozen=True, slots=True)
class Lists:
    """rows, experts, room: TaskLists of tasks.cuh, on the device.  tiles: at most so many have rows."""

    rows: Any
    experts: Any
    room: int
    tiles: int


@dataclass(frozen=True, slots=True)
class Dense:
    """All rows by the only expert."""

    name = "dense"

    def each(self, m: int, experts: int) -> int:
        """About how many rows an expert has."""
        return m

    def lists(self, device: Device, m: int, experts: int, tile_m: int) -> Lists:
        return Lists(None, None, 0, -(-m // tile_m))


@dataclass(frozen=True, slots=True)
class Indexed:
    """An expert for each row of y, on the host: [m]. Rows of NOBODY are not multiplied. Row r of y is made of row r // top_k of x."""

    expert_of_row: NDArray[Any]
    top_k: int = 1
    name = "indexed"

    def each(self, m: int, experts: int) -> int:
        return -(-m // max(1, experts))

    def lists(self, device: Device, m: int, experts: int, tile_m: int) -> Lists:
        assert self.expert_of_row.shape == (m,) and m % self.top_k == 0 and self.expert_of_row.max(initial=-1) < experts, (
            self.expert_of_row.shape,
            m,
            experts,
        )
        rows, of_tile = indexed(self.expert_of_row, tile_m)
        return Lists(device.put(rows), device.put(of_tile), self.top_k, of_tile.size)


@dataclass(frozen=True, slots=True)
class Contiguous:
    """Rows of expert 0, then those of expert 1, ...: counts [experts], int32, of the host or the device. Rows beyond them are not multiplied."""

    counts: Any
    name = "contiguous"

    def each(self, m: int, experts: int) -> int:
        return -(-m // max(1, experts))

    def lists(self, device: Device, m: int, experts: int, tile_m: int) -> Lists:
        # every expert with rows may have one short tile
        return Lists(None, device.counts(self.counts, experts), 0, m // tile_m + min(m, experts))


@dataclass(frozen=True, slots=True)
class Masked:
    """Room for m / experts rows of each expert, of which the first counts[e] are there: counts [experts], int32, of the host or the device."""

    counts: Any
    name = "masked"

    def each(self, m: int, experts: int) -> int:
        return m // experts

    def lists(self, device: Device, m: int, experts: int, tile_m: int) -> Lists:
        assert m % experts == 0, (m, experts)
        room = m // experts
        return Lists(None, device.counts(self.counts, experts), room, -(-room // tile_m) * experts)


GATHERED = "gathered"
"""What a kernel makes of `Indexed` rows that were brought side by side before (gather_any.py)."""
LISTED = (Indexed.name, GATHERED)
Task = Dense | Indexed | Contiguous | Masked
GROUPED = (Indexed.name, Contiguous.name, Masked.name)


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
