"""Every layout read on a CPU by the templates' own headers, against the numbers that the layers were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adapter
import emulation
import golden_vectors as vectors
import numpy as np
import pytest
from cases import selected
from layer_maker import numbers

from humming_convert.gemm.layer import Layer
from humming_convert.gemm.reference import Reference
from humming_convert.layouts import PackedLayer, restore

needs_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")
EXACT = 1e-13  # float64 products in another order


def golden(folder: Path, every: int = 1) -> list[tuple[str, PackedLayer, dict[str, Any]]]:
    """Name, our packed layer and the library's own bytes of every recorded case that is no refusal."""
    blobs, found = vectors.Blobs(folder / "blobs.safetensors"), []
    for case in list(vectors.cases(folder))[::every]:
        if "refused" in case or ("random" in case.get("tags", ()) and case.get("compatible") is False):
            continue
        packed = adapter.pack(case, {name: blobs.array(key) for name, key in case["inputs"].items()})
        outputs = {role: blobs.array(key) for role, key in case["outputs"].items()}
        found.append((f"{folder.name} {case['id']}", packed, outputs))
    return found


def assert_read_right(packed: PackedLayer, outputs: dict[str, Any], emulate: emulation.Emulation, layer: Layer, name: str) -> None:
    have, bias = emulate(layer, outputs)
    recipe = packed.recipe
    want = numbers(restore(packed))
    reference = Reference(recipe.config.as_dict(), recipe.pair.target, recipe.environment, outputs)
    by_reference = np.stack([reference.weights(e) for e in range(want.shape[0])])
    underflow = layer.scale_type == "rebiased_e8m0" and not outputs["weight_scale"].view(np.uint8).all()
    if underflow:  # the kernels read byte 0 as 0 (a float16 exponent field of 0), `restore` as the 2^-15 that it was clamped to
        want = by_reference
    np.testing.assert_allclose(by_reference, want, rtol=EXACT, err_msg=name)
    part = have[:, : layer.n, : layer.k]
    # with e0m_to_int -0 became 0, with fused E8M0 codes were rounded: restore gives what was packed
    np.testing.assert_allclose(part, want, rtol=EXACT, err_msg=name)
    if "bias" in outputs:
        mine = restore(packed).tensors["bias"].astype(np.float64).reshape(bias.shape[0], -1)
        np.testing.assert_array_equal(bias[:, : layer.n], mine, err_msg=name)


def run(cases: list[tuple[str, PackedLayer, dict[str, Any]]], folder: Path) -> int:
    layers = [Layer.of(p.recipe.config.as_dict(), p.recipe.flags, p.recipe.pair.target.ppu) for _, p, _ in cases]
    emulate = emulation.Emulation(layers, folder)
    for (name, packed, outputs), layer in zip(cases, layers, strict=True):
        assert_read_right(packed, outputs, emulate, layer, name)
    return len(cases)


@needs_compiler
@pytest.mark.parametrize("version", vectors.VERSIONS)
def test_the_headers_read_every_carried_golden_layer(version: str, tmp_path: Path) -> None:
    assert run(golden(vectors.CARRIED / version), tmp_path) > 20


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("version", vectors.VERSIONS)
def test_the_headers_read_every_twelfth_golden_layer(version: str, tmp_path: Path, shared: Path) -> None:
    assert run(golden(shared / "golden" / version, 12), tmp_path) > 20


@needs_compiler
def test_the_headers_read_layers_of_every_kind(tmp_path: Path) -> None:
    """Every twelfth of the layers for the GPU."""
    cases = [(spec.name, packed, dict(packed.tensors)) for spec in selected()[::12] for packed in [spec.packed()]]
    assert run(cases, tmp_path) > 40


def test_the_layer_configuration_agrees_with_the_recipe_that_packed_it() -> None:
    """gemm/layer.py reads flags, layouts/resolve.py decided them: two derivations of one thing."""
    for spec in selected():
        recipe = spec.recipe()
        assert recipe is not None
        x, w, small = Layer.of(recipe.config.as_dict(), recipe.flags, recipe.pair.target.ppu), recipe.weight, recipe.small
        assert (x.place, x.interleave, x.swapped, x.bits, x.act_bits) == (w.place, w.interleave, w.swapped, w.bits, w.act_bits), spec.name
        assert (x.expert_words // x.row_words, x.row_words) == w.shape, spec.name
        assert x.sign_flip == ("sign_flip" in w.maps), spec.name
        named = {"int_to_float": "midpoint", "int_to_float_zp": "zero_point"}
        assert x.map == next((named[m] for m in w.maps if m in named), "none"), spec.name
        assert (x.scale_place, x.zero_width, x.zero_groups, x.fused_plus) == (
            small.place,
            small.zero_width,
            small.zero_groups,
            small.fused_plus,
        ), spec.name
        assert (x.n, x.k, x.shape_n, x.shape_k) == (recipe.n, recipe.k, w.n + w.pad_n, w.k + w.pad_k), spec.name
        assert (x.scale_type == "rebiased_e8m0", x.scale_type == "int16") == (small.rebias, small.int_scale), spec.name
        scale_count = int(np.prod(recipe.outputs["weight_scale"][1])) // (recipe.experts or 1)
        words = recipe.outputs["weight_scale"][0] == "I32"
        assert x.expert_scales == scale_count * (4 if words else 1), spec.name
