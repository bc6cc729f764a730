"""Casts of 16-bit scales: the table for large tensors gives what arithmetic gives, numbers and measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from humming_convert.checkpoint.tensors import DTYPES, TensorView
from humming_convert.standard import expr
from humming_convert.standard.expr import Cast, Context, Stored, cast_values
from humming_convert.standard.lossy import Meter


@pytest.mark.parametrize(("source", "target"), [("F16", "BF16"), ("BF16", "F16")])
def test_large_tensors_are_cast_and_measured_as_small_ones(source: str, target: str) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << 16, (300, 400), dtype=np.uint16)
    values = codes.view(DTYPES[source])
    view = TensorView(name="scales", file=Path("x"), dtype=source, shape=values.shape, offset=0, nbytes=values.nbytes)
    large, small = Meter(), Meter()
    got = Cast(Stored(view), target, "scale-cast", "weight_scale").evaluate(Context(read=lambda _: values, meter=large))
    want = cast_values(values, target)
    small.record("scale-cast", "weight_scale", values, want)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.view(np.uint16)[~np.isnan(values)], want.view(np.uint16)[~np.isnan(values)])
    assert large.found == small.found
    assert large.found["scale-cast", "weight_scale"].count > 10000
    assert values.size >= 1 << 16
    assert expr.cast_table(source, target)[0].size == 1 << 16
