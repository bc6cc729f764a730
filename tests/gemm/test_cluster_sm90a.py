"""The Hopper family for many rows on a CPU: its own kernel, clusters of blocks, copies by the hardware, products of warpgroups (emulated_block.py)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from cases import BLOCKS, Case, Spec, fast_specs, selected
from emulated_block import HERE, Change, EmulatedBlocks, templates_for_cpu
from emulated_checks import (
    WAYS,
    Tile,
    Wide,
    assert_groups_right,
    assert_right,
    assert_rounded,
    assert_top_k_right,
    checker_of,
    needs_compiler,
    seen,
    wide,
)
from emulation import COMPILER

from humming_convert.gemm import cluster_sm90a, gather_any
from humming_convert.gemm.check import random_rows
from humming_convert.gemm.cluster_sm90a import SIZES
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.multiplier import Multiplier, source_of
from humming_convert.gemm.source import kernel_source
from humming_convert.gemm.tasks import Indexed
from humming_convert.gemm.tuning import Tuning

ROWS = (1, 17, 64, 130, 300)  # a tile size each, and tiles of rows that are not full
SPECS = fast_specs()["cluster_sm90a"]
EXPERTS = {
    "words and groups": wide(SPECS[0], seed=3),
    "scales of activations": wide(SPECS[11], seed=9),
}


@dataclass(frozen=True)
class Joined(Tile):
    """The same with so many parts of K, which are blocks of one cluster."""

    parts: int = 2
    joined: int = 1

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        return replace(super().tuning(layer, compute, rows), parts=self.parts, joined=self.joined)


@dataclass(frozen=True)
class Shaped(Tile):
    """The same with so many warpgroups that multiply, whose operands are made for so many steps at once."""

    warpgroups: int = 4
    steps: int = 2

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        tile_m = next(m for m in SIZES[16] if self.rows <= m)
        changed = {"warpgroups": self.warpgroups, "steps": self.steps, "steps_on_the_way": self.steps, "blocks": 1}
        size = replace(cluster_sm90a.SIZES[layer.act_bits][tile_m], **changed)
        return cluster_sm90a._tuning(layer, compute, tile_m, rows, size)


SOME_EXPERTS = [pytest.param(spec, id=name, marks=[] if i == 1 else pytest.mark.slow) for i, (name, spec) in enumerate(EXPERTS.items())]


def taken(spec: Spec, rounds: bool) -> bool:
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, 90, rounds)
    return cluster_sm90a.why_not(case.layer, case.compute, 90) is None


@pytest.fixture
def few_stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages are used again, and K has two parts at most."""
    sizes = {bits: {m: replace(s, stages=3) for m, s in of.items()} for bits, of in SIZES.items()}
    monkeypatch.setattr(cluster_sm90a, "SIZES", sizes)
    whole = cluster_sm90a.parts_of
    monkeypatch.setattr(cluster_sm90a, "parts_of", lambda *about: min(2 if about[3] >= 64 else 1, whole(*about)))


# --- The kernel itself


