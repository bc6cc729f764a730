"""Whole words turned into operands give the numbers that codes read one by one give, for every layer that a fast family takes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cases import Case, Spec, fast_specs, selected
from emulation import COMPILER
from operand_emulation import OperandEmulation, fused_numbers

from humming_convert.gemm import mma_sm80, mx_sm120a, wgmma_sm90a
from humming_convert.gemm.operands import operand_of

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
FAMILIES = (wgmma_sm90a, mma_sm80)


def taken() -> list[tuple[Spec, Case]]:
    """Layers of every target whose bytes one of the families reads."""
    out = []
    for spec in selected():
        recipe = spec.recipe()
        assert recipe is not None
        case = Case.of(spec, recipe, 90)
        if any(f.why_not(case.layer, case.compute, 90) is None for f in FAMILIES):
            out.append((spec, case))
    return out


def assert_equal_numbers(cases: list[tuple[Spec, Case]], folder: Path) -> int:
    wanted = [(case.layer, str(operand_of(case.layer, case.compute))) for _, case in cases]
    emulate = OperandEmulation(wanted, folder)
    for (spec, _), (layer, operand) in zip(cases, wanted, strict=True):
        one_by_one, whole = emulate(layer, operand, spec.packed().tensors)
        np.testing.assert_array_equal(whole, one_by_one, err_msg=spec.name)
    return len(cases)


@needs_compiler
def test_whole_words_give_the_numbers_of_single_codes(tmp_path: Path) -> None:
    assert assert_equal_numbers(taken()[::8], tmp_path) > 30


@needs_compiler
@pytest.mark.slow
def test_whole_words_give_the_numbers_of_single_codes_in_every_layer(tmp_path: Path) -> None:
    assert assert_equal_numbers(taken(), tmp_path) > 250


@needs_compiler
def test_fused_scales_are_powers_of_two_and_bytes_that_none_of_them_is_show_in_every_number(tmp_path: Path) -> None:
    """Of a group whose codes are all 0 and 0.5 a damaged scale showed only if its low five bits did (found on an H200: 1 became 129)."""
    magnitudes, legal = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6)), range(1, 13)  # layouts.md S5: one more than the eleven binades of E4M3
    found = fused_numbers(tmp_path)
    for b in legal:
        np.testing.assert_array_equal(found[b].view(ml_dtypes.float8_e4m3fn).astype(np.float64), magnitudes * 2.0 ** (b - 6))
    for b in range(256):
        others = [x for x in legal if x != b]
        assert (found[b, 1:] != found[others, 1:]).all(), b


def block_scaled() -> list[tuple[Spec, Case]]:
    """Layers of sm_120 that the block-scaled family takes: codes of every type that its instructions have."""
    out = []
    for spec in fast_specs()["mx_sm120a"]:
        recipe = spec.recipe()
        assert recipe is not None
        case = Case.of(spec, recipe, 120)
        assert mx_sm120a.why_not(case.layer, case.compute, 120) is None, spec.name
        out.append((spec, case))
    return out


@needs_compiler
def test_registers_of_block_scaled_layers_hold_the_codes_of_their_rows_and_columns(tmp_path: Path) -> None:
    cases = block_scaled()
    emulate = OperandEmulation([(case.layer, "e2m1") for _, case in cases], tmp_path)
    for spec, case in cases:
        one_by_one, whole = emulate(case.layer, "e2m1", spec.packed().tensors)
        np.testing.assert_array_equal(whole, one_by_one, err_msg=spec.name)
