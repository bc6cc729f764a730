"""cluster_sm90a with blocks that go on with another tile, on a CPU (emulated_block.py): one or two clusters make all tiles, with few stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cases import BLOCKS, Spec
from emulated_block import Change
from emulated_checks import (
    Tile,
    assert_groups_right,
    assert_right,
    assert_rounded,
    assert_top_k_right,
    checker_of,
    needs_compiler,
    seen,
    wide,
)
from test_cluster_sm90a import EXPERTS, KERNEL, SPECS, STAGES, Twice

from humming_convert.gemm import cluster_sm90a, multiplier
from humming_convert.gemm.cluster_sm90a import FOR_EXPERTS, SIZES
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.parts import resident
from humming_convert.gemm.tuning import Tuning


@dataclass(frozen=True)
class GoesOn(Tile):
    """The family with tiles of so many rows, whose blocks go on. rows: of the tile."""

    warpgroups: int = 2
    stages: int = 3

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        size = (SIZES[layer.act_bits] | FOR_EXPERTS[layer.act_bits])[self.rows]
        blocks = 1 if self.warpgroups > 2 or self.stages > 3 else size.blocks
        # nothing to fill: K is not divided, which blocks that go on do not do
        size = replace(size, stages=self.stages, goes_on=1, fill=0, warpgroups=self.warpgroups, blocks=blocks)
        found = cluster_sm90a._tuning(layer, compute, self.rows, rows, size)
        assert found.goes_on and found.stages == self.stages
        return found


@pytest.fixture(params=[1, 2], autouse=True)
def few_clusters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplier, "resident", lambda tuning: request.param * tuning.cluster)


TILES = [(0, 16), (11, 32), (0, 48), (11, 48), (6, 64), (9, 128), (11, 128), (0, 256), (10, 256), (11, 256)]
ALWAYS = {(0, 16), (11, 32)}
# scales of W in blocks, for each warpgroup
OF_64 = wide(BLOCKS[2])


@needs_compiler
@pytest.mark.parametrize(("i", "tile"), [x if x in ALWAYS else pytest.param(*x, marks=pytest.mark.slow) for x in TILES])
def test_several_tiles_of_a_block_give_float64_products_and_every_single_weight(i: int, tile: int, tmp_path: Path) -> None:
    checker = checker_of(wide(SPECS[i]), GoesOn(cluster_sm90a, tile), True)
    assert assert_right([(checker, (2 * tile + 5,))], tmp_path, ways=7) == 1


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("tile", [16, 48, 128, 256])
def test_scales_of_blocks_give_float64_products(tile: int, tmp_path: Path) -> None:
    assert assert_right([(checker_of(OF_64, GoesOn(cluster_sm90a, tile), True), (2 * tile + 5,))], tmp_path, ways=4) == 1


@needs_compiler
@pytest.mark.parametrize("spec", EXPERTS.values(), ids=EXPERTS)
@pytest.mark.parametrize(
    ("tile", "each"), [(16, 20), pytest.param(64, 150, marks=pytest.mark.slow), pytest.param(256, 300, marks=pytest.mark.slow)]
)
def test_rows_of_experts_that_lie_side_by_side_give_float64_products(spec: Spec, tile: int, each: int, tmp_path: Path) -> None:
    assert_groups_right(checker_of(spec, GoesOn(cluster_sm90a, tile), True), tmp_path, each)


@needs_compiler
@pytest.mark.parametrize("spec", EXPERTS.values(), ids=EXPERTS)
@pytest.mark.parametrize(
    ("tile", "rows"), [(16, 70), pytest.param(64, 150, marks=pytest.mark.slow), pytest.param(256, 700, marks=pytest.mark.slow)]
)
def test_rows_of_experts_that_lists_name_give_float64_products(spec: Spec, tile: int, rows: int, tmp_path: Path) -> None:
    assert assert_right([(checker_of(spec, GoesOn(cluster_sm90a, tile), True), (rows,))], tmp_path, ways=4) == 1


@needs_compiler
@pytest.mark.parametrize("spec", EXPERTS.values(), ids=EXPERTS)
def test_a_row_goes_to_several_experts(spec: Spec, tmp_path: Path) -> None:
    assert_top_k_right(checker_of(spec, GoesOn(cluster_sm90a, 16), True), tmp_path, 17)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("tile", [16, 64, 128, 256])
def test_results_of_16_bits_are_those_of_float32_rounded(tile: int, tmp_path: Path) -> None:
    """Tables in which they are turned are of another size, and several where a tile has more than 64 rows."""
    assert_rounded(checker_of(wide(SPECS[0]), GoesOn(cluster_sm90a, tile), True), tmp_path, (2 * tile + 3,))


@needs_compiler
@pytest.mark.slow
def test_four_warpgroups_give_float64_products(tmp_path: Path) -> None:
    spec = Twice(**{name: getattr(EXPERTS["words and groups"], name) for name in Spec.__slots__})
    assert assert_right([(checker_of(spec, GoesOn(cluster_sm90a, 32, 4), True), (100,))], tmp_path, ways=4) == 1


def test_there_are_as_many_blocks_as_fit_in_whole_clusters() -> None:
    assert (
        resident(Tuning(cluster=2, blocks=2)) == 264 and resident(Tuning(cluster=8, blocks=1)) == 128 and resident(Tuning(blocks=1)) == 132
    )


BROUGHT = "    if constexpr (S::kGoesOn) wait_for_phase(brought + of, count / S::kAsides & 1);\n"
FREE = "        if (count >= S::kAsides) wait_for_phase(aside_free + of, count / S::kAsides + 1 & 1);\n"
LAST = "      all_stages.template release<S::kCluster>(before, lane, free_there);\n    }\n"
SYNCED = "      if constexpr (S::kActGroups > 0) __syncwarp();\n" + LAST
TABLE = "sync_first<S::kMultiplying>();\n    if constexpr (S::kInCluster"
ANEW = "    static Total of_all[1024][1][kSums] = {};\n    auto& total = of_all[threadIdx.x];"
LISTS, TOKENS, GROUPS = EXPERTS["scales of activations"], wide(SPECS[10]), wide(SPECS[11])
# what is wrong -> a layer, rows of a tile, stages, rows of x that show it, and one change
FAULTS = {
    "what lies beside a tile is not waited for": (LISTS, 16, 3, 70, Change(KERNEL, BROUGHT, "")),
    "what lies beside a tile is overwritten": (TOKENS, 16, 3, 70, Change(KERNEL, FREE, "")),
    "what lies beside a tile is free before its results are stored": (
        LISTS,
        16,
        3,
        70,
        Change(
            KERNEL, "    if (lane == 0) arrive_now(aside_free + of);\n", "    if (lane == 1 && count == 0) arrive_now(aside_free + of);\n"
        ),
    ),
    "the last stage of a tile is not released": (LISTS, 16, 3, 70, Change(KERNEL, LAST, "    }\n")),
    "the last stage of a tile is released before all lanes have read its scales": (GROUPS, 32, 3, 69, Change(KERNEL, SYNCED, LAST)),
    "copies begin with the first stage again": (
        LISTS,
        16,
        3,
        70,
        Change(STAGES, "typename All::At at = All::turn_of(number);\n  for", "typename All::At at;\n  for"),
    ),
    "rows are used before they are named": (
        LISTS,
        16,
        3,
        70,
        Change(KERNEL, "        sync_assistants<S::kAssisting>();  // rows that others have named\n", ""),
    ),
    "a table is written while others read it": (TOKENS, 16, 9, 70, Change(KERNEL, TABLE, TABLE.split("\n")[1].strip())),
    "sums are not begun anew": (LISTS, 16, 3, 70, Change(KERNEL, "    Total total[1][kSums] = {};", ANEW)),
}


@needs_compiler
@pytest.mark.parametrize("what", [w if i == 3 else pytest.param(w, marks=pytest.mark.slow) for i, w in enumerate(FAULTS)])
def test_a_fault_in_the_kernel_shows(what: str, tmp_path: Path) -> None:
    spec, tile, stages, rows, change = FAULTS[what]
    shown = seen(checker_of(spec, GoesOn(cluster_sm90a, tile, 2, stages), True), tmp_path, rows, change)
    print(what, "::", shown)
    assert shown is not None
