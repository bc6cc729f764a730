"""What tests of kernels on a CPU share: layers of some size, the ways in which copies, products and threads take turns, checks against float64.

In: a Spec, a family.  Out: assertions that name the layer and the way.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import Case, Spec
from emulated_block import ORDERS, Change, EmulatedBlocks, EmulationFault, aligned
from emulation import COMPILER

from humming_convert.gemm import tasks
from humming_convert.gemm.check import Checker, LayerCheck, half_bits, random_rows
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.multiplier import Multiplier, source_of
from humming_convert.gemm.reference import Reference
from humming_convert.gemm.tuning import Tuning

needs_compiler = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C++ compiler that emulated_threads.hpp is for")
WAYS = tuple(itertools.product((False, True), (False, True), ORDERS))
"""late copies, late products, who goes on first"""
SOME_WAYS = WAYS[::6]  # early and late, and four orders


@dataclass(frozen=True)
class Tile:
    """A family with the tile of `rows` rows, whatever number there is: one kernel for all that a check multiplies."""

    family: Any
    rows: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)

    def tuning(self, layer: Layer, compute: Compute, rows: int) -> Tuning:
        found: Tuning = self.family.tuning(layer, compute, self.rows)
        return found


class Wide(Spec):
    """Two tiles of W, which make a cluster; more tiles of K than there are stages."""

    @property
    def shape(self) -> tuple[int, int]:
        return 256, 1024 if self.act != "16" else 512


def wide(spec: Spec, **changed: Any) -> Wide:
    """The same layer, larger."""
    return Wide(**{name: getattr(spec, name) for name in Spec.__slots__} | changed)


def checker_of(spec: Spec, family: Any, rounds: bool = False) -> Checker:
    packed = spec.packed()
    case = Case.of(spec, packed.recipe, 90, rounds)
    tensors = {role: np.ascontiguousarray(x) for role, x in packed.tensors.items()}
    reference = Reference(packed.recipe.config.as_dict(), packed.recipe.pair.target, packed.recipe.environment, tensors)
    return Checker(None, case.layer, case.compute, tensors, reference.weights, reference.bias, 0.25, family=family)  # type: ignore[arg-type]


def go(device: EmulatedBlocks, way: tuple[bool, bool, str]) -> None:
    device.late, device.late_products, device.order = way


def assert_right(checkers: Iterable[tuple[Checker, tuple[int, ...]]], folder: Path, ways: int = 1) -> int:
    """Products of some numbers of rows and every weight by unit vectors, against float64, in `ways` of WAYS, by turns."""
    checkers = list(checkers)
    device = EmulatedBlocks(folder, [source for checker, rows in checkers for source in checker.sources(rows)])
    turns = itertools.cycle(WAYS[3 * i % len(WAYS)] for i in range(len(WAYS)))
    for checker, rows in checkers:
        checker.device = device
        for way in itertools.islice(turns, ways):
            go(device, way)
            found = checker.check(rows)
            assert found.ok and found.weights, (checker.layer, way, [str(w) for w in found.wrong])
    return len(checkers)


def assert_groups_right(checker: Checker, folder: Path, each: int) -> None:
    """Rows of experts that come contiguous or masked, against float64; other rows are not touched. The last expert has one row less than room."""
    layer, experts = checker.layer, checker.layer.experts
    assert experts
    device = EmulatedBlocks(
        folder, [source_of(checker.family, layer, checker.compute, each, task.name) for task in (tasks.Contiguous, tasks.Masked)]
    )
    checker.device = device
    given = checker.given if checker.compute.wants_given_scale else None
    multiplier = Multiplier.of(device, layer, checker.compute, checker.packed, given, checker.family)
    counts = np.full(experts, each, np.int32)
    counts[-1] -= 1
    bits = random_rows(each * experts, layer.k, layer.half, np.random.default_rng(3))
    q, scale = multiplier.quantize(device.put(bits))
    meant = checker._meant(LayerCheck(), bits, q, scale)
    contiguous = np.pad(tasks.contiguous(counts), (0, each * experts - counts.sum()), constant_values=tasks.NOBODY)
    of_rows = ((tasks.Contiguous(counts), contiguous), (tasks.Masked(counts), tasks.masked(counts, each)))
    for (task, of_row), way in itertools.product(of_rows, SOME_WAYS):
        go(device, way)
        have = multiplier.multiply(q, scale, task).astype(np.float64)
        for e in range(experts):
            mine, w, bias = of_row == e, checker.weights(e), checker.bias(e)
            size = np.abs(meant[mine]) @ np.abs(w).T + np.abs(bias)
            off = np.abs(have[mine] - (meant[mine] @ w.T + bias))
            assert mine.any() and (off <= checker.sum_tolerance(each * experts) * size).all(), (task.name, e, way)
        assert np.isnan(have[of_row < 0]).all(), (task.name, way)


def assert_rounded(checker: Checker, folder: Path, rows: Iterable[int]) -> None:
    """16-bit results are the float32 ones, rounded to nearest even, bit for bit."""
    layer, rows = checker.layer, tuple(rows)
    both = [replace(checker.compute, output=output) for output in ("f32", layer.half)]
    experts, of_task = max(1, layer.experts), "indexed" if layer.experts else "dense"
    kernels = [source_of(checker.family, layer, compute, -(-m // experts), of_task) for compute in both for m in rows]
    device = EmulatedBlocks(folder, kernels)
    rng = np.random.default_rng(11)
    given = checker.given if checker.compute.wants_given_scale else None
    floats, halfs = (Multiplier.of(device, layer, compute, checker.packed, given, checker.family) for compute in both)
    for m, way in zip(rows, itertools.cycle(SOME_WAYS)):
        go(device, way)
        task = rng.integers(0, layer.experts, m) if layer.experts else None
        q, scale = floats.quantize(device.put(random_rows(m, layer.k, layer.half, rng)))
        want = half_bits(np.asarray(floats.multiply(q, scale, task), np.float64), layer.half)
        np.testing.assert_array_equal(halfs.multiply(q, scale, task), want, err_msg=f"{m} rows, {way}")


def assert_top_k_right(checker: Checker, folder: Path, m: int, top_k: int = 3) -> None:
    """Each row of x for several experts gives what as many copies of it give, bit for bit. Some rows of y have no expert."""
    layer, experts = checker.layer, checker.layer.experts
    device = EmulatedBlocks(folder, [source_of(checker.family, layer, checker.compute, -(-m * top_k // experts), tasks.Indexed.name)])
    given = checker.given if checker.compute.wants_given_scale else None
    multiplier = Multiplier.of(device, layer, checker.compute, checker.packed, given, checker.family)
    rng = np.random.default_rng(5)
    q, scale = multiplier.quantize(device.put(random_rows(m, layer.k, layer.half, rng)))
    of_row = rng.integers(-1, experts, m * top_k).astype(np.int32)
    copied = aligned(np.repeat(q, top_k, axis=0)), None if scale is None else aligned(np.repeat(scale, top_k, axis=0))
    for way in SOME_WAYS:
        go(device, way)
        have, want = multiplier.multiply(q, scale, tasks.Indexed(of_row, top_k)), multiplier.multiply(*copied, tasks.Indexed(of_row))
        np.testing.assert_array_equal(have.view(np.uint32), want.view(np.uint32))
        assert (np.isnan(have).all(axis=1) == (of_row < 0)).all() and (of_row < 0).any() and (of_row >= 0).any()


def seen(checker: Checker, folder: Path, rows: int, change: Change) -> str | None:
    """What shows of a kernel from a changed template, in the first of WAYS that shows it: wrong numbers, or what it did that it may not do."""
    checker.device = device = EmulatedBlocks(folder, checker.sources((rows,)), (change,))
    for way in WAYS:
        go(device, way)
        try:
            found = checker.check((rows,))
        except EmulationFault as fault:
            return str(fault)
        if not found.ok:
            return str(found.wrong[0])
    return None
