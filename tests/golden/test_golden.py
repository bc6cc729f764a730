"""The layouts against the library's own bytes, through the adapter."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import adapter
import golden_vectors as vectors
import numpy as np
import pytest

from humming_convert import Refused

# our code says more than the library's
MORE_EXACT = {"k_not_multiple_of_group": ("tensor_shape", "n_not_multiple_of_64")}


def assert_as_recorded(case: dict[str, Any], blobs: vectors.Blobs) -> None:
    inputs = {name: blobs.array(key) for name, key in case["inputs"].items()}
    if "refused" in case:
        with pytest.raises(Refused) as refused:
            adapter.prepare(case, inputs)
        code = refused.value.findings[0].code
        assert case["refused"]["reason"] in MORE_EXACT.get(code, (code,))
        return
    config, outputs = adapter.prepare(case, inputs)
    for name, want in (case["config"] | case["flags"]).items():
        assert config[name] == want, name
    assert set(outputs) == set(case["outputs"])
    for role, key in case["outputs"].items():
        want = blobs.array(key)
        assert (outputs[role].dtype, outputs[role].shape) == (want.dtype, want.shape), role
        assert outputs[role].tobytes() == want.tobytes(), role


def carried() -> list[Any]:
    return [pytest.param(c, id=f"{c['version']}-{c['id']}") for v in vectors.VERSIONS for c in vectors.cases(vectors.CARRIED / v)]


@pytest.mark.parametrize("case", carried())
def test_a_layer_is_packed_as_the_library_packs_it(case: dict[str, Any]) -> None:
    assert_as_recorded(case, vectors.Blobs(vectors.CARRIED / case["version"] / "blobs.safetensors"))


@pytest.mark.parametrize("version", vectors.VERSIONS)
def test_every_fiftieth_case_of_the_full_set_is_packed_as_the_library_packs_it(shared: Path, version: str) -> None:
    folder = shared / "golden" / version
    blobs = vectors.Blobs(folder / "blobs.safetensors")
    for case in itertools.islice(vectors.cases(folder), 7, None, 50):
        assert_as_recorded(case, blobs)


@pytest.mark.parametrize("version", vectors.VERSIONS)
def test_legality_and_flags_are_those_of_the_grid_in_every_environment(version: str) -> None:
    for number, (cell, want) in enumerate(vectors.cells(vectors.CARRIED / version)):
        if number % 7:  # every seventh cell keeps this below a second or two
            continue
        have = adapter.legality(cell, version)
        for column, value in want.items():
            assert (have.get(column) or "none") == (value or "none") or have.get(column) == value, (cell, column)


def test_blobs_are_what_their_keys_say() -> None:
    import hashlib

    from humming_convert.checkpoint.tensors import NAMES

    for version in vectors.VERSIONS:
        blobs = vectors.Blobs(vectors.CARRIED / version / "blobs.safetensors")
        for key in blobs.head:
            x = blobs.array(key)
            text = f"{NAMES[x.dtype]}|{'x'.join(map(str, x.shape))}|".encode()
            assert hashlib.sha256(text + np.ascontiguousarray(x).tobytes()).hexdigest().startswith(key)
