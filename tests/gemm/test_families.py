"""Which kernel family multiplies a layer, why others do not, and that each family's kernels have the instructions that it is for."""

from __future__ import annotations

import pytest
from cases import Case, Spec, fast_specs, selected
from compile_table import inspect, tool
from narrow_layers import NARROW, Narrow
from needs import needs_nvrtc

from humming_convert.gemm.families import FAMILIES, FEW, NEVER_RUN, PLAIN, ByRows, at_rows, choose, named
from humming_convert.gemm.multiplier import source_of, sources
from humming_convert.gemm.nvrtc import architecture, compile_cubin

MEANT = {
    "mma_sm80": (89, ("HMMA", "IMMA", "QMMA")),
    "wgmma_sm90a": (90, ("HGMMA", "QGMMA", "IGMMA")),
    "mx_sm120a": (120, ("QMMA.SF", "OMMA.SF")),
    "umma_sm100a": (100, ("UTCHMMA",)),
}
COPIED = ("mma_sm80", "wgmma_sm90a", "mx_sm120a")  # by cp.async


def case_of(spec: Spec, sm: int) -> Case:
    recipe = spec.recipe()
    assert recipe is not None, spec.name
    return Case.of(spec, recipe, sm)


def test_every_layer_has_a_family_and_every_family_that_was_passed_over_has_a_reason() -> None:
    taken = dict.fromkeys((f.NAME for f in FAMILIES), 0)
    for spec in selected():
        case = case_of(spec, 90)
        choice = choose(case.layer, case.compute, 90)
        taken[choice.family.NAME] += 1
        before = FAMILIES[: FAMILIES.index(choice.family)]
        assert [r.family for r in choice.rejected] == [f.NAME for f in before] and all(r.reason for r in choice.rejected)
    assert taken == {"wgmma_sm90a": 221, "mma_sm80": 45, "mma_any": 270}


def test_few_rows_beside_hopper_s_own_instruction_go_to_mma_sync_unless_it_would_unpack_every_operand() -> None:
    kinds = {"none": 0, "mma_sm80": 0}
    for spec in selected():
        case = case_of(spec, 90)
        choice = choose(case.layer, case.compute, 90)
        if choice.family.NAME != "wgmma_sm90a":
            assert choice.kernels is choice.family
            continue
        operand = choice.family.fitted(case.layer, case.compute).operand
        few, many = at_rows(choice.kernels, FEW), at_rows(choice.kernels, FEW + 1)
        assert many is choice.family and ("wgmma_sm90a" if operand == "e4m3" else "mma_sm80") == few.NAME
        kinds["none" if few is many else few.NAME] += 1
    assert min(kinds.values()) > 50


def test_shipped_kernels_of_two_families_are_those_of_any_number_of_rows() -> None:
    case = case_of(fast_specs()["wgmma_sm90a"][0], 90)
    kernels = choose(case.layer, case.compute, 90).kernels
    assert isinstance(kernels, ByRows)
    every = {source_of(kernels, case.layer, case.compute, m) for m in range(1, 300)}
    assert every == set(sources(case.layer, case.compute, kernels)) and {s.name for s in every} == {"mma_sm80", "wgmma_sm90a"}


@pytest.mark.parametrize("sm", [80, 86, 87, 89, 100, 120, 121])
def test_other_gpus_get_the_family_of_mma_sync_and_the_reason_why(sm: int) -> None:
    case = case_of(fast_specs()["wgmma_sm90a"][0], sm)
    choice = choose(case.layer, case.compute, sm)
    assert choice.family.NAME == "mma_sm80" and "sm_90a" in choice.rejected[0].reason


def test_gpus_without_cp_async_get_the_plain_family_and_the_reason_why() -> None:
    case = case_of(fast_specs()["wgmma_sm90a"][1], 75)
    choice = choose(case.layer, case.compute, 75)
    assert choice.family is PLAIN and "cp.async" in choice.rejected[1].reason


def test_a_family_that_was_never_run_is_never_chosen() -> None:
    for family in NEVER_RUN:
        assert family not in FAMILIES
        sm, _ = MEANT[family.NAME]
        for spec in fast_specs()[family.NAME]:
            case = case_of(spec, sm)
            assert family.why_not(case.layer, case.compute, sm) is None, spec.name
            assert choose(case.layer, case.compute, sm).family not in NEVER_RUN


@pytest.mark.parametrize("family", FAMILIES, ids=[f.NAME for f in FAMILIES])
def test_the_shipped_kernels_are_those_of_any_number_of_rows(family: object) -> None:
    case = case_of(fast_specs()["wgmma_sm90a"][0], 90)
    mine = named(family.NAME)  # type: ignore[attr-defined]
    shipped = set(sources(case.layer, case.compute, mine))
    assert {source_of(mine, case.layer, case.compute, m) for m in range(1, 300)} == shipped


@needs_nvrtc
@pytest.mark.parametrize("name", ["wgmma_sm90a", "mma_sm80"])
@pytest.mark.parametrize("spec", NARROW.values(), ids=NARROW)
def test_layers_of_few_columns_compile(spec: Narrow, name: str) -> None:
    case, family = case_of(spec, 90), named(name)
    assert family.why_not(case.layer, case.compute, 90) is None
    for rows in (1, 64):
        assert compile_cubin(source_of(family, case.layer, case.compute, rows), architecture(90))[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.parametrize("name", MEANT)
def test_a_kernel_of_each_fast_family_has_the_instructions_that_it_is_for(name: str) -> None:
    sm, meant = MEANT[name]
    every = fast_specs()[name]
    for spec in {wanted: next(s for s in every if s.act == wanted) for wanted in {s.act for s in every}}.values():
        case = case_of(spec, sm)
        found = inspect(compile_cubin(source_of(named(name), case.layer, case.compute, 1), architecture(sm)))
        if tool("nvdisasm") is not None:
            assert found["instructions"] and all(i.startswith(meant) for i in found["instructions"]), (spec.name, found)
            assert name not in COPIED or "LDGSTS" in found["copies"], (spec.name, found)
