"""Candidates that a benchmark times beside the heuristics' choice."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from cases import Case, Spec, selected

from benchmarks import candidate_times
from humming_convert.gemm.families import at_rows, choose


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
        assert {f.chosen.parts for f in found} >= {1, 2, 4} and all(f.chosen.cluster == 1 for f in found)
