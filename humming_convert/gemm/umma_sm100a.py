"""The Blackwell kernel family: configures umma_sm100a.cuh. Compiled and looked at, never run, so that nothing chooses it.

In: a layer and its mathematics.  Out: tile sizes, or the reason why not.
"""

from __future__ import annotations

from humming_convert.gemm import operands, wgmma_sm90a
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.tuning import Tuning

NAME = "umma_sm100a"
PARTS = False
MAPPED = False
ROWS = (16, 32, 64)
TILE_N, TILE_K = 128, 64


def why_not(layer: Layer, compute: Compute, sm: int) -> str | None:
    """The first reason against it. What 16-bit operands hold is said in one place, wgmma_sm90a."""
    if sm not in (100, 103, 110):
        return "tcgen05 is an instruction of sm_100a"
    if layer.act_bits != 16:
        return "activations are 16-bit floats here"
    if layer.place != "standard":
        return f"no registers of {layer.place} words"
    return wgmma_sm90a.why_not(layer, compute, 90)


def rounding(layer: Layer, compute: Compute) -> str:
    return operands.rounding(layer, compute)


def fitted(layer: Layer, compute: Compute) -> Compute:
    return wgmma_sm90a.fitted(layer, compute)


def tuning(layer: Layer, compute: Compute, rows: int) -> Tuning:
    tile_m = next((size for size in ROWS if rows <= size), ROWS[-1])
    return Tuning(threads=TILE_N, tile_m=tile_m, tile_k=TILE_K, shared=(TILE_N + tile_m) * 128 + 1024)


def tile_n(tuning: Tuning) -> int:
    return TILE_N


def candidates(layer: Layer, compute: Compute, rows: int) -> tuple[Tuning, ...]:
    return (tuning(layer, compute, rows),)
