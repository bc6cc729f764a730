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

    @property
    def NAME(self) -> str: ...  # noqa: N802 as modules have it

    @property
    def ROWS(self) -> tuple[int, ...]:  # noqa: N802
        """Numbers of rows that together ask for every tuning."""

    @property
    def PARTS(self) -> bool:  # noqa: N802
        """Blocks may split K: the kernel takes room for their sums (parts_sm80.cuh)."""

    def why_not(self, layer: Layer, compute: Compute, sm: int) -> str | None:
        """The reason why it does not take a layer on a GPU of `sm`; None: it does."""

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        """The mathematics with the operands that it multiplies."""

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        """By rows (with experts: rows an expert)."""

    def candidates(self, layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
        """Tunings that are worth measuring for so many rows, the one of `tuning` first."""

    def tile_n(self, tuning: Tuning) -> int:
        """Columns of y that a block makes."""


PLAIN = cast(Family, mma_any)
FAMILIES: tuple[Family, ...] = (cast(Family, wgmma_sm90a), cast(Family, mma_sm80), PLAIN)
# which family is faster for few rows than the one that takes a layer: measured on an H200 (docs/gemm.md)
FOR_FEW: dict[str, Family] = {wgmma_sm90a.NAME: cast(Family, mma_sm80)}
FEW = 32
# compiled and looked at on a machine without such a GPU: no choice before they have been run on one
NEVER_RUN: tuple[Family, ...] = (cast(Family, mx_sm120a), cast(Family, umma_sm100a))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A family that was not taken."""

    family: str
    reason: str


@dataclass(frozen=True, slots=True)
class ByRows:
    """Two families that multiply the same operands: `few` up to FEW rows (with experts: rows an expert), `many` beyond."""

    few: Family
    many: Family

    @property
    def NAME(self) -> str:  # noqa: N802 as families have it
        return f"{self.few.NAME} to {FEW} rows, {self.many.NAME}"

    @property
    def ROWS(self) -> tuple[int, ...]:  # noqa: N802
        return (*(r for r in self.few.ROWS if r <= FEW), *(r for r in self.many.ROWS if r > FEW))

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        few, many = self.few.fitted(layer, compute), self.many.fitted(layer, compute)
        assert few == many, (few, many)
        return many


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

    def why_not(self, layer: Layer, compute: Compute, sm: int) -> str | None:
        return self.family.why_not(layer, compute, sm)

    def fitted(self, layer: Layer, compute: Compute) -> Compute:
        return self.family.fitted(layer, compute)

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

    def at(self, rows: int) -> Fixed:
        return next((fixed for up_to, fixed in self.ranges if rows <= up_to), self.beyond)


Kernels = Family | ByRows | Tuned
"""What multiplies a layer, for any number of rows."""


def at_rows(kernels: Kernels, rows: int) -> Family:
    if isinstance(kernels, Tuned):
        return kernels.at(rows)
    if isinstance(kernels, ByRows):
        return kernels.few if rows <= FEW else kernels.many
    return kernels


@dataclass(frozen=True, slots=True)
class Choice:
    family: Family
    rejected: tuple[Rejected, ...]
    kernels: Kernels


def choose(layer: Layer, compute: Compute, sm: int, among: Sequence[Family] = FAMILIES) -> Choice:
    """The first family that takes the layer, and beside it the one that is faster for few rows."""
    rejected: list[Rejected] = []
    for family in among:
        reason = family.why_not(layer, compute, sm)
        if reason is None:
            few = FOR_FEW.get(family.NAME)
            # sm_90 has no E4M3 for mma.sync: the compiler unpacks every operand to float16
            beside = few and family.fitted(layer, compute).operand != "e4m3" and few.why_not(layer, compute, sm) is None
            return Choice(family, tuple(rejected), ByRows(few, family) if few and beside else family)
        rejected.append(Rejected(family.NAME, reason))
    raise AssertionError(rejected)


def named(name: str) -> Family:
    return next(f for f in (*FAMILIES, *NEVER_RUN) if name == f.NAME)
