"""Which kernel family multiplies a layer, why others do not, and that each family's kernels have the instructions that it is for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import Case, Spec, fast_specs, selected
from compile_table import inspect, tool
from narrow_layers import NARROW, Narrow
from needs import needs_nvrtc

from humming_convert.gemm.families import FAMILIES, FOR_FEWER, NEVER_RUN, PLAIN, ByRows, at_rows, choose, named
from humming_convert.gemm.multiplier import source_of, sources
from humming_convert.gemm.nvrtc import architecture, compile_cubin
from humming_convert.gemm.operands import ROUNDINGS

MEANT = {
    "cluster_sm90a": (90, ("HGMMA", "QGMMA", "IGMMA")),
    "mma_sm80": (89, ("HMMA", "IMMA", "QMMA")),
    "wgmma_sm90a": (90, ("HGMMA", "QGMMA", "IGMMA")),
    "mx_sm120a": (120, ("QMMA.SF", "OMMA.SF")),
    "umma_sm100a": (100, ("UTCHMMA",)),
}
COPIED = {"mma_sm80": "LDGSTS", "wgmma_sm90a": "LDGSTS", "mx_sm120a": "LDGSTS", "cluster_sm90a": "UTMALDG"}


def case_of(spec: Spec, sm: int, rounds: bool = False) -> Case:
    recipe = spec.recipe()
    assert recipe is not None, spec.name
    return Case.of(spec, recipe, sm, rounds)


@pytest.mark.parametrize("rounds", [False, True])
def test_every_layer_has_a_family_and_every_family_that_was_passed_over_has_a_reason(rounds: bool) -> None:
    taken = dict.fromkeys((f.NAME for f in FAMILIES), 0)
    for spec in selected():
        case = case_of(spec, 90, rounds)
        choice = choose(case.layer, case.compute, 90)
        taken[choice.family.NAME] += 1
        before = FAMILIES[: FAMILIES.index(choice.family)]
        assert [r.family for r in choice.rejected] == [f.NAME for f in before] and all(r.reason for r in choice.rejected)
    by_cluster = 181 if rounds else 131
    assert taken == {"cluster_sm90a": by_cluster, "wgmma_sm90a": 225 - by_cluster, "mma_sm80": 45, "mma_any": 270}


def test_few_rows_of_16_bits_go_to_mma_sync_and_those_of_8_bits_to_the_cluster_family_where_it_takes_them() -> None:
    kinds: dict[tuple[str, int, str], int] = {}
    for spec in selected():
        case = case_of(spec, 90, rounds=True)
        choice = choose(case.layer, case.compute, 90)
        if choice.family.NAME not in ("cluster_sm90a", "wgmma_sm90a"):
            assert choice.kernels is choice.family
            continue
        few, other = FOR_FEWER.get((choice.family.NAME, case.layer.act_bits), (0, choice.family))
        operand = choice.family.fitted(case.layer, case.compute).operand
        assert at_rows(choice.kernels, few + 1) is choice.family
        at_few = at_rows(choice.kernels, max(1, few))
        assert at_few is (choice.family if operand == "e4m3" else other)  # which mma.sync of sm_90 would unpack
        kind = choice.family.NAME, case.layer.act_bits, at_few.NAME
        kinds[kind] = kinds.get(kind, 0) + 1
    assert set(kinds) >= {
        ("cluster_sm90a", 16, "mma_sm80"),
        ("cluster_sm90a", 8, "cluster_sm90a"),
        ("wgmma_sm90a", 16, "mma_sm80"),
    }, kinds


class Large(Spec):
    """Two tiles of W, or so many that parts of K are few."""

    @property
    def shape(self) -> tuple[int, int]:
        return (1024, 3072) if self.seed % 2 else (4096, 6144)


@pytest.mark.parametrize("part", range(4))
def test_every_kernel_for_some_number_of_rows_is_one_of_those_that_are_shipped(part: int) -> None:
    """So that nothing is compiled where a folder ships its kernels: tiles are taken for more rows than experts have in the mean, parts of K for others."""
    for spec in selected()[part::4]:
        case = case_of(Large(**{name: getattr(spec, name) for name in Spec.__slots__}), 90, rounds=True)
        layer, compute = case.layer, case.compute
        kernels = choose(layer, compute, 90).kernels
        shipped = {s.generated for s in sources(layer, compute, kernels)}
        for task in ("indexed", "contiguous", "masked") if layer.experts else ("dense",):
            for rows in (*range(1, 20), 31, 33, 47, 49, 63, 65, 100, 129, 200, 257, 300, 511, 513, 700, 1025, 1500, 2049, 5000, 70000):
                assert source_of(kernels, layer, compute, rows, task).generated in shipped, (spec.name, task, rows)


def test_rows_in_lists_are_copied_by_each_block_for_itself() -> None:
    """A tensor map has no lists, and a cluster shares rows that its boxes bring."""
    found = 0
    for spec in selected():
        case = case_of(spec, 90)
        choice = choose(case.layer, case.compute, 90)
        if not choice.family.MAPPED:
            continue
        for task in ("indexed", "contiguous", "masked") if case.layer.experts else ("dense",):
            assert at_rows(choice.kernels, 1000, task) is choice.family
            layer = replace(case.layer, n=256, shape_n=256)
            assert choice.family.tuning(layer, replace(case.compute, task=task), 1000).cluster == (1 if task == "indexed" else 2)
        found += bool(case.layer.experts)
    assert found > 20


def test_only_kernels_that_serve_round_before_the_end() -> None:
    rounded = {False: set(), True: set()}
    for rounds in rounded:
        for spec in selected():
            case = case_of(spec, 90, rounds)
            kernels = choose(case.layer, case.compute, 90).kernels
            for rows in (1, 64, 1000):
                family = at_rows(kernels, rows, case.compute.task)
                rounded[rounds].add(family.rounding(case.layer, family.fitted(case.layer, case.compute)))
    assert rounded == {False: {"none"}, True: set(ROUNDINGS)}


def test_shipped_kernels_of_several_families_are_those_of_any_number_of_rows() -> None:
    case = case_of(fast_specs()["wgmma_sm90a"][0], 90, rounds=True)
    kernels = choose(case.layer, case.compute, 90).kernels
    assert isinstance(kernels, ByRows)
    every = {source_of(kernels, case.layer, case.compute, m) for m in range(1, 300)}
    shipped = set(sources(case.layer, case.compute, kernels))
    assert every <= shipped and {s.name for s in shipped} == {"mma_sm80", "cluster_sm90a"}
    assert {source_of(kernels, case.layer, case.compute, m) for m in (*range(1, 300), 512, 1024, 4096)} == shipped


@pytest.mark.parametrize("sm", [80, 86, 87, 89, 100, 120, 121])
def test_other_gpus_get_the_family_of_mma_sync_and_the_reason_why(sm: int) -> None:
    case = case_of(fast_specs()["wgmma_sm90a"][0], sm)
    choice = choose(case.layer, case.compute, sm)
    assert choice.family.NAME == "mma_sm80" and "sm_90a" in choice.rejected[0].reason


def test_gpus_without_cp_async_get_the_plain_family_and_the_reason_why() -> None:
    case = case_of(fast_specs()["wgmma_sm90a"][1], 75)
    choice = choose(case.layer, case.compute, 75)
    assert choice.family is PLAIN and "cp.async" in choice.rejected[2].reason


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
    assert {source_of(mine, case.layer, case.compute, m) for m in (*range(1, 300), 512, 1024, 4096)} == shipped


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
        case = case_of(spec, sm, rounds=True)
        found = inspect(compile_cubin(source_of(named(name), case.layer, case.compute, 1), architecture(sm)))
        if tool("nvdisasm") is not None:
            assert found["instructions"] and all(i.startswith(meant) for i in found["instructions"]), (spec.name, found)
            assert name not in COPIED or COPIED[name] in found["copies"], (spec.name, found)


@needs_nvrtc
@pytest.mark.parametrize("rows", [1000, pytest.param(64, marks=pytest.mark.slow)])
def test_the_cluster_family_waits_for_products_at_its_end_alone_and_keeps_its_sums_in_registers(rows: int) -> None:
    """The compiler waits after each product where it cannot tell which ones are under way, or has no registers for them: a quarter of the speed."""
    if tool("nvdisasm") is None or tool("cuobjdump") is None:
        pytest.skip("no disassembler")
    family = named("cluster_sm90a")
    for spec in fast_specs()["cluster_sm90a"]:
        case = case_of(spec, 90, rounds=True)
        found = inspect(compile_cubin(source_of(family, case.layer, case.compute, rows), architecture(90)))
        assert found["waits"] <= 2 and found["stack"] <= 96, (spec.name, found)


@needs_nvrtc
@pytest.mark.parametrize("act", ["16", *(pytest.param(act, marks=pytest.mark.slow) for act in ("fp8", "fp8:128"))])
def test_so_do_its_kernels_for_experts_and_rows_are_gathered_by_a_kernel_that_compiles(act: str) -> None:
    """The loop over K is there twice, for whole tiles and for halves; where sums are scaled on the way, by halves, it waits in each."""
    if tool("nvdisasm") is None or tool("cuobjdump") is None:
        pytest.skip("no disassembler")
    family = named("cluster_sm90a")
    spec = next(s for s in fast_specs()["cluster_sm90a"] if s.act == act)
    case = case_of(Large(**{name: getattr(spec, name) for name in Spec.__slots__} | {"seed": 3}), 90, rounds=True)
    assert case.layer.experts and family.why_not(case.layer, case.compute, 90) is None
    for rows, waits in ((2, 2), (32, 2), (1000, 4 if act == "16" else 9)):
        for task in ("indexed", "contiguous"):
            found = inspect(compile_cubin(source_of(family, case.layer, case.compute, rows, task), architecture(90)))
            assert found["waits"] <= waits and found["stack"] <= 96, (case.name, rows, task, found)
    gathers = [s for s in sources(case.layer, case.compute, family) if s.name == "gather_any"]
    assert gathers
    for source in gathers:
        found = inspect(compile_cubin(source, architecture(90)))
        assert found["stack"] == 0, found


def test_a_cluster_is_never_wider_than_the_tiles_of_w_that_share_rows_of_x() -> None:
    family, spec = named("cluster_sm90a"), fast_specs()["cluster_sm90a"][0]
    layer = case_of(spec, 90, rounds=True).layer
    compute = case_of(spec, 90, rounds=True).compute
    for tiles, cluster in ((1, 1), (2, 2), (3, 1), (64, 2)):
        tuning = family.tuning(replace(layer, shape_n=128 * tiles, n=128 * tiles), compute, 4096)
        assert tuning.cluster == cluster and tiles % tuning.cluster == 0
