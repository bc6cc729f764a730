"""The tuning configuration: what changes speed only, for `struct Tuning` of the templates.

In: how many rows there are.  Out: a Tuning.  The plain family has two sizes of tile; speed is not its aim.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """threads: of a block.  tile_m: rows of a block (16, 32, 64).  tile_k: columns of K at a time."""

    threads: int = 128
    tile_m: int = 16
    tile_k: int = 32

    @classmethod
    def of(cls, m: int) -> Tuning:
        """By rows (with experts: rows an expert)."""
        return cls(tile_m=16 if m <= 16 else 64)
