"""The kernel families, fastest first, and which one multiplies a layer. The last takes every layer.

In: a layer, its mathematics, a GPU.  Out: a Choice, which keeps why the faster ones were not taken; `humming-convert kernels list` says so.
A family is a host file here and a device file of the same name in cuda_templates/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from humming_convert.gemm import mma_any, mma_sm80, mx_sm120a, umma_sm100a, wgmma_sm90a
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tuning import Tuning


class Family(Protocol):
    """What a host file of a family has."""

    NAME: str
    ROWS: tuple[int, ...]  # numbers of rows that together ask for every tuning

    def why_not(self, layer: Layer, compute: Compute, sm: int) -> str | None:
        """The reason why it does not take a layer on a GPU of `sm`; None: it does."""

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        """The mathematics with the operands that it multiplies."""

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        """By rows (with experts: rows an expert)."""

    def tile_n(self, tuning: Tuning) -> int:
        """Columns of y that a block makes."""


PLAIN = cast(Family, mma_any)
FAMILIES: tuple[Family, ...] = (cast(Family, wgmma_sm90a), cast(Family, mma_sm80), PLAIN)
# compiled and looked at on a machine without such a GPU: no choice before they have been run on one
NEVER_RUN: tuple[Family, ...] = (cast(Family, mx_sm120a), cast(Family, umma_sm100a))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A family that was not taken."""

    family: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    family: Family
    rejected: tuple[Rejected, ...]


def choose(layer: Layer, compute: Compute, sm: int, among: Sequence[Family] = FAMILIES) -> Choice:
    """The first family that takes the layer."""
    rejected: list[Rejected] = []
    for family in among:
        reason = family.why_not(layer, compute, sm)
        if reason is None:
            return Choice(family, tuple(rejected))
        rejected.append(Rejected(family.NAME, reason))
    raise AssertionError(rejected)


def named(name: str) -> Family:
    return next(f for f in (*FAMILIES, *NEVER_RUN) if name == f.NAME)
