"""Integers one a byte: compressed-tensors int-quantized and naive files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.folders import MODULE, Array, clean, codes, factors, named, reading_of
from tests.formats.test_compressed_tensors import TOKEN, config


def int8(bits: int = 8, scale: Array | None = None, **more: Any) -> dict[str, Any]:
    weight = (codes(bits).astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
    return {"weight": weight, "weight_scale": factors(32, 1) if scale is None else scale, **more}


CHANNEL = {"num_bits": 8, "strategy": "channel", "group_size": None}


@pytest.mark.parametrize("fmt", ["int-quantized", "naive-quantized"])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_become_offset_binary(tmp_path: Path, fmt: str, bits: int) -> None:
    got = clean(reading_of(tmp_path, config(fmt, inputs=TOKEN, **{**CHANNEL, "num_bits": bits}), named(int8(bits))))
    np.testing.assert_array_equal(got.codes(), codes(bits))
    assert (got.layer.family, got.layer.form.number.name, got.layer.form.scale.kind) == ("compressed-tensors", f"uint{bits}", "channel")
    assert got.layer.declared is not None and got.layer.declared.number.name == "int8"
    np.testing.assert_array_equal(got.weight(), int8(bits)["weight"].astype(float) * factors(32, 1).astype(float))


@pytest.mark.parametrize(("scale", "kind"), [(factors(1), "tensor"), (factors(32), "channel"), (factors(32, 4), "group")])
def test_scales_are_for_the_matrix_a_row_or_a_group(tmp_path: Path, scale: Array, kind: str) -> None:
    strategy = {"tensor": {"strategy": "tensor", "group_size": None}, "channel": {}, "group": {"strategy": "group", "group_size": 32}}[kind]
    got = clean(reading_of(tmp_path, config("int-quantized", **{**CHANNEL, **strategy}), named(int8(scale=scale))))
    assert got.layer.form.scale.kind == kind
    full = np.repeat(scale.reshape(-1, scale.shape[1] if scale.ndim == 2 else 1), 128 // (scale.shape[1] if scale.ndim == 2 else 1), 1)
    np.testing.assert_array_equal(got.weight(), int8()["weight"].astype(float) * full.astype(float))


@pytest.mark.parametrize("scale", [factors(32, 1), factors(1)], ids=["row", "matrix"])
def test_signed_zero_points_are_kept(tmp_path: Path, scale: Array) -> None:
    zeros = np.arange(-16, 16, dtype=np.int8)[:, None] if scale.ndim == 2 else np.int8([5])
    strategy = {} if scale.ndim == 2 else {"strategy": "tensor", "group_size": None}
    q = config("int-quantized", **{**CHANNEL, **strategy, "symmetric": False})
    got = clean(reading_of(tmp_path, q, named(int8(scale=scale, weight_zero_point=zeros))))
    assert got.layer.form.zero_point == "int"
    np.testing.assert_array_equal(got.weight(), (int8()["weight"].astype(float) - zeros) * scale.astype(float))


def test_a_folder_without_a_config_is_read_by_its_tensors(tmp_path: Path) -> None:
    got = reading_of(tmp_path, None, named(int8()))
    np.testing.assert_array_equal(got.codes(), codes(8))


def test_rule_int8_method(tmp_path: Path) -> None:
    got = reading_of(tmp_path, {"quant_method": "fp8"}, named(int8()))
    assert got.finding("int8-method").tensor == f"{MODULE}.weight" and not got.layers


def test_a_wider_number_than_a_byte_is_refused(tmp_path: Path) -> None:
    got = reading_of(tmp_path, config("int-quantized", **{**CHANNEL, "num_bits": 12}), named(int8()))
    assert got.finding("code-range").layer == MODULE


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    got = reading_of(tmp_path, config("int-quantized", **CHANNEL), named(int8(scale=factors(16, 1))))
    assert got.finding("tensor-shape").tensor == f"{MODULE}.weight_scale"
