"""Every layout read on a CPU by the templates' own headers, against the numbers that the layers were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adapter
import emulation
import golden_vectors as vectors
import numpy as np
import pytest
from layer_maker import numbers

from humming_convert.gemm.layer import Layer
from humming_convert.layouts import PackedLayer, restore
from humming_convert.standard.lossy import STEPS

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
    want = numbers(restore(packed))
    part = have[:, : layer.n, : layer.k]
    # with e0m_to_int -0 became 0, with fused E8M0 codes were rounded: restore gives what was packed
    scale = np.abs(want[np.isfinite(want)]).max(initial=0)
    np.testing.assert_allclose(part, want, rtol=EXACT, atol=scale * 1e-300, err_msg=name)
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


def test_measured_steps_are_the_known_ones() -> None:
    assert {"e8m0-range", "scale-cast"} <= set(STEPS)
