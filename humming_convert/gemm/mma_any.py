"""The plain kernel family: configures mma_any.cuh for any packed layer. The referee of faster families; speed is not its aim."""

from __future__ import annotations

from humming_convert.gemm import operands
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tuning import Tuning

NAME = "mma_any"
PARTS = False
MAPPED = False
TILE_N = 64
ROWS = (1, 64)


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """It takes every layer that Layer and Compute have words for."""
    return None


def rounding(layer: Layer, compute: Compute) -> str:
    return operands.rounding(layer, compute)


def fitted(layer: Layer, compute: Compute) -> Compute:
    return compute


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    return Tuning.of(rows)


def tile_n(tuning: Tuning) -> int:
    return TILE_N


def candidates(layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
    return (tuning(layer, compute, rows),)
