"""The mma.sync family: what it takes and why not, what a tile asks of a GPU, and its own kernel on a CPU (emulated_block.py)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import Case, Spec, fast_specs, selected
from emulated_block import EmulatedBlocks
from emulated_checks import assert_right, assert_top_k_right, checker_of, needs_compiler
from narrow_layers import LONG, NARROW, Narrow

from humming_convert.gemm import mma_sm80, tasks
from humming_convert.gemm.check import random_rows
from humming_convert.gemm.families import Fixed
from humming_convert.gemm.multiplier import Multiplier, source_of, sources
from humming_convert.gemm.parts import ROOM, bucket, parts_of, sum_bytes

# bytes of shared memory that a block can have: CUDA C++ Programming Guide, technical specifications by compute capability
SHARED = {sm: kb * 1024 for sm, kb in {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}.items()}


def case_of(spec: Spec, sm: int = 90) -> Case:
    recipe = spec.recipe()
    assert recipe is not None, spec.name
    return Case.of(spec, recipe, sm)


def taken() -> list[Spec]:
    return [s for s in selected() if mma_sm80.why_not((c := case_of(s)).layer, c.compute, 90) is None]


# --- What it takes


def test_every_weight_type_beside_16_bit_activations_is_taken_from_sm_80_on() -> None:
    layers = [case_of(s, 80) for s in selected()]
    wide = [c for c in layers if c.layer.act_bits == 16 and not c.layer.ppu]
    assert len(wide) > 100
    for case in wide:
        assert mma_sm80.why_not(case.layer, case.compute, 80) is None, case.name


@pytest.mark.parametrize(
    ("sm", "act", "weight", "zero", "ppu", "reason"),
    [
        (75, "16", "uint4", "none", False, "cp.async"),
        (80, "16", "uint4", "none", True, "order of another GPU"),
        (86, "fp8", "uint4", "none", False, "sm_89"),
        (89, "fp8-e5m2", "uint1", "none", False, "E4M3, INT8 and INT4"),
        (89, "fp8", "uint5", "int", False, "e4m3 operands do not hold"),
        (89, "fp8", "uint4", "fp", False, "too short"),
        (100, "fp8", "float6e2m3", "none", False, "raw words"),
        (120, "mxfp4", "float4e2m1", "none", False, "E4M3, INT8 and INT4"),
    ],
)
def test_what_is_not_taken_has_its_reason(sm: int, act: str, weight: str, zero: str, ppu: bool, reason: str) -> None:
    cases = [
        case_of(s, sm)
        for s in selected()
        if (s.act, s.weight, s.zero, s.ppu) == (act, weight, zero, ppu) and (sm >= 80 or s.param == "F16")
    ]
    assert cases
    assert any(reason in str(mma_sm80.why_not(c.layer, c.compute, sm)) for c in cases)


def test_groups_that_end_inside_an_instruction_are_left_to_others() -> None:
    case = case_of(fast_specs()["mma_sm80"][0])
    assert "inside a step" in str(mma_sm80.why_not(case.layer, replace(case.compute, flush=8), 80))
    assert "inside a step" in str(mma_sm80.why_not(case.layer, replace(case.compute, flush=48), 80))
    assert "16 bytes" in str(mma_sm80.why_not(replace(case.layer, k=252), case.compute, 80))


# --- What a tile asks of a GPU


def test_every_tile_fits_into_the_shared_memory_of_every_gpu() -> None:
    for spec in taken():
        case = case_of(spec)
        for rows in mma_sm80.ROWS:
            asked = mma_sm80.tuning(case.layer, mma_sm80.fitted(case.layer, case.compute), rows)
            assert asked.shared <= min(SHARED.values()), (spec.name, rows, asked)
            assert asked.stages >= 2 and asked.tile_m >= min(rows, 64)


def test_every_number_of_rows_has_one_of_the_tiles() -> None:
    case = case_of(fast_specs()["mma_sm80"][0])
    compute = mma_sm80.fitted(case.layer, case.compute)
    assert [mma_sm80.tuning(case.layer, compute, m).tile_m for m in (1, 8, 9, 16, 17, 32, 33, 64, 65, 5000)] == [
        8,
        8,
        16,
        16,
        32,
        32,
        64,
        64,
        64,
        64,
    ]
    assert [mma_sm80.tile_n(mma_sm80.tuning(case.layer, compute, m)) for m in mma_sm80.ROWS] == [64, 64, 128, 128, 128, 128, 128, 128]


# --- The kernel itself


def assert_all_right(specs: list[Spec], folder: Path) -> int:
    """Every layer with one number of rows, which with those of unit vectors show every size of tile."""
    rows = ((1,), (12,), (33,), (20,))
    return assert_right([(checker_of(s, mma_sm80), rows[i % 4]) for i, s in enumerate(specs)], folder)


@needs_compiler
def test_the_kernel_gives_float64_products_and_every_single_weight(tmp_path: Path) -> None:
    assert assert_all_right(fast_specs()["mma_sm80"], tmp_path) == 11


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("part", range(9))
def test_the_kernel_gives_float64_products_and_every_single_weight_in_every_layer(part: int, tmp_path: Path) -> None:
    assert assert_all_right(taken()[part::9], tmp_path) > 25


class Long(Spec):
    """K of two tiles of the longest candidate."""

    shape = (128, 2048)


@needs_compiler
@pytest.mark.parametrize("rows", [3, pytest.param(16, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("weight", "act"),
    [("uint4", "16"), pytest.param("float4e2m1", "16", marks=pytest.mark.slow), pytest.param("uint8", "int8", marks=pytest.mark.slow)],
)
def test_every_candidate_gives_float64_products(weight: str, act: str, rows: int, tmp_path: Path) -> None:
    spec = next(s for s in fast_specs()["mma_sm80"] if (s.weight, s.act) == (weight, act))
    spec = Long(**{name: getattr(spec, name) for name in Spec.__slots__})
    case = case_of(spec)
    found = mma_sm80.candidates(case.layer, case.compute, rows)
    shapes = {(t.threads, t.tile_k): t for t in found}  # one of each; parts are like any others
    assert len(shapes) > 3 and max(t.threads for t in found) >= 256
    assert assert_right([(checker_of(spec, Fixed(mma_sm80, t)), (rows,)) for t in shapes.values()], tmp_path) == len(shapes)  # type: ignore[arg-type]


@needs_compiler
def test_a_planted_bit_in_any_tensor_shows(tmp_path: Path) -> None:
    spec = next(s for s in taken() if (s.weight, s.zero, s.act) == ("uint4", "int", "16"))
    checker = checker_of(spec, mma_sm80)
    assert set(checker.packed) == {"weight", "weight_scale", "zero_point", "bias"}
    checker.device = EmulatedBlocks(tmp_path, checker.sources((1,)))
    for role, x in checker.packed.items():
        planted = x.copy()
        planted.reshape(-1).view(np.uint8)[1] ^= 1 << 5
        found = replace(checker, packed=checker.packed | {role: planted}).check((1,))
        assert not found.ok, role


@needs_compiler
def test_contiguous_and_masked_rows_give_what_indexed_rows_give(tmp_path: Path) -> None:
    """Bit for bit: the same tile, so the same order of sums."""
    spec = next(s for s in taken() if case_of(s).layer.experts and s.act == "16")
    checker = checker_of(spec, mma_sm80)
    layer, experts, most = checker.layer, checker.layer.experts, 5
    wanted = [source_of(mma_sm80, layer, checker.compute, most, task) for task in tasks.GROUPED]  # type: ignore[arg-type]
    device = EmulatedBlocks(tmp_path, wanted)
    multiplier = Multiplier.of(device, layer, checker.compute, checker.packed, None, mma_sm80)  # type: ignore[arg-type]
    counts = np.asarray([most, 2][:experts])
    x = device.put(random_rows(most * experts, layer.k, layer.half, np.random.default_rng(1)))
    of_row = np.pad(tasks.contiguous(counts), (0, most * experts - counts.sum()), constant_values=tasks.NOBODY)
    for task, rows in ((tasks.Contiguous(counts), of_row), (tasks.Masked(counts), tasks.masked(counts, most))):
        have, want = multiplier(x, task), multiplier(x, rows)
        np.testing.assert_array_equal(have.view(np.uint32), want.view(np.uint32))
        assert not np.isnan(have[rows >= 0]).any() and np.isnan(have[rows < 0]).all()


@needs_compiler
@pytest.mark.parametrize("act", ["16", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_row_goes_to_several_experts(act: str, tmp_path: Path) -> None:
    spec = next(s for s in taken() if case_of(s).layer.experts and s.act == act)
    assert_top_k_right(checker_of(spec, mma_sm80), tmp_path, 9)


@needs_compiler
@pytest.mark.parametrize("spec", NARROW.values(), ids=NARROW)
def test_k_that_is_one_group_or_ends_inside_a_segment(spec: Narrow, tmp_path: Path) -> None:
    assert case_of(spec).layer.shape_k == spec.shape[1]
    assert assert_all_right([spec, replace(spec, seed=spec.seed + 4)], tmp_path) == 2


@needs_compiler
@pytest.mark.parametrize("spec", LONG.values(), ids=LONG)
def test_blocks_that_share_k_give_one_sum_the_same_each_time(spec: Narrow, tmp_path: Path) -> None:
    checker = checker_of(spec, mma_sm80)
    compute = mma_sm80.fitted(checker.layer, checker.compute)
    every = (1, 12, 20, 33)
    assert all(mma_sm80.tuning(checker.layer, compute, m).parts > 1 for m in every)
    checker.device = device = EmulatedBlocks(tmp_path, checker.sources(every))
    found = checker.check(every)
    assert found.ok and found.weights, [str(w) for w in found.wrong]
    multiplier = Multiplier.of(device, checker.layer, checker.compute, checker.packed, None, mma_sm80)  # type: ignore[arg-type]
    x = device.put(random_rows(12, checker.layer.k, checker.layer.half, np.random.default_rng(2)))
    first = multiplier(x).copy()
    device.late = True
    np.testing.assert_array_equal(first.view(np.uint32), multiplier(x).view(np.uint32))


def test_no_part_of_k_is_empty_and_sums_have_room() -> None:
    case = case_of(fast_specs()["mma_sm80"][0])
    for n, k, rows in itertools.product((64, 960, 4096, 28672, 151936), (64, 4096, 14336), (1, 9, 33, 300, 5000)):
        layer = replace(case.layer, n=n, shape_n=n, k=k, shape_k=k, experts=0)
        for tile_n, tile_k, tile_m in ((64, 256, 8), (256, 128, 64)):
            parts = parts_of(layer, tile_n, tile_k, tile_m, bucket(rows, tile_m), 2, 5000)
            tiles, across = -(-k // tile_k), -(-n // tile_n) * -(-rows // tile_m)
            assert 1 <= parts <= tiles and (parts - 1) * -(-tiles // parts) < tiles
            assert parts == 1 or across * parts * sum_bytes(tile_n, tile_m) <= ROOM


def test_the_tiles_of_a_layer_are_its_shipped_kernels() -> None:
    case = case_of(fast_specs()["mma_sm80"][0])
    every = set(sources(case.layer, case.compute, mma_sm80))  # type: ignore[arg-type]
    assert {source_of(mma_sm80, case.layer, case.compute, m) for m in (*range(1, 100), 2000)} == every  # type: ignore[arg-type]
