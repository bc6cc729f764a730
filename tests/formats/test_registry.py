"""Kinds of modules by their tensors, and what a folder as a whole is refused for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.formats.refused import REFUSED
from humming_convert.formats.registry import KINDS, METHOD_KINDS, METHODS, READERS, load
from tests.formats.folders import E4M3, MODULE, clean, codes, e4m3_codes, factors, named, pairs, reading_of
from tests.formats.test_compressed_tensors import config, packed

GOOD = named(packed(codes(4), factors(32, 4)))


def test_every_kind_has_a_reader_and_every_method_a_hook() -> None:
    assert {kind for kind, _ in KINDS} == set(READERS)
    for reader in [*READERS.values(), *METHODS.values()]:
        assert callable(load(reader))
    assert set(METHOD_KINDS) <= set(METHODS) and not set(METHODS) & set(REFUSED)
    assert {k for kinds in METHOD_KINDS.values() for k in kinds} <= set(READERS)


@pytest.mark.parametrize(
    "module", ["assemble", "checks", "ct_config", "compressed_tensors", "mxfp4", "nvfp4", "fp8", "mimo", "int8", "humming", "registry"]
)
def test_every_rule_has_a_test_of_its_name(module: str) -> None:
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    for rule in import_module(f"humming_convert.formats.{module}").RULES:
        assert f"def test_rule_{rule.code.replace('-', '_')}(" in text, rule.code


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_rule_method_refused(tmp_path: Path, method: str) -> None:
    got = reading_of(tmp_path, {"quant_method": method}, GOOD)
    assert got.codes_found == ["method-refused"] and method in got.finding("method-refused").message


def test_rule_method_unknown(tmp_path: Path) -> None:
    assert "zipquant" in reading_of(tmp_path, {"quant_method": "zipquant"}, GOOD).finding("method-unknown").message


def test_rule_method_lies(tmp_path: Path) -> None:
    got = reading_of(tmp_path, {"quant_method": "fp8"}, GOOD)
    assert got.finding("method-lies").severity == "warning"
    np.testing.assert_array_equal(got.codes(), codes(4))


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": pairs(codes(4))},
        {"weight": factors(32, 128), "weight_scale": factors(32, 1)},
        {"weight_scale": factors(32, 1)},
        {"weight_shape": np.array([32, 128])},
    ],
)
def test_rule_module_unknown(tmp_path: Path, tensors: Any) -> None:
    other = "model.layers.0.mlp.down_proj"
    got = reading_of(tmp_path, config(), {**GOOD, **named(tensors, other)})
    assert got.finding("module-unknown").layer == other and list(got.layers) == [MODULE]


def test_plain_modules_pass_by(tmp_path: Path) -> None:
    plain = {
        "model.norm.weight": factors(32),
        "model.layers.0.mlp.gate.weight": factors(4, 32),
        "model.layers.0.hc_attn_scale": factors(3),
        "hc_head_scale": factors(1),
    }
    got = clean(reading_of(tmp_path, config(), {**GOOD, **plain}))
    assert set(got.passed) == set(plain)


def test_methods_of_two_kinds_are_read_side_by_side(tmp_path: Path) -> None:
    fp8 = named({"weight": e4m3_codes().view(E4M3), "weight_scale": np.float32(1)}, "model.layers.0.mlp.down_proj")
    got = reading_of(tmp_path, None, {**GOOD, **fp8})
    assert {x.form.number.name for x in got.layers.values()} == {"uint4", "float8e4m3"}
