"""A model of the Hub is converted to the bytes of the same folder on disk; what goes wrong on the way is said, and never mistaken."""

from __future__ import annotations

from pathlib import Path

import pytest

from humming_convert import api
from tests.hub.server import Server
from tests.samples import sample
from tests.whole import assert_whole


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return sample("gptq-4bit-v1-sym").write(tmp_path / "models")


def weights(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix == ".safetensors"}


def test_the_bytes_are_those_of_the_folder(hub: Server, model: Path, tmp_path: Path) -> None:
    commit = hub.add("org/model", model)
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "local")
    api.convert(api.plan("org/model", target="sm90", act="bf16"), out=tmp_path / "hub")
    manifest = assert_whole(tmp_path / "hub")
    assert weights(tmp_path / "hub") == weights(tmp_path / "local")
    assert (manifest["source"]["name"], manifest["source"]["revision"]) == ("org/model", commit)
