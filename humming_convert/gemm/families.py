"""The kernel families, fastest first, and which one multiplies a layer. The last takes every layer.

In: a layer, its mathematics, a GPU.  Out: a Choice, which keeps why the faster ones were not taken; `humming-convert kernels list` says so.
A family is a host file here and a device file of the same name in cuda_templates/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from humming_convert.gemm import cluster_sm90a, mma_any, mma_sm80, mx_sm120a, umma_sm100a, wgmma_sm90a
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tasks import Dense, Indexed
from humming_convert.gemm.tuning import Tuning


class Family(Protocol):
    """What a host file of a family has."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 as modules have it

    @property
    def ROWS(self) -> tuple[int, ...]:  # noqa: N802
        """Numbers of rows that together ask for every tuning."""

    @property
    def PARTS(self) -> bool:  # noqa: N802
        """Blocks may split K: the kernel takes room for their sums (parts_sm80.cuh)."""

    @property
    def MAPPED(self) -> bool:  # noqa: N802
        """x goes as a tensor map (gemm/tensor_map.py), not as an address; not where rows come in lists."""

    def why_not(self, layer: Layer, compute: Compute, sm: int) -> str | None:
        """The reason why it does not take a layer on a GPU of `sm`; None: it does."""

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        """The mathematics with the operands that it multiplies."""

    def rounding(self, layer: Layer, compute: Compute) -> str:
        """What its kernels round before the end: a word of operands.ROUNDINGS. Only where `compute.rounds` allows it."""

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        """By rows (with experts: rows an expert)."""

    def candidates(self, layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
        """Tunings that are worth measuring for so many rows, the one of `tuning` first."""

    def tile_n(self, tuning: Tuning) -> int:
        """Columns of y that a block makes."""


def gathers(family: Family, tuning: Tuning) -> bool:
    """Whether such a kernel of a family wants rows that lists name side by side (gather_any.py)."""
    return family.NAME == cluster_sm90a.NAME and cluster_sm90a.gathers(tuning)


PLAIN = cast(Family, mma_any)
FAMILIES: tuple[Family, ...] = (cast(Family, cluster_sm90a), cast(Family, wgmma_sm90a), cast(Family, mma_sm80), PLAIN)
# By family and bits of an activation: one that is faster for fewer rows, and up to how many (with experts: rows an expert): measured on an H200
# (docs/performance.md)
FOR_FEWER: dict[tuple[str, int], tuple[int, Family]] = {
    (cluster_sm90a.NAME, 16): (16, cast(Family, mma_sm80)),
    (wgmma_sm90a.NAME, 16): (32, cast(Family, mma_sm80)),
    (wgmma_sm90a.NAME, 8): (32, cast(Family, mma_sm80)),
}
# compiled and looked at on a machine without such a GPU: no choice before they have been run on one
NEVER_RUN: tuple[Family, ...] = (cast(Family, mx_sm120a), cast(Family, umma_sm100a))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A family that was not taken."""

    family: str
    reason: str


@dataclass(frozen=True, slots=True)
class ByRows:
    """Families that multiply the same operands: each up to so many rows (with experts: rows an expert), and `many` beyond."""

    up_to: tuple[tuple[int, Family], ...]
    many: Family

    @property
    def families(self) -> tuple[Family, ...]:
        """In the order of rows."""
        return tuple(dict.fromkeys((*(family for _, family in self.up_to), self.many)))

    @property
    def NAME(self) -> str:  # noqa: N802 as families have it
        return ", ".join((*(f"{family.NAME} to {rows} rows" for rows, family in self.up_to), self.many.NAME))

    @property
    def ROWS(self) -> tuple[int, ...]:  # noqa: N802
        bounds = [0, *(rows for rows, _ in self.up_to)]
        some = [r for low, (rows, family) in zip(bounds, self.up_to, strict=False) for r in family.ROWS if low < r <= rows]
        return (*some, *(r for r in self.many.ROWS if r > bounds[-1]))

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        fitted, *others = (family.fitted(layer, compute) for family in self.families)
        assert all(other == fitted for other in others), (fitted, others)
        return fitted


@dataclass(frozen=True, slots=True)
class Fixed:
    """A family with one tuning, whatever the rows are."""

    family: Family
    chosen: Tuning

    @property
    def NAME(self) -> str:  # noqa: N802
        return self.family.NAME

    @property
    def ROWS(self) -> tuple[int, ...]:  # noqa: N802
        return self.family.ROWS[:1]

    @property
    def PARTS(self) -> bool:  # noqa: N802
        return self.family.PARTS

    @property
    def MAPPED(self) -> bool:  # noqa: N802
        return self.family.MAPPED

    def why_not(self, layer: Layer, compute: Compute, sm: int) -> str | None:
        return self.family.why_not(layer, compute, sm)

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        return self.family.fitted(layer, compute)

    def rounding(self, layer: Layer, compute: Compute) -> str:
        return self.family.rounding(layer, compute)

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        return self.chosen

    def candidates(self, layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
        return (self.chosen,)

    def tile_n(self, tuning: Tuning) -> int:
        return self.family.tile_n(tuning)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was measured to be the quickest (gemm/tunings.py). ranges: rows up to which it is, in growing order; `beyond` all of them."""

    kernels: Family | ByRows
    ranges: tuple[tuple[int, Fixed], ...]
    beyond: Fixed

    @property
    def NAME(self) -> str:  # noqa: N802
        return f"{self.kernels.NAME}, tuned"

    @property
    def ROWS(self) -> tuple[int, ...]:  # noqa: N802
        bounds = tuple(up_to for up_to, _ in self.ranges)
        return (*bounds, bounds[-1] + 1 if bounds else 1)

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        return self.kernels.fitted(layer, compute)

    def at(self, rows: int, task: str) -> Family:
        """Rows in lists go to the heuristics' choice where the winner is a cluster's that does not gather them, which has them not."""
        found = next((fixed for up_to, fixed in self.ranges if rows <= up_to), self.beyond)
        lacks = task == Indexed.name and found.chosen.cluster > 1 and not gathers(found, found.chosen)
        return at_rows(self.kernels, rows) if lacks else found


Kernels = Family | ByRows | Tuned
"""What multiplies a layer, for any number of rows."""


def at_rows(kernels: Kernels, rows: int, task: str = Dense.name) -> Family:
    """What multiplies so many rows (with experts: rows an expert). task: one of gemm/tasks.py."""
    if isinstance(kernels, Tuned):
        return kernels.at(rows, task)
    if not isinstance(kernels, ByRows):
        return kernels
    return next((family for most, family in kernels.up_to if rows <= most), kernels.many)


@dataclass(frozen=True, slots=True)
class Choice:
    """family: for many rows.  rejected: those that would be faster.  kernels: for any number of rows."""

    family: Family
    rejected: tuple[Rejected, ...]
    kernels: Kernels


def choose(layer: Layer, compute: Compute, sm: int, among: Sequence[Family] = FAMILIES) -> Choice:
    """The first family that takes the layer, and beside it one that is faster for fewer rows."""
    rejected: list[Rejected] = []
    for family in among:
        reason = family.why_not(layer, compute, sm)
        if reason is None:
            few = _for_fewer(layer, compute, sm, family)
            return Choice(family, tuple(rejected), ByRows(few, family) if few else family)
        rejected.append(Rejected(family.NAME, reason))
    raise AssertionError(rejected)


def _for_fewer(layer: Layer, compute: Compute, sm: int, family: Family) -> tuple[tuple[int, Family], ...]:
    """The family that is faster for fewer rows than `family`, and up to how many; none."""
    rows, other = FOR_FEWER.get((family.NAME, layer.act_bits), (0, PLAIN))
    # sm_90 has no E4M3 for mma.sync: the compiler unpacks every operand to float16
    unpacks = other.NAME == mma_sm80.NAME and family.fitted(layer, compute).operand == "e4m3"
    return ((rows, other),) if rows and not unpacks and other.why_not(layer, compute, sm) is None else ()


def named(name: str) -> Family:
    return next(f for f in (*FAMILIES, *NEVER_RUN) if name == f.NAME)
