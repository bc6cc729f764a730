"""The Hopper family of cp.async on a CPU: its own kernel, and the products of warpgroups (emulated_block.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import Case, Spec, fast_specs, selected
from emulated_block import Change
from emulated_checks import WAYS, Tile, assert_groups_right, assert_right, assert_top_k_right, checker_of, needs_compiler, seen, wide
from narrow_layers import LONG, NARROW, Narrow

from humming_convert.gemm import wgmma_sm90a

ROWS = (1, 12, 17, 64, 130)  # a tile size each, and tiles of rows that are not full
SPECS = fast_specs()["wgmma_sm90a"]
EXPERTS = wide(SPECS[1], seed=6)


def taken(spec: Spec) -> bool:
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, 90)
    return wgmma_sm90a.why_not(case.layer, case.compute, 90) is None


@pytest.fixture
def few_stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages are used again, and K has no parts up to 16 rows, two at most beyond."""
    whole = wgmma_sm90a.parts_of
    monkeypatch.setattr(wgmma_sm90a, "STAGES", 3)
    monkeypatch.setattr(wgmma_sm90a, "parts_of", lambda *about: min(2 if about[3] >= 32 else 1, whole(*about)))


# --- The kernel itself


@needs_compiler
@pytest.mark.usefixtures("few_stages")
def test_the_kernel_gives_float64_products_and_every_single_weight(tmp_path: Path) -> None:
    rows = [ROWS[i % len(ROWS)] for i in range(len(SPECS))]
    assert assert_right([(checker_of(wide(s), Tile(wgmma_sm90a, m)), (m,)) for s, m in zip(SPECS, rows, strict=True)], tmp_path) == 9


@needs_compiler
@pytest.mark.usefixtures("few_stages")
def test_rows_of_experts_that_lie_side_by_side_give_float64_products(tmp_path: Path) -> None:
    assert_groups_right(checker_of(EXPERTS, wgmma_sm90a), tmp_path, 20)


@needs_compiler
@pytest.mark.parametrize("spec", [EXPERTS, pytest.param(wide(SPECS[8], seed=9), marks=pytest.mark.slow)], ids=["words", "integers"])
def test_a_row_goes_to_several_experts(spec: Spec, tmp_path: Path) -> None:
    assert_top_k_right(checker_of(spec, wgmma_sm90a), tmp_path, 9)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("part", range(3))
def test_every_tile_gives_float64_products_in_every_way_in_which_copies_and_products_come(rows: int, part: int, tmp_path: Path) -> None:
    checkers = [(checker_of(wide(s), Tile(wgmma_sm90a, rows)), (rows,)) for s in SPECS[part::3]]
    assert assert_right(checkers, tmp_path, ways=len(WAYS)) == 3


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_the_kernel_gives_float64_products_and_every_single_weight_in_every_layer(part: int, tmp_path: Path) -> None:
    mine = [s for s in selected() if taken(s)]
    assert len(mine) == 225
    checkers = [(checker_of(s, wgmma_sm90a), (ROWS[i % len(ROWS)],)) for i, s in enumerate(mine[part::20])]
    assert assert_right(checkers, tmp_path) > 10


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("spec", (NARROW | LONG).values(), ids=NARROW | LONG)
def test_k_that_ends_inside_a_tile_or_has_several_parts(spec: Narrow, tmp_path: Path) -> None:
    assert assert_right([(checker_of(spec, wgmma_sm90a), (rows,)) for rows in (1, 33)], tmp_path, ways=3) == 2


# --- That a fault shows

KERNEL = "wgmma_sm90a.cuh"
STAGES = "stages_sm80.cuh"
WAIT = "wait_for_phase(full + now.stage, now.parity);"
WORDS, CHANNELS = wide(SPECS[0]), wide(SPECS[3])
# what is wrong -> a layer and a number of rows that show it, and one change
FAULTS = {
    "a tile is not waited for": (WORDS, 16, Change(KERNEL, WAIT, "")),
    "a tile is waited for one turn late": (
        WORDS,
        16,
        Change(KERNEL, WAIT, WAIT.replace("parity", "parity ^ 1")),
    ),
    "a stage is filled before it is free": (
        WORDS,
        16,
        Change(KERNEL, "if (tile - begin >= T::stages) wait_for_phase(free_again + into.stage, into.parity ^ 1);", ""),
    ),
    "a stage is released by one warp for all": (WORDS, 16, Change(KERNEL, "if (lane == 0) arrive_now", "if (threadIdx.x == 0) arrive_now")),
    "copies arrive without their bytes": (
        WORDS,
        16,
        Change(KERNEL, "arrive_with_copies(full + into.stage)", "arrive_now(full + into.stage)"),
    ),
    "copies are not seen by tensor cores": (WORDS, 16, Change(KERNEL, "    publish_to_tensor_cores();\n", "")),
    "one arrival too few fills a stage": (
        WORDS,
        16,
        Change(KERNEL, "start_barrier(full + i, T::threads)", "start_barrier(full + i, T::threads - 1)"),
    ),
    "an operand is made in the place of one that is multiplied": (WORDS, 16, Change(KERNEL, "{ a[kItem % 2][j]", "{ a[0][j]")),
    "products are waited for too late": (CHANNELS, 64, Change(KERNEL, "wait_for_products<1>();", "wait_for_products<2>();")),
    "sums are scaled before they are there": (
        WORDS,
        16,
        Change(KERNEL, "        wait_for_products<0>();\n        unrolled", "        unrolled"),
    ),
    "registers are not made ready": (WORDS, 16, Change(KERNEL, "      ready();\n", "")),
    "sums are stored over the last stage": (
        WORDS,
        16,
        Change(KERNEL, "stages. Sums that are not whole yet: of all parts\n  __syncthreads();", "stages\n"),
    ),
    "every tile has the first one's words": (WORDS, 16, Change(STAGES, "    words += S::kLines * Line::kPitch;\n", "")),
    "every tile has the first one's groups": (WORDS, 16, Change(STAGES, "      from += S::kGroups * i64(kRow);\n", "")),
    "every tile has the first one's columns of x": (WORDS, 16, Change(STAGES, "    columns += S::kTileBytes;\n", "")),
    "rows that are not there are copied": (WORDS, 5, Change(STAGES, "rows[j] >= 0 && (kWholeRows", "(kWholeRows")),
    "sums are read before all are stored": (WORDS, 16, Change(KERNEL, "  __syncthreads();\n  // Row scales", "  // Row scales")),
}
ALWAYS = ("a stage is filled before it is free", "sums are scaled before they are there")


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("what", [w if w in ALWAYS else pytest.param(w, marks=pytest.mark.slow) for w in FAULTS])
def test_a_fault_in_the_kernel_shows(what: str, tmp_path: Path) -> None:
    spec, rows, change = FAULTS[what]
    shown = seen(checker_of(spec, Tile(wgmma_sm90a, rows)), tmp_path, rows, change)
    print(what, "::", shown)
    assert shown is not None