@needs_compiler
@pytest.mark.usefixtures("few_stages")
def test_the_kernel_gives_float64_products_and_every_single_weight(tmp_path: Path) -> None:
    rows = [ROWS[i % len(ROWS)] for i in range(len(SPECS))]
    assert (
        assert_right([(checker_of(wide(s), Tile(cluster_sm90a, m), True), (m,)) for s, m in zip(SPECS, rows, strict=True)], tmp_path) == 12
    )


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("part", range(4))
def test_every_tile_gives_float64_products_in_every_way_in_which_copies_and_products_come(rows: int, part: int, tmp_path: Path) -> None:
    checkers = [(checker_of(wide(s), Tile(cluster_sm90a, rows), True), (rows,)) for s in SPECS[part::4]]
    assert assert_right(checkers, tmp_path, ways=len(WAYS)) == 3


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("rows", [17, pytest.param(64, marks=pytest.mark.slow), 130, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("i", [pytest.param(i, marks=[] if i == 2 else pytest.mark.slow) for i in range(len(BLOCKS))])
def test_scales_of_blocks_beside_those_of_activations_give_float64_products(i: int, rows: int, tmp_path: Path) -> None:
    assert assert_right([(checker_of(wide(BLOCKS[i]), Tile(cluster_sm90a, rows), True), (rows,))], tmp_path, ways=4) == 1


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_tilings_as_they_are_chosen_give_float64_products(part: int, tmp_path: Path) -> None:
    """As many parts of K as there are tiles, and more stages than those; rounded weights and exact ones."""
    checkers = [
        (checker_of(wide(s), cluster_sm90a, rounds), (17, 300)) for s in SPECS[part::4] for rounds in (True, False) if taken(s, rounds)
    ]
    assert assert_right(checkers, tmp_path, ways=2) >= 3


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_the_kernel_gives_float64_products_and_every_single_weight_in_every_layer(part: int, tmp_path: Path) -> None:
    mine = [s for s in selected() if taken(s, True)]
    assert len(mine) == 181
    checkers = [
        (checker_of(s, Tile(cluster_sm90a, ROWS[i % len(ROWS)]), True), (ROWS[i % len(ROWS)],)) for i, s in enumerate(mine[part::12])
    ]
    assert assert_right(checkers, tmp_path) > 10


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("spec", EXPERTS.values(), ids=EXPERTS)
@pytest.mark.parametrize("each", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_rows_of_experts_that_lie_side_by_side_give_float64_products(spec: Wide, each: int, tmp_path: Path) -> None:
    assert_groups_right(checker_of(spec, cluster_sm90a, True), tmp_path, each)


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("spec", SOME_EXPERTS)
@pytest.mark.parametrize("rows", [5, pytest.param(64, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.slow)])
def test_rows_of_experts_that_lists_name_give_float64_products(spec: Wide, rows: int, tmp_path: Path) -> None:
    checker = checker_of(spec, Tile(cluster_sm90a, rows), True)
    kernels = [s for s in checker.sources((rows,)) if s.name == "cluster_sm90a"]
    assert checker.compute.task == "indexed" and ("Task::indexed" if rows < 256 else "Task::gathered") in kernels[0].generated
    assert assert_right([(checker, (rows,))], tmp_path, ways=3) == 1


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("spec", SOME_EXPERTS)
def test_a_row_goes_to_several_experts(spec: Wide, tmp_path: Path) -> None:
    assert_top_k_right(checker_of(spec, cluster_sm90a, True), tmp_path, 9)


@needs_compiler
@pytest.mark.parametrize("rows", [17, pytest.param(64, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("parts", "spec"),
    [
        pytest.param(parts, spec, id=f"{parts} {name}", marks=[] if (parts, name) == (2, "integers") else pytest.mark.slow)
        for parts in (2, 4)
        for name, spec in (("words", SPECS[0]), ("integers", SPECS[9]), ("scales of activations", SPECS[11]))
    ],
)
def test_parts_that_are_blocks_of_one_cluster_give_float64_products(parts: int, spec: Spec, rows: int, tmp_path: Path) -> None:
    checker = checker_of(wide(spec), Joined(cluster_sm90a, rows, parts), True)
    assert assert_right([(checker, (rows,))], tmp_path, ways=4) == 1


@needs_compiler
@pytest.mark.slow
def test_parts_of_one_cluster_give_the_bits_of_parts_in_memory(tmp_path: Path) -> None:
    found = {}
    for parts, joined in ((2, 0), (2, 1)):
        checker = checker_of(wide(SPECS[6]), Joined(cluster_sm90a, 64, parts, joined), True)
        (tmp_path / str(joined)).mkdir()
        device = EmulatedBlocks(tmp_path / str(joined), checker.sources((64,)))
        multiplier = Multiplier.of(device, checker.layer, checker.compute, checker.packed, None, checker.family)
        x = random_rows(64, checker.layer.k, checker.layer.half, np.random.default_rng(2))
        found[joined] = np.array(multiplier(device.put(x)))
    np.testing.assert_array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("spec", SOME_EXPERTS)
def test_rows_of_lists_that_are_brought_side_by_side_give_the_bits_of_rows_that_are_copied_one_by_one(
    spec: Wide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one go, and in as many as there are tiles."""
    checker, found = checker_of(spec, cluster_sm90a, True), []
    layer, m, top_k = checker.layer, 450, 2
    rng = np.random.default_rng(5)
    x, of_row = random_rows(m, layer.k, layer.half, rng), rng.integers(-1, layer.experts, top_k * m).astype(np.int32)
    for i, (first, workspace) in enumerate(((1 << 30, 0), (256, 1 << 30), (256, 1))):
        monkeypatch.setattr(cluster_sm90a, "GATHERED_FROM", first)
        monkeypatch.setattr(gather_any, "WORKSPACE", workspace)
        sources = [source_of(cluster_sm90a, layer, checker.compute, -(-top_k * m // layer.experts), "indexed")]
        assert ("Task::gathered" in sources[0].generated) == (i > 0)
        (tmp_path / str(i)).mkdir()
        device = EmulatedBlocks(tmp_path / str(i), sources)
        multiplier = Multiplier.of(device, layer, checker.compute, checker.packed, None, cluster_sm90a)
        q, scale = multiplier.quantize(device.put(x))
        found.append(np.array(multiplier.multiply(q, scale, Indexed(of_row, top_k))).view(np.uint32))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert ((found[0] == 0xFFFFFFFF).all(axis=1) == (of_row < 0)).all()


class Twice(Wide):
    """Two tiles of twice as many rows of W."""

    @property
    def shape(self) -> tuple[int, int]:
        n, k = super().shape
        return 2 * n, k


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("rows", [17, pytest.param(64, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("i", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 4, 7, 9))])
def test_four_warpgroups_give_float64_products(i: int, rows: int, tmp_path: Path) -> None:
    spec = Twice(**{name: getattr(SPECS[i], name) for name in Spec.__slots__})
    assert assert_right([(checker_of(spec, Shaped(cluster_sm90a, rows), True), (rows,))], tmp_path, ways=3) == 1


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("rows", [5, pytest.param(64, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)])
def test_four_warpgroups_give_float64_products_of_rows_that_lists_name(rows: int, tmp_path: Path) -> None:
    spec = EXPERTS["words and groups"]
    spec = Twice(**{name: getattr(spec, name) for name in Spec.__slots__})
    assert assert_right([(checker_of(spec, Shaped(cluster_sm90a, rows), True), (rows,))], tmp_path, ways=3) == 1


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("i", [0, 3, 9])
def test_operands_of_any_number_of_steps_give_float64_products(i: int, steps: int, tmp_path: Path) -> None:
    checker = checker_of(wide(SPECS[i]), Shaped(cluster_sm90a, 64, 2, steps), True)
    assert assert_right([(checker, (64,))], tmp_path, ways=3) == 1


class Odd(Wide):
    """Rows of y that are not whole runs of 16 bytes: numbers of rows of W that eight or two divides, and that nothing does."""

    @property
    def shape(self) -> tuple[int, int]:
        n, k = super().shape
        return n - (8 if self.zero == "int" else 3 if self.seed % 2 else 6), k


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("i", [9, *(pytest.param(i, marks=pytest.mark.slow) for i in (0, 2, 5, 6, 7, 11))])
@pytest.mark.parametrize("of", [Wide, Odd])
def test_16_bit_results_are_the_float32_ones_rounded(i: int, of: type[Wide], tmp_path: Path) -> None:
    spec = SPECS[i]
    spec = of(**{name: getattr(spec, name) for name in Spec.__slots__} | {"seed": spec.seed + 4 * (i % 2)})
    assert_rounded(checker_of(spec, cluster_sm90a, True), tmp_path, (9, 17, 60, 130, 300))


@needs_compiler
def test_a_planted_bit_in_any_tensor_shows(tmp_path: Path) -> None:
    checker = checker_of(SPECS[9], Tile(cluster_sm90a, 16), True)
    assert set(checker.packed) == {"weight", "weight_scale", "zero_point", "bias"}
    checker.device = EmulatedBlocks(tmp_path, checker.sources((1,)))
    for role, x in checker.packed.items():
        planted = x.copy()
        planted.reshape(-1).view(np.uint8)[1] ^= 1 << 5
        found = replace(checker, packed=checker.packed | {role: planted}).check((1,))
        assert not found.ok, role


@needs_compiler
@pytest.mark.parametrize("part", range(3))
def test_every_candidate_is_one_that_the_kernel_has(part: int, tmp_path: Path) -> None:
    """Without making one: what the shape of a block asserts."""
    templates_for_cpu(tmp_path / "templates")
    lines = ['#include "cluster_sm90a.cuh"']
    for i, spec in enumerate(SPECS[part::3]):
        for n, experts in ((256, 0), (4096, 0), (2048, 2)):
            case = checker_of(wide(spec), cluster_sm90a, True)
            layer = replace(case.layer, n=n, shape_n=n, experts=experts)
            for task in ("indexed", "gathered", "contiguous") if experts else ("dense",):
                fitted = replace(cluster_sm90a.fitted(layer, case.compute), task=task)
                found = {t for rows in (1, 30, 64, 200, 300, 1000, 5000) for t in cluster_sm90a.candidates(layer, fitted, rows)}
                for j, t in enumerate(sorted(found, key=str)):
                    if task == "indexed" and t.cluster > 1:
                        continue
                    name = f"of{i}_{n}_{task}_{j}"
                    generated = kernel_source("cluster_sm90a", layer, fitted, t).generated
                    structs = "\n".join(line for line in generated.splitlines() if not line.startswith("#"))
                    lines.append(
                        f"namespace {name} {{\n{structs}\nstatic_assert(hc::ClusterShape<Layer, Compute, Tuning>::kTileM == {t.tile_m});\n}}"
                    )
    assert len(lines) > 400
    (tmp_path / "shapes.cpp").write_text("\n".join(lines))
    command = [str(COMPILER), "-std=c++17", "-fsyntax-only", "-Wno-unknown-pragmas", f"-I{tmp_path / 'templates'}", f"-I{HERE}"]
    done = subprocess.run([*command, str(tmp_path / "shapes.cpp")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


# --- That a fault shows

KERNEL, STAGES, RESULTS = "cluster_sm90a.cuh", "cluster_stages_sm90a.cuh", "results_sm90a.cuh"
HALVES, HALVES_GROUPS = wide(SPECS[6]), wide(SPECS[11])
OF_64 = wide(BLOCKS[2])  # a scale for each warpgroup
WORDS, INTEGERS, GROUPS, LISTS = wide(SPECS[0]), wide(SPECS[9]), wide(SPECS[11]), wide(SPECS[0], seed=3)
BROUGHT = "stages.wait_until_free(at, number + tile - begin);\n    if constexpr (S::kGathers) {"
WAIT = """          wait_for_products<1>();
          if constexpr (S::kOnTheWay && kBegins) add_scaled(Constant<1 - kSet>(), Constant<0>());
          if constexpr (kItem == 0 && S::kActGroups > 0) __syncwarp();  // every lane has read the scales of x of the stage that the first ones release
"""
RELEASE = "          if (kItem == 0) all_stages.template release<S::kCluster>(before, lane, free_there);\n"
EXPECTED, CLUSTER_BEGINS, CLUSTER_ENDS = (
    "Stage::kPanelBytes + kTileBytesOfW",
    "    cluster_arrive(), cluster_wait();\n  } else {\n",
    "!S::kJoined && !S::kGoesOn) cluster_wait();",
)
READY, HALVES_READY = "        ready();\n#pragma unroll\n", "          ready();\n          unrolled"
HALVES_WAIT = "          wait_for_products<0>();\n          add_scaled(Constant<0>(), product);\n"
HALVES_RELEASE = "      all_stages.template release<S::kCluster>(before, lane, free_there);\n    };"
SYNCED = "      if constexpr (S::kActGroups > 0) __syncwarp();\n      all_stages.template release<S::kCluster>(before, lane, free_there);\n    };\n"
# what is wrong -> a layer and a number of rows that show it, and one change
EARLY = "if constexpr (step.value == S::kStepsOfTurn) pass_turn(turns + !is_second, lane == 0);"
FAULTS = {
    "the first tile is not waited for": (WORDS, 16, Change(KERNEL, "    all_stages.wait(now);\n    make_operands", "    make_operands")),
    "a tile is not waited for": (WORDS, 16, Change(KERNEL, "            all_stages.wait(now);\n", "")),
    "a stage is released before its products": (WORDS, 16, Change(KERNEL, WAIT + RELEASE, RELEASE + WAIT)),
    "a stage is released before all lanes have read its scales": (
        GROUPS,
        16,
        Change(KERNEL, "kItem == 0 && S::kActGroups > 0) __syncwarp();", "false) __syncwarp();"),
    ),
    "a stage is released to its own block alone": (WORDS, 16, Change(STAGES, "if (lane < kCluster)", "if (lane == 0)")),
    "a stage is filled before it is free": (
        WORDS,
        16,
        Change(STAGES, "stages.wait_until_free(at, number + tile - begin);\n    const u32", "const u32"),
    ),
    "scales come before a stage is free": (GROUPS, 16, Change(STAGES, BROUGHT, "if constexpr (S::kGathers) {")),
    "scales are not waited for": (GROUPS, 16, Change(STAGES, "kFilling = 1 + kScaling", "kFilling = 1")),
    "rows of lists come before a stage is free": (LISTS, 16, Change(STAGES, BROUGHT, "if constexpr (S::kGathers) {")),
    "rows of lists are not waited for": (LISTS, 16, Change(STAGES, " + (kGathers ? kAssisting : 0)", "")),
    "rows of lists are not published to tensor cores": (
        LISTS,
        16,
        Change(STAGES, "if constexpr (kGathered) publish_to_tensor_cores();", ""),
    ),
    "rows of lists lie in other chunks": (
        LISTS,
        16,
        Change(STAGES, "chunk_at<S>(0, first + i * kAtOnce, chunk)", "u32((first + i * kAtOnce) * 128 + chunk * 16)"),
    ),
    "rows that are not there are read": (LISTS, 16, Change(STAGES, "row[i] >= 0 && column < end;", "column < end;")),
    "fewer bytes are expected": (WORDS, 16, Change(STAGES, EXPECTED, EXPECTED + " - 16")),
    "more bytes are expected": (WORDS, 16, Change(STAGES, EXPECTED, EXPECTED + " + 16")),
    "rows of x of the other block are not expected": (WORDS, 16, Change(STAGES, EXPECTED, "Stage::kPanelBytes / kCluster + kTileBytesOfW")),
    "groups from outside the tensor are copied": (
        WORDS,
        16,
        Change(STAGES, "(tile * S::kTileK / L::group_k)", "(tile * S::kTileK / L::group_k + 1)"),
    ),
    "a box goes to the place of the other block's": (WORDS, 16, Change(STAGES, "stage + rank * S::kBoxRows * 128", "stage")),
    "an operand is made in the place of one that is multiplied": (
        INTEGERS,
        16,
        Change(KERNEL, "kItem + 1>(a[1 - kOperands]", "kItem + 1>(a[kOperands]"),
    ),
    "products are waited for too late": (INTEGERS, 16, Change(KERNEL, "wait_for_products<1>();", "wait_for_products<2>();")),
    "the last products are not waited for": (
        WORDS,
        16,
        Change(
            KERNEL, "wait_for_products<0>();\n          if constexpr (S::kOnTheWay) add_scaled(Constant<kOfSecond>(), Constant<0>())", ""
        ),
    ),
    "registers are not made ready": (WORDS, 16, Change(KERNEL, READY, "")),
    "sums are stored over the last stage": (
        WORDS,
        16,
        Change(KERNEL, "sync_first<S::kMultiplying>();\n    if constexpr (S::kInCluster", "if constexpr (S::kInCluster"),
    ),
    "sums are read before all are stored": (
        WORDS,
        16,
        Change(RESULTS, "sync_first<kThreads>();\n  constexpr int kDivides", "constexpr int kDivides"),
    ),
    "the other block's barriers are not waited for": (WORDS, 16, Change(KERNEL, CLUSTER_BEGINS, "    __syncthreads();\n  } else {\n")),
    "a block leaves before the other one is through": (WORDS, 16, Change(KERNEL, CLUSTER_ENDS, "!S::kJoined) return;")),
    "factors are not waited for": (
        INTEGERS,
        16,
        Change(KERNEL, "if constexpr (S::Aside::kBrought && !S::kGoesOn) wait_for_phase(brought, 0);\n", ""),
    ),
    "rows are left out of a tile that is more than half full": (
        LISTS,
        300,
        Change(KERNEL, "aside.row_of_y(kept.rows, S::kTileM / 2) >= 0", "false"),
    ),
    "results are those of other rows of W": (
        WORDS,
        16,
        Change(KERNEL, "64 * here_n.block + 16 * here_n.row_tile, y);", "16 * here_n.row_tile, y);"),
    ),
    "halves: registers are not made ready": (HALVES, 300, Change(KERNEL, HALVES_READY, "        unrolled")),
    "halves: products are not waited for": (HALVES, 300, Change(KERNEL, HALVES_WAIT, HALVES_WAIT.splitlines(keepends=True)[1])),
    "halves: the next tile is not waited for": (
        HALVES,
        300,
        Change(KERNEL, "          if constexpr (kIsFirst) all_stages.wait(now);\n", ""),
    ),
    "halves: a stage is released before its last products": (
        HALVES,
        300,
        Change(KERNEL, HALVES_WAIT, HALVES_RELEASE.split("\n")[0] + HALVES_WAIT),
    ),
    "halves: operands are made in the place of those that are multiplied": (
        HALVES,
        300,
        Change(KERNEL, "? 2 - kOperands : 0;", "? kOperands : 0;"),
    ),
    "halves: the second half has the first one's rows": (HALVES, 300, Change(KERNEL, "kProduct * S::kRowsOfProduct", "0")),
    "halves: scales of activations are the first half's": (HALVES_GROUPS, 300, Change(KERNEL, "(kFirst + e) * 2", "e * 2")),
    "halves: a stage is released before all lanes have read its scales": (
        HALVES_GROUPS,
        300,
        Change(KERNEL, SYNCED, "".join(SYNCED.splitlines(keepends=True)[1:])),
    ),
    "halves: the next operands are made before all are multiplied": (
        HALVES_GROUPS,
        300,
        Change(KERNEL, "S::kOperandSets == 1 && kIsLast && tile", "S::kOperandSets == 1 && kIsFirst && tile"),
    ),
    "turns: none is passed by tiles of 256 rows": (
        HALVES,
        300,
        Change(KERNEL, EARLY, ""),
    ),
    "turns: none is passed by tiles of 128 rows": (
        OF_64,
        130,
        Change(KERNEL, "if constexpr (S::kStepsOfTurn == S::kSteps) pass_turn(turns + !is_second, lane == 0);", ""),
    ),
    "turns: passed by all lanes": (
        HALVES,
        300,
        Change(KERNEL, EARLY, EARLY.replace("lane == 0", "true")),
    ),
    "turns: passed to oneself": (
        HALVES,
        300,
        Change(KERNEL, EARLY, EARLY.replace("!is_second", "is_second")),
    ),
    "turns: both begin": (HALVES, 130, Change(KERNEL, "int before_turn = !is_second;", "int before_turn = 1;")),
    "turns: each waits for the first one": (HALVES, 130, Change(KERNEL, "          before_turn ^= 1;\n", "")),
    "blocks: scales of activations are those of other rows of W": (
        OF_64,
        130,
        Change(STAGES, "first_n + 64 * set, of_k", "first_n, of_k"),
    ),
    "more registers are asked for than there are": (WORDS, 16, Change(STAGES, "/ kMultiplying / 8 * 8;", "/ kMultiplying / 8 * 8 + 8;")),
}
ALWAYS = (
    "a tile is not waited for",
    "a stage is released before its products",
    "fewer bytes are expected",
    "an operand is made in the place of one that is multiplied",
)


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("what", [w if w in ALWAYS else pytest.param(w, marks=pytest.mark.slow) for w in FAULTS])
def test_a_fault_in_the_kernel_shows(what: str, tmp_path: Path) -> None:
    spec, rows, change = FAULTS[what]
    shown = seen(checker_of(spec, Tile(cluster_sm90a, rows), True), tmp_path, rows, change)
    print(what, "::", shown)
    assert shown is not None


JOINED_FAULTS = {
    "sums are sent before the other block is through": Change(
        KERNEL, "      cluster_wait();\n      Total* const sent", "      Total* const sent"
    ),
    "sums are read before they are sent": Change(KERNEL, "      cluster_arrive(), cluster_wait();\n      // In", "      // In"),
    "sums go to the block of other rows of W": Change(
        KERNEL, "to.value * S::kCluster + rank, sent", "to.value * S::kCluster + 1 - rank, sent"
    ),
    "a stage is released to another part": Change(KERNEL, "barriers_in(first_rank + lane % S::kCluster", "barriers_in(lane % S::kCluster"),
    "boxes go to another part": Change(STAGES, "S::kBoxRows, full, first_rank);", "S::kBoxRows, full, 0);"),
    "a block stores the rows of another": Change(KERNEL, "S::kJoined ? part_of_k * S::kSliceRows : 0;", "0;"),
}


@needs_compiler
@pytest.mark.usefixtures("few_stages")
@pytest.mark.parametrize("what", [w if i < 1 else pytest.param(w, marks=pytest.mark.slow) for i, w in enumerate(JOINED_FAULTS)])
def test_a_fault_in_parts_of_one_cluster_shows(what: str, tmp_path: Path) -> None:
    shown = seen(checker_of(wide(SPECS[9]), Joined(cluster_sm90a, 64, 2), True), tmp_path, 64, JOINED_FAULTS[what])
    print(what, "::", shown)
    assert shown is not None
