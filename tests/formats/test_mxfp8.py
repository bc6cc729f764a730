"""MXFP8 folders: one E8M0 byte for 32 columns, however the bytes are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.standard.numbers import values
from tests.formats.folders import E4M3, E8M0, MODULE, Array, clean, e4m3_codes, factors, named, reading_of

MXFP8 = {"quant_method": "mxfp8", "ignored_layers": ["lm_head"]}
SCALE = (np.arange(128).reshape(32, 4) % 20 + 110).astype(np.uint8)


def meant(scale: Array) -> Array:
    return values("float8e4m3")[e4m3_codes()] * np.repeat(np.exp2(scale.astype(float) - 127), 32, 1)


@pytest.mark.parametrize("stored", [SCALE, SCALE.view(E8M0), SCALE.reshape(-1, 1)], ids=["bytes", "e8m0", "flat"])
def test_scales_are_bytes_for_32_columns(tmp_path: Path, stored: Array) -> None:
    got = clean(reading_of(tmp_path, MXFP8, named({"weight": e4m3_codes().view(E4M3), "weight_scale": stored})))
    np.testing.assert_array_equal(got.weight(), meant(SCALE))
    form, declared = got.layer.form, got.layer.declared
    assert (got.layer.family, form.scale.dtype, form.scale.k) == ("mxfp8", "float8e8m0", 32)
    assert declared is not None and (declared.mode, declared.group, declared.scale_dtype) == ("dynamic_group", 32, "float8e8m0")


def test_rows_of_scales_may_be_shared_by_blocks_of_rows(tmp_path: Path) -> None:
    got = clean(reading_of(tmp_path, MXFP8, named({"weight": e4m3_codes().view(E4M3), "weight_scale": SCALE[:4]})))
    np.testing.assert_array_equal(got.weight(), meant(np.repeat(SCALE[:4], 8, 0)))


def test_fewer_rows_of_scales_are_lost_rows_where_no_writer_shares_them(tmp_path: Path) -> None:
    tensors = named({"weight": e4m3_codes().view(E4M3), "weight_scale": SCALE[:16]})
    got = reading_of(tmp_path, {"quant_method": "modelopt", "quant_algo": "MXFP8"}, tensors)
    assert got.finding("tensor-shape").tensor == f"{MODULE}.weight_scale"


def test_a_nan_scale_passes_over_zero_codes_on_demand(tmp_path: Path) -> None:
    c, scale = e4m3_codes(), SCALE.copy()
    scale[2, 1], c[2, 32:64] = 255, 0x80
    tensors: dict[str, Any] = {"weight": c.view(E4M3), "weight_scale": scale}
    assert reading_of(tmp_path / "a", MXFP8, named(tensors)).codes_found == ["e8m0-nan"]
    clean(reading_of(tmp_path / "b", MXFP8, named(tensors), e8m0_nan="zero-group"))


@pytest.mark.parametrize("shape", [(32, 3), (4, 32), (31, 4)])
def test_other_shapes_are_refused(tmp_path: Path, shape: tuple[int, int]) -> None:
    got = reading_of(tmp_path, MXFP8, named({"weight": e4m3_codes().view(E4M3), "weight_scale": np.full(shape, 120, np.uint8)}))
    assert got.finding("tensor-shape").tensor == f"{MODULE}.weight_scale" and not got.layers


def test_bytes_on_the_grid_of_the_declared_blocks_are_block_scales(tmp_path: Path) -> None:
    q = {"quant_method": "fp8", "weight_block_size": [16, 128]}
    got = clean(reading_of(tmp_path, q, named({"weight": e4m3_codes().view(E4M3), "weight_scale": SCALE[:2, :1]})))
    assert (got.layer.family, got.layer.form.scale.kind, got.layer.form.scale.n) == ("fp8", "block", 16)


def test_a_bias_comes_along(tmp_path: Path) -> None:
    tensors = {"weight": e4m3_codes().view(E4M3), "weight_scale": SCALE, "bias": factors(32)}
    np.testing.assert_array_equal(clean(reading_of(tmp_path, MXFP8, named(tensors))).value("bias"), factors(32))
