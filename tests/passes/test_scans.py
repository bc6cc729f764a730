"""Scans of stored codes and scales against the obvious."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from humming_convert import passes
from tests.passes.cases import stored, unaligned

KINDS = [("rows", b) for b in (2, 3, 4, 8)] + [("gptq", b) for b in (2, 3, 4, 6, 8)] + [("awq", 4), ("signed_rows", 8), ("signed_rows", 4)]


@pytest.mark.parametrize(("packing", "bits"), KINDS)
@pytest.mark.parametrize(("n", "k"), [(64, 512), (40, 200), (8, 32)])
def test_one_zero_code_anywhere_is_found(packing, bits, n, k):
    if packing == "rows" and k * bits % 32:
        k = k // 32 * 32
    rng = np.random.default_rng(n)
    codes = rng.integers(1, 1 << bits, (n, k)).astype(np.uint8)
    assert not passes.any_zero_code(packing, bits, unaligned(stored(codes, packing, bits)), n, k)
    for i, j in [(0, 0), (n - 1, k - 1), (n - 1, 0), (0, k - 1), (int(rng.integers(n)), int(rng.integers(k)))]:
        one = codes.copy()
        one[i, j] = 0
        assert passes.any_zero_code(packing, bits, unaligned(stored(one, packing, bits)), n, k)


def test_unused_bits_behind_the_last_code_are_no_code():
    codes = np.full((8, 34), 5, np.uint8)
    assert not passes.any_zero_code("gptq", 4, stored(codes, "gptq", 4), 8, 34)
    assert not passes.any_zero_code("rows", 4, stored(codes, "rows", 4), 8, 34)


@pytest.mark.parametrize("group", [16, 32, 64])
def test_a_group_of_zeros_and_minus_zeros_has_no_magnitude(group):
    rng = np.random.default_rng(group)
    codes = rng.choice(np.array([0, 8, 3], np.uint8), (16, 256), p=(0.5, 0.49, 0.01))
    want = (codes.reshape(16, -1, group) & 7).any(-1)
    assert not want.all() and want.any()
    assert (passes.group_has_magnitude(unaligned(stored(codes, "rows", 4)), 16, 256, group) == want).all()


def test_largest_and_smallest_scale_of_each_row():
    scales = np.random.default_rng(0).integers(0, 255, (5, 90)).astype(np.uint8)
    top, bottom = passes.group_top_and_bottom(scales.view(ml_dtypes.float8_e8m0fnu))
    assert top.tolist() == scales.max(1).tolist() and bottom.tolist() == scales.min(1).tolist()


@pytest.mark.parametrize("size", [5, 4096, 1_000_003])
def test_every_nan_is_counted(size):
    raw = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    raw[-1] = 0xFF
    values = unaligned(raw).view(ml_dtypes.float8_e4m3fn)
    assert passes.count_nan_e4m3(values) == int(np.isnan(values.astype(np.float32)).sum())
