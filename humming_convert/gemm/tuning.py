"""The tuning configuration: what changes speed only, for `struct Tuning` of the templates.

In: how many rows there are.  Out: a Tuning.  Each family has a `tuning` of its own; `Tuning.of` is the plain one's, whose aim is not speed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """threads: of a block.  tile_m: rows of a block.  tile_k: columns of K at a time.  stages: tiles of K in shared memory.
    shared: bytes of shared memory that a launch asks for.  warps_k: warps of a block that share rows of W and split K.  steps: instructions of
    a warp between two scalings, at most.  parts: blocks that split K between them.  blocks: of a multiprocessor, at least: a bound for registers.
    share: warpgroups of a block that have the same rows of W, of which each takes some row tiles.  cluster: blocks that have the same rows of x
    copied to all of them at once.  joined: 1: parts are blocks of one cluster, and add up in its shared memory.
    goes_on: 1: there are as many blocks as fit at once, and each goes on with another tile."""

    threads: int = 128
    tile_m: int = 16
    tile_k: int = 32
    stages: int = 1
    shared: int = 0
    warps_k: int = 1
    steps: int = 4
    parts: int = 1
    blocks: int = 1
    share: int = 1
    cluster: int = 1
    joined: int = 0
    goes_on: int = 0

    @classmethod
    def of(cls, m: int) -> Tuning:
        """By rows (with experts: rows an expert)."""
        return cls(tile_m=16 if m <= 16 else 64)
