"""Configs and tensors that are damaged in every place by every kind of value: a finding or a layer, never an exception."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.standard.packing import stream_pack
from tests.formats.folders import E4M3, MODULE, Array, codes, e4m3_codes, factors, named, pairs, read_folder, reading_of
from tests.formats.test_compressed_tensors import NVFP4, TOKEN, config, nvfp4, packed

HUMMING = {
    "quant_method": "humming",
    "b_dtype": "uint4",
    "bs_dtype": "bfloat16",
    "weight_scale_group_size": 32,
    "a_dtype": "int8",
    "input_scale_group_size": 128,
    "dynamic": {"+:.*down": {"b_dtype": "uint8"}},
    "ignore": ["re:.*gate$"],
}
FP8 = {"quant_method": "fp8", "weight_block_size": [16, 128], "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {MODULE: {"quant_algo": "NVFP4", "group_size": 16}},
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}, "input_activations": {"num_bits": 4}}},
}
BASES: dict[str, tuple[dict[str, Any], dict[str, Array]]] = {
    "pack": (config(inputs=TOKEN, symmetric=False), named(packed(codes(4), factors(32, 4), zeros=np.zeros((4, 4), np.int32)))),
    "nvfp4": (config("nvfp4-pack-quantized", **NVFP4), named(nvfp4(codes(4), np.ones((32, 8)).astype(E4M3), 3.0))),
    "block": (FP8, named({"weight": e4m3_codes().view(E4M3), "weight_scale_inv": factors(2, 1)})),
    "humming": (HUMMING, named({"weight": stream_pack(codes(4), 4), "weight_scale": factors(32, 4)})),
    "modelopt": (
        MODELOPT,
        named({"weight": pairs(codes(4)), "weight_scale": np.ones((32, 8)).astype(E4M3), "weight_scale_2": np.float32(1)}),
    ),
}
VALUES: tuple[Any, ...] = (None, 0, -1, 3, 1.5, 10**12, "", "x", "16", True, [], [1], ["re:("], {}, {"a": 1})


def places(x: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def damaged(q: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    out = copy.deepcopy(q)
    inner: Any = out
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return out


@pytest.mark.parametrize("base", BASES)
def test_no_value_in_a_config_is_an_exception(tmp_path: Path, base: str) -> None:
    q, tensors = BASES[base]
    assert reading_of(tmp_path, q, tensors).codes_found == []
    body = json.loads((tmp_path / "config.json").read_text())
    for at in places(q):
        for value in VALUES:
            body["quantization_config"] = damaged(q, at, value)
            (tmp_path / "config.json").write_text(json.dumps(body))
            got = read_folder(tmp_path)
            assert got.layers or got.findings.errors, (at, value)


SHAPES = {
    "flat": lambda x: x.reshape(-1),
    "a row less": lambda x: x[:-1],
    "a column less": lambda x: x[..., :-1],
    "none": lambda x: x[:0],
    "one more axis": lambda x: x[None],
    "a last axis": lambda x: x[..., None],
    "other numbers": lambda x: np.zeros(x.shape, np.int64),
    "other floats": lambda x: np.ones(x.shape, np.float64),
    "bytes": lambda x: np.ones(x.shape, np.uint8),
}


@pytest.mark.parametrize("how", SHAPES)
@pytest.mark.parametrize("base", BASES)
def test_no_shape_or_dtype_is_an_exception(tmp_path: Path, base: str, how: str) -> None:
    q, tensors = BASES[base]
    for i, (name, x) in enumerate(tensors.items()):
        if x.ndim == 0:
            continue
        got = reading_of(tmp_path / str(i), q, {**tensors, name: np.ascontiguousarray(SHAPES[how](x))})
        for layer in got.layers.values():
            for expr in layer.tensors.values():
                assert expr.evaluate(got.context).shape == expr.shape, name
        assert got.layers or got.findings.errors, name


@pytest.mark.parametrize(
    ("q", "tensors"),
    [
        ({**FP8, "weight_block_size": ["x", 128]}, BASES["block"][1]),
        ({**FP8, "weight_block_size": 128}, BASES["block"][1]),
        ({**HUMMING, "weight_scale_group_size": [32]}, BASES["humming"][1]),
        ({**HUMMING, "ignore": "lm_head"}, BASES["humming"][1]),
        (config(top={"ignore": {"a": 1}}), BASES["pack"][1]),
    ],
)
def test_rule_config_invalid(tmp_path: Path, q: dict[str, Any], tensors: dict[str, Array]) -> None:
    reading_of(tmp_path, q, tensors).finding("config-invalid")


@pytest.mark.parametrize(
    "weights", [{"num_bits": "x"}, {"num_bits": 99}, {"group_size": "many"}, {"strategy": "block", "block_structure": "x"}]
)
def test_values_of_a_group_that_are_none_are_named_with_it(tmp_path: Path, weights: dict[str, Any]) -> None:
    got = reading_of(tmp_path, config(**weights), BASES["pack"][1])
    assert "group_0" in got.finding("ct-config-invalid").message
