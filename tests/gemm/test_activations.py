"""Activations quantized in numpy as the kernel does it, and the lists of rows and experts."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Case, selected

from humming_convert.gemm import quantize_any, tasks
from humming_convert.gemm.check import as_float, half_bits, random_rows
from humming_convert.gemm.compute import Compute
from humming_convert.standard.numbers import values


def computes() -> list[tuple[str, Compute, str]]:
    """(activation, Compute, model dtype), one a kind."""
    found: dict[tuple[object, ...], tuple[str, Compute, str]] = {}
    for spec in selected():
        recipe = spec.recipe()
        assert recipe is not None
        case = Case.of(spec, recipe, 90)
        c = case.compute
        if c.quantizes:
            key = (recipe.config.a_dtype, c.act_mode, c.act_second, c.as_type, c.act_group, case.layer.half)
            found.setdefault(key, (recipe.config.a_dtype, c, case.layer.half))
    return list(found.values())


COMPUTES = computes()


@pytest.mark.parametrize(
    ("a_dtype", "c", "half"), COMPUTES, ids=[f"{a}-{c.act_mode}-{c.as_type}-{c.act_second}-{h}-{c.act_group}" for a, c, h in COMPUTES]
)
def test_quantized_activations_are_codes_and_fit_sixteen_bits(a_dtype: str, c: Compute, half: str) -> None:
    x = as_float(random_rows(9, 256, half, np.random.default_rng(3)), half)
    q, scale = quantize_any.in_numpy(x, c, 0.05)
    assert set(np.unique(q)) <= set(values(a_dtype)), "every number is one of the type"
    np.testing.assert_array_equal(as_float(half_bits(q, half), half), q)
    assert (scale > 0).all()
    wide = np.repeat(scale, c.act_group, axis=1)[:, :256] if c.act_group else scale
    spacing = np.diff(np.unique(values(a_dtype)[np.isfinite(values(a_dtype))])).max()
    inside = np.abs(x / wide) <= c.act_top
    assert (np.abs(quantize_any.meant(q, scale, c) - x)[inside] <= (spacing / 2 * wide * np.ones_like(x))[inside] * 1.0001).all()


@pytest.mark.parametrize(("a_dtype", "c", "half"), COMPUTES[::3])
def test_the_nearest_code_is_taken_ties_to_even(a_dtype: str, c: Compute, half: str) -> None:
    codes = np.unique(values(a_dtype)[np.isfinite(values(a_dtype))])
    codes = codes[np.abs(codes) <= c.act_top]
    between = (codes[1:] + codes[:-1]) / 2
    rounded = quantize_any.round_to_type(between.astype(np.float32), c)
    exact = between.astype(np.float32) == between
    assert (np.isin(rounded, codes)).all()
    assert (np.abs(rounded - between)[exact] == (np.diff(codes) / 2)[exact]).all()
    np.testing.assert_array_equal(quantize_any.round_to_type(codes.astype(np.float32), c), codes)
    last = np.searchsorted(np.unique(np.abs(codes)), np.abs(rounded))
    assert (last[exact] % 2 == 0).all()


def test_a_tile_of_rows_has_one_expert_and_every_row_is_in_one_tile() -> None:
    of_row = np.array([2, 0, 2, 2, -1, 0, 2])
    rows, experts = tasks.indexed(of_row, 2)
    assert experts.tolist() == [0, 2, 2]
    assert rows.reshape(3, 2).tolist() == [[1, 5], [0, 2], [3, 6]]
    rows, experts = tasks.indexed(np.array([1, 1, 1]), 2)
    assert (rows.tolist(), experts.tolist()) == ([0, 1, 2, -1], [1, 1])


def test_grouped_rows_are_lists_of_experts() -> None:
    assert tasks.contiguous([2, 0, 3]).tolist() == [0, 0, 2, 2, 2]
    assert tasks.masked([2, 0, 1], 3).tolist() == [0, 0, -1, -1, -1, -1, 2, -1, -1]
    rows, experts = tasks.indexed(tasks.masked([2, 0, 1], 3), 2)
    assert (rows.tolist(), experts.tolist()) == ([0, 1, 6, -1], [0, 2])
    rows, experts = tasks.indexed(tasks.masked([0, 0], 4), 16)
    assert rows.size == experts.size == 0
