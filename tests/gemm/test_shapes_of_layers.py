"""Which blocks heuristics choose by a layer's shape, where an H200 said that it matters (docs/decisions/085)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import Case, Spec

from humming_convert.gemm import cluster_sm90a, mma_sm80
from humming_convert.gemm.tuning import Tuning

WIDE, SQUARE, LONG = (28672, 4096), (8192, 8192), (4096, 14336)
LAYERS: dict[str, tuple[Any, ...]] = {
    "W4A16": ("uint4", "group", 128, 0, "", "none", "none", "16"),
    "W3A16": ("uint3", "group", 128, 0, "", "none", "none", "16"),
    "W8A16": ("uint8", "group", 128, 0, "", "none", "none", "16"),
    "MXFP4 A16": ("float4e2m1", "group", 32, 0, "float8e8m0", "none", "none", "16"),
    "W4A8": ("uint4", "group", 128, 0, "", "none", "none", "fp8"),
    "FP8": ("float8e4m3", "channel", 0, 0, "", "none", "none", "fp8"),
}


def chosen(family: Any, name: str, shape: tuple[int, int], rows: int) -> Tuning:
    class Sized(Spec):
        @property
        def shape(self) -> tuple[int, int]:
            return shape

        @property
        def more(self) -> dict[str, Any]:
            return super().more | {"experts": None}

    spec = Sized(90, False, "BF16", *LAYERS[name], seed=2)
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, 90)
    assert (case.layer.n, case.layer.k, case.layer.experts) == (*shape, 0)
    compute = family.fitted(case.layer, replace(case.compute, rounds=True))
    found: Tuning = family.tuning(case.layer, compute, rows)
    assert found in family.candidates(case.layer, compute, rows)
    return found


@pytest.mark.parametrize("name", ["W4A8", "FP8"])
@pytest.mark.parametrize(("shape", "tile"), [(SQUARE, 128), (LONG, 128), (WIDE, 256)])
def test_two_tiles_for_256_rows_only_where_one_would_wait_for_parts_of_k(name: str, shape: tuple[int, int], tile: int) -> None:
    assert chosen(cluster_sm90a, name, shape, 256).tile_m == tile


@pytest.mark.parametrize(
    ("name", "rows", "wide"), [("W4A16", 64, 4), ("MXFP4 A16", 128, 4), ("FP8", 128, 4), ("W4A8", 128, 2), ("W4A16", 256, 2)]
)
def test_four_warpgroups_where_blocks_of_two_would_be_more_than_multiprocessors(name: str, rows: int, wide: int) -> None:
    for shape, warpgroups in ((WIDE, wide), (SQUARE, 2), (LONG, 2), ((17408, 4096), 2)):  # 136 blocks of two: 68 of four are too few
        tuning = chosen(cluster_sm90a, name, shape, rows)
        assert tuning.threads == 128 * (warpgroups + 1), shape
        assert warpgroups == 2 or tuning.parts == 1, shape


@pytest.mark.parametrize(("shape", "blocks"), [(LONG, 1), (SQUARE, 2)])
def test_one_block_with_more_registers_where_there_are_no_two(shape: tuple[int, int], blocks: int) -> None:
    tuning = chosen(cluster_sm90a, "W4A16", shape, 64)
    assert (tuning.blocks, tuning.steps) == ((1, 4) if blocks == 1 else (2, 2))


def test_codes_in_planes_are_made_for_four_steps_at_once() -> None:
    assert [chosen(cluster_sm90a, name, SQUARE, 64).steps for name in ("W3A16", "W4A16")] == [4, 2]


@pytest.mark.parametrize(("name", "shape", "blocks"), [("W8A16", WIDE, 4), ("W8A16", SQUARE, 3), ("W4A16", WIDE, 3)])
def test_one_more_block_where_all_are_there_at_once_then(name: str, shape: tuple[int, int], blocks: int) -> None:
    assert chosen(mma_sm80, name, shape, 16).blocks == blocks


@pytest.mark.parametrize(("name", "rows", "columns"), [("MXFP4 A16", 16, 512), ("MXFP4 A16", 8, 256), ("W4A16", 16, 256)])
def test_floats_in_small_groups_have_longer_tiles_of_k(name: str, rows: int, columns: int) -> None:
    tuning = chosen(mma_sm80, name, SQUARE, rows)
    assert tuning.tile_k == columns
    assert tuning.stages >= 2


@pytest.mark.parametrize(("name", "shape", "goes_on"), [("W4A8", WIDE, 1), ("W4A8", SQUARE, 0), ("FP8", WIDE, 0)])
def test_blocks_go_on_where_sums_are_scaled_and_blocks_are_more_than_multiprocessors(
    name: str, shape: tuple[int, int], goes_on: int
) -> None:
    assert chosen(cluster_sm90a, name, shape, 128).goes_on == goes_on
