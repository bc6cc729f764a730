"""The demo end to end on small samples, and that its comparison finds what is wrong."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from humming_convert import api
from humming_convert.demo.models import Sample
from humming_convert.demo.run import COLUMNS, compare, head, line, run_demo
from humming_convert.demo.samples import all_samples

SAMPLES = {s.name: s for s in all_samples()}


def turn_bit(folder: Path, role: str) -> None:
    """One bit of the first byte of a role of the first layer that has it."""
    manifest = json.loads((folder / "humming_manifest.json").read_text())
    entry = next(layer["tensors"][role] for layer in manifest["layers"] if role in layer["tensors"])
    raw = bytearray((folder / entry["file"]).read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    raw[8 + length + json.loads(raw[8 : 8 + length])[entry["name"]]["data_offsets"][0]] ^= 1
    (folder / entry["file"]).write_bytes(raw)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The AWQ sample, packed for 8-bit activations."""
    folder = tmp_path_factory.mktemp("converted")
    source = SAMPLES["awq-4bit-gemm"].write(folder)
    api.convert(api.plan(source, target="sm90", act="fp8"), out=folder / "out")
    return folder / "out"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_converts_in_every_stage_and_equals_what_went_in(name: str) -> None:
    rows = list(run_demo(samples=[SAMPLES[name]]))
    assert [r.activation for r in rows] == ["standard", "bf16", "fp8"]
    assert [r.problem for r in rows] == ["", "", ""]


@pytest.mark.parametrize("name", ["gptq-4bit-v2-asym", "ct-fp8-block", "mxfp4-gpt-oss"])
def test_a_sample_equals_what_went_in_when_the_compiled_passes_take_every_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("humming_convert.proof.stream.SMALL", 0)
    monkeypatch.setattr("humming_convert.passes.scales.SMALL", 0)
    assert [r.problem for r in run_demo(samples=[SAMPLES[name]])] == ["", "", ""]


def test_a_request_that_is_legal_must_not_be_refused() -> None:
    refused_rightly = replace(SAMPLES["ct-int8"], fp8=True)
    assert "must convert" in list(run_demo(samples=[refused_rightly]))[2].problem


def test_a_request_that_is_illegal_must_be_refused() -> None:
    legal = replace(SAMPLES["awq-4bit-gemm"], fp8=False)
    assert list(run_demo(samples=[legal]))[2].proof == "not refused"


def test_folders_are_kept_where_they_are_asked_for(tmp_path: Path) -> None:
    list(run_demo(tmp_path / "here", samples=[SAMPLES["ct-fp8-channel"]]))
    assert (tmp_path / "here" / "samples" / "ct-fp8-channel" / "config.json").is_file()
    assert (tmp_path / "here" / "converted" / "ct-fp8-channel-fp8" / "humming_manifest.json").is_file()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(api.UsageError, match="new or empty"):
        next(run_demo(tmp_path))


@pytest.mark.parametrize("role", ["weight", "weight_scale", "zero_point"])
def test_one_wrong_bit_is_found(converted: Path, role: str) -> None:
    sample = SAMPLES["awq-4bit-gemm"]
    assert compare(sample, converted)[0] == ""
    turn_bit(converted, role)
    assert compare(sample, converted)[0] != ""
    turn_bit(converted, role)


def test_a_module_that_is_not_there_is_found(converted: Path) -> None:
    sample = SAMPLES["awq-4bit-gemm"]
    more: Sample = replace(sample, meaning={**sample.meaning, "model.layers.1.mlp.up_proj": np.zeros((1, 1))})
    assert compare(more, converted)[0] == "model.layers.1.mlp.up_proj: missing"


def test_a_change_beyond_what_the_manifest_owns_up_to_is_found(converted: Path) -> None:
    sample = SAMPLES["awq-4bit-gemm"]
    moved = {name: weight * (1 + 2.0**-12) for name, weight in sample.meaning.items()}
    assert "no lossy step in the manifest" in compare(replace(sample, meaning=moved), converted)[0]


def test_a_line_has_the_columns_of_the_head() -> None:
    row = next(run_demo(samples=[SAMPLES["ct-fp8-channel"]]))
    assert len(row.cells()) == len(COLUMNS)
    assert len(line(row.cells())) <= len(head().splitlines()[1])
