"""Candidates that a benchmark times beside the heuristics' choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import Case, Spec, selected
from needs import needs_nvrtc

from benchmarks import candidate_times
from benchmarks.gemm_beside import Point
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.families import Fixed, at_rows, choose, named
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.tuning import Tuning


def case_of(spec: Spec) -> Case:
    recipe = spec.recipe()
    assert recipe is not None
    return Case.of(spec, recipe, 90, True)


def test_candidates_begin_with_the_heuristics_choice_and_multiply_the_same_operands() -> None:
    for spec in [s for s in selected() if case_of(s).layer.experts][:40]:
        case = case_of(spec)
        ready = SimpleNamespace(layer=case.layer, compute=case.compute, choice=choose(case.layer, case.compute, 90))
        if ready.choice.family.NAME == "mma_any":
            continue
        found = candidate_times.candidates(ready, 1, "indexed", 90)
        fitted = replace(ready.choice.kernels.fitted(case.layer, case.compute), task="indexed")
        assert found[0].chosen == at_rows(ready.choice.kernels, 1).tuning(case.layer, fitted, 1)
        assert len(set(found)) == len(found) and {f.fitted(case.layer, case.compute).operand for f in found} == {fitted.operand}
        assert {f.chosen.parts for f in found} >= {1} and all(f.chosen.cluster == 1 for f in found)


@pytest.mark.parametrize(
    "form", [("uint4", 128, "", "16"), ("float4e2m1", 32, "float8e8m0", "16"), ("float4e2m1", 32, "float8e8m0", "fp8")]
)
@pytest.mark.parametrize("experts", [True, False])
def test_no_part_of_a_candidate_is_empty(form: tuple[str, int, str, str], experts: bool) -> None:
    """K of real experts, 2 and 4 parts of which would leave one empty, among them; the kernels of such parts do not compile."""
    weight, group, dtype, act = form
    parts = set()
    for k in (k for k in (640, 1280, 2048, 2304, 2880, 8192, 14336) if k % group == 0):
        spec = type("Sized", (Spec,), {"shape": (512, k)})(
            90, False, "BF16", weight, "group", group, 0, dtype, "none", "none", act, 0 if experts else 1
        )
        case = case_of(spec)
        ready = SimpleNamespace(layer=case.layer, compute=case.compute, choice=choose(case.layer, case.compute, 90))
        assert bool(case.layer.experts) == experts
        for rows in (1, 2, 16, 64) if experts else candidate_times.FEW:
            for task in ("indexed", "contiguous") if experts else ("dense",):
                for found in candidate_times.candidates(ready, rows, task, 90):
                    t = found.chosen
                    tiles = -(-case.layer.shape_k // t.tile_k)
                    assert (t.parts - 1) * -(-tiles // t.parts) < tiles, (k, rows, t)
                    parts.add(t.parts)
    assert parts >= ({1, 2, 3, 4} if experts else {1, 2, 4, 8}), parts


@needs_nvrtc
def test_a_candidate_that_does_not_compile_is_named_and_left_out(tmp_path: Path) -> None:
    def source(name: str, text: str) -> tuple[KernelSource, str]:
        return KernelSource(
            name=name, entry=f'#include "generated.cuh"\nextern "C" __global__ void {name}() {{}}', headers=(("generated.cuh", text),)
        ), "sm_90a"

    first, second = Fixed(named("mma_sm80"), Tuning(parts=2)), Fixed(named("mma_sm80"), Tuning(parts=4))
    right, wrong = source("right", ""), source("wrong", 'static_assert(1 > 2, "no part is empty");')
    some, other = Point("mxfp4_a16", 256, 512, 1, "grouped"), Point("mxfp4_a16", 256, 512, 16)
    every = [
        candidate_times.Offered(some, {first: right, second: wrong}, first),
        candidate_times.Offered(other, {first: wrong, second: right}, first),
    ]
    told: list[str] = []
    kept, left_out = candidate_times.compiled(KernelCache(tmp_path), every, 2, told.append)
    assert [list(o.found) for o in kept] == [[first], [second]] and [o.chosen for o in kept] == [first, first]
    assert (
        left_out == told[:-1]
        and len(left_out) == 2
        and all("LEFT OUT" in x and "no part is empty" in x and "\n" not in x for x in left_out)
    )
    assert "parts=4" in left_out[0] and "grouped" in left_out[0] and "the heuristics chose it" in left_out[1]
    assert told[-1] == "2 kernels, 1 do not compile"
