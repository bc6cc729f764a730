"""GPU, library and its reading of stored configurations, as values: nothing here looks at this machine."""

from __future__ import annotations

from typing import Any

import pytest
from codes import codes

from humming_convert.serve.folder import PackedFolder
from humming_convert.serve.machine import FLAGS, Machine, distinct, gpu_findings, key_of, library_findings, reading_findings
from tests.serve.conftest import EXPERTS, Packed


@pytest.fixture
def manifest(packed: Packed) -> Any:
    return PackedFolder.open(packed()).common


def here(**more: Any) -> Machine:
    return Machine(**{"sm": 90, "humming": "0.1.20", "compiler": "13.0", **more})


def as_stored(entry: Any) -> dict[str, Any]:
    return {**entry["config"], **{flag: entry["flags"][flag] for flag in FLAGS}}


def test_the_gpu_has_to_be_the_one_of_the_target(manifest: Any) -> None:
    assert not codes(gpu_findings(manifest, here()))
    (finding,) = gpu_findings(manifest, here(sm=89))
    assert finding.code == "sm-differs" and "--target sm89" in str(finding)
    assert codes(gpu_findings(manifest, here(ppu=True))) == ["sm-differs"]


def test_of_a_gpu_that_is_not_seen_nothing_is_said(manifest: Any) -> None:
    assert not codes(gpu_findings(manifest, here(sm=None)))


def test_only_accepted_versions_of_the_library_are_taken(manifest: Any) -> None:
    assert manifest["humming"]["accepted"]
    assert not any(codes(library_findings(manifest, here(humming=v))) for v in manifest["humming"]["accepted"])
    (finding,) = library_findings(manifest, here(humming="0.1.21"))
    assert finding.code == "humming-version" and "--humming-version 0.1.21" in str(finding)
    assert codes(library_findings(manifest, here(humming=None))) == ["humming-missing"]


def test_a_configuration_that_is_read_as_it_was_written_has_no_findings(manifest: Any) -> None:
    for entry in manifest["layers"]:
        assert not codes(reading_findings(manifest, entry, as_stored(entry), here()))


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_that_is_read_otherwise_is_named(manifest: Any, flag: str) -> None:
    entry = manifest["layers"][0]
    read = as_stored(entry)
    read[flag] = not read[flag]
    (finding,) = reading_findings(manifest, entry, read, here(compiler="12.4"))
    assert flag in finding.message and finding.layer == entry["name"]
    by_compiler = flag in ("use_native_dequant", "use_ldmatrix_dequant")
    assert finding.code == ("compiler-class" if by_compiler else "flag-differs")
    assert ("12.4" in finding.message and "13.0" in finding.message) == by_compiler


def test_a_field_that_is_read_otherwise_or_not_at_all_is_named(manifest: Any) -> None:
    entry = manifest["layers"][0]
    read = as_stored(entry)
    del read["pad_shape_n"]
    (finding,) = reading_findings(manifest, entry, read, here())
    assert finding.code == "flag-differs" and "pad_shape_n: stored 0, read None" in finding.message


def test_without_cubin_patching_the_message_says_so(manifest: Any) -> None:
    entry = manifest["layers"][0]
    read = as_stored(entry) | {"use_ldmatrix_dequant": True}
    (finding,) = reading_findings(manifest, entry, read, here(cubin_patch=False))
    assert "with cubin patching, here CUDA compiler 13.0 without" in finding.message and "--no-cubin-patch" in str(finding)


def test_layers_of_one_configuration_are_one_kind_however_many_experts(packed: Packed) -> None:
    layers = PackedFolder.open(packed(EXPERTS)).rank(0, 0).layers
    kinds = distinct(layers)
    assert len({key_of(x) for x in layers}) == len(kinds) <= len(layers)
    fewer = {**layers[0], "config": {**layers[0]["config"], "num_experts": 2 * layers[0]["config"]["num_experts"]}}
    assert key_of(fewer) == key_of(layers[0])
    other = {**layers[0], "config": {**layers[0]["config"], "shape_n": 64}}
    assert key_of(other) != key_of(layers[0])
