"""Scales placed by compiled passes against the numpy reference of the layouts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike

from humming_convert import passes
from humming_convert.layouts.scales import place_scale
from humming_convert.passes import scales

BYTES, HALVES = ml_dtypes.float8_e4m3fn, np.float16


def random_scales(n: int, g: int, dtype: DTypeLike) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    return np.random.default_rng(n + g).integers(0, 256, (n, g * size), dtype=np.uint8).view(dtype)


@pytest.mark.parametrize("turned", [False, True], ids=["groups in a row", "rows in a row"])
@pytest.mark.parametrize(
    ("place", "dtype", "ppu"),
    [("normal", BYTES, False), ("normal", BYTES, True), ("normal", HALVES, False), ("on_c", BYTES, False), ("on_c", HALVES, False)]
    + [(place, BYTES, False) for place in ("mx1", "mx4", "umma")],
)
@pytest.mark.parametrize(("n", "g"), [(256, 64), (384, 180), (192, 140)])
def test_scales_go_where_the_reference_puts_them(place, dtype, ppu, turned, n, g):
    scale = random_scales(n, g, dtype)
    if turned:
        scale = np.ascontiguousarray(scale.T).T
    made, want = passes.place_scale(scale, place, ppu), place_scale(scale, place, ppu)
    assert made.dtype == want.dtype and made.shape == want.shape
    assert made.tobytes() == want.tobytes()


def test_large_scales_do_not_take_the_slow_way(monkeypatch):
    monkeypatch.setattr(scales, "place_slowly", None)
    for place, dtype in (("normal", BYTES), ("normal", HALVES), ("on_c", BYTES), ("mx1", BYTES), ("mx4", BYTES), ("umma", BYTES)):
        scale = random_scales(512, 128, dtype)
        assert passes.place_scale(scale, place, False).nbytes == scale.nbytes
        assert passes.place_scale(np.ascontiguousarray(scale.T).T, place, False).nbytes == scale.nbytes


@pytest.mark.parametrize("place", ["normal", "mx1", "mx4", "umma"])
@pytest.mark.parametrize(("n", "g"), [(256, 64), (512, 192)])
def test_scales_written_past_the_caches_go_there_too(place, n, g):
    scale = random_scales(n, g, BYTES)
    shape = passes.ScaleShape(place=place, ppu=False, n=n, g=g, n_total=n, width=8, strides=(g, 1), past=True)
    plan = passes.scale_plan(shape)
    assert plan is not None and plan.route.past
    placed, result = passes.empty_lines(n * g), np.zeros(8, np.int64)
    listing = passes.Listing()
    for purpose in ("pack", "prove"):
        passes.add_scales(listing, purpose, shape, passes.At(2), passes.At(3), 4)
    linked = listing.done().linked(np.array([0, 0, *map(passes.address, (scale, placed, result))], np.int64))
    assert passes.make(linked.calls) == (len(linked.calls), 0)
    assert placed.tobytes() == place_scale(scale, place, False).tobytes()
    placed[-1] ^= 1
    done, _ = passes.make(linked.calls, len(linked.calls) // 2)
    assert done < len(linked.calls), "a changed scale is found"


def test_scales_that_would_begin_within_a_line_are_not_written_past_the_caches():
    shape = passes.ScaleShape(place="normal", ppu=False, n=64, g=64, n_total=96, width=8, strides=(64, 1), past=True)
    plan = passes.scale_plan(shape)
    assert plan is not None and not plan.route.past
