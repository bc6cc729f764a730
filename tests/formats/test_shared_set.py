"""Every sample folder of the shared set, against the values that were put in."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from humming_convert.standard.expr import Weight
from humming_convert.standard.numbers import scale_values
from humming_convert.standard.packing_ct import zero_codes
from tests.conftest import shared_folder
from tests.formats.folders import Array, Got, read_folder

SET = None if (found := shared_folder()) is None else found / "checkpoints"
FOLDERS = (
    sorted(p.name for p in SET.iterdir() if (p / "config.json").exists() and not p.name.startswith(("gptq", "awq")))
    if SET is not None and SET.is_dir()
    else []
)
FAMILIES = {
    "compressed_tensors": {"compressed-tensors"},
    "mxfp4": {"mxfp4", "fp8"},
    "nvfp4": {"nvfp4", "fp8", "mxfp8"},
    "fp8": {"fp8"},
    "mxfp8": {"mxfp8"},
    "humming": {"humming"},
}


@pytest.fixture(scope="session")
def expected(shared: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("expected_b", shared / "checkpoints" / "expected_b.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check(got: Got, want: dict[str, dict[str, Array]]) -> None:
    seen: set[str] = set()
    for layer in got.layers.values():
        weight = layer.tensors["weight"]
        assert isinstance(weight, Weight)
        for e, part in enumerate(layer.parts):
            d, n, k = want[part], layer.n, layer.k
            seen.add(part)

            def value(role: str, e: int = e, layer: object = layer) -> Array:
                x = layer.tensors[role].evaluate(got.context)  # type: ignore[attr-defined]
                return x if layer.experts is None else x[e]  # type: ignore[attr-defined]

            rows, columns = np.arange(n) // d["group"][0], d.get("g_idx", np.arange(k) // d["group"][1])
            np.testing.assert_array_equal(weight.expert_codes(got.context, e), d["codes"])
            if "g_idx" in d:
                np.testing.assert_array_equal(layer.facts["g_idx"].evaluate(got.context), d["g_idx"])
                np.testing.assert_array_equal(value("weight_scale"), d["scales"])
            else:
                form, scale = layer.form.scale, scale_values(value("weight_scale"), layer.form.scale.dtype)
                full = (
                    np.broadcast_to(scale, (n, k)) if form.kind == "tensor" else np.repeat(np.repeat(scale, form.n or 1, 0), form.k or k, 1)
                )
                np.testing.assert_array_equal(full, d["scales"].astype(float)[rows][:, columns])
            assert (layer.form.zero_point == "int") == ("zeros" in d) == ("zero_point" in layer.tensors)
            if "zeros" in d:
                zeros = zero_codes(value("zero_point"), layer.form.number.bits, n)
                np.testing.assert_array_equal(np.repeat(zeros, k // zeros.shape[1], 1), d["zeros"][rows][:, columns])
            second, static = d.get("scale_2"), d.get("input_scale")
            if "global_scale" in d:
                second = np.float32(1) / d["global_scale"].astype(np.float32)
            if "input_global_scale" in d:
                static = np.float32(1) / d["input_global_scale"].astype(np.float32)
            have = {"weight_scale_2": second, "bias": d.get("bias"), "input": static}
            for role, aim in have.items():
                name = role if role != "input" else "input_scale_2" if "input_scale_2" in layer.tensors else "input_scale"
                assert (name in layer.tensors) == (aim is not None), (part, role)
                if aim is not None:
                    np.testing.assert_array_equal(value(name).astype(float).reshape(-1), aim.astype(float).reshape(-1))
    assert seen == set(want)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_sample_folder_means_what_was_put_in(name: str, expected: ModuleType) -> None:
    assert SET is not None
    got = read_folder(SET / name)
    assert [str(f) for f in got.findings] == []
    _check(got, expected.expected(SET / f"{name}.expected.safetensors"))
    assert {x.family for x in got.layers.values()} <= FAMILIES[name.partition("-")[0]]


@pytest.mark.parametrize("name", FOLDERS)
def test_headers_alone_give_the_same_shapes(name: str) -> None:
    assert SET is not None
    whole, headers = read_folder(SET / name), read_folder(SET / name, headers_only=True)
    assert {n: (x.n, x.k, x.form, x.experts) for n, x in whole.layers.items()} == {
        n: (x.n, x.k, x.form, x.experts) for n, x in headers.layers.items()
    }
