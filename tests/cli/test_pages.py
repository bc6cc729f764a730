"""`--html FILE`: a page beside what the verb prints, its exit code unchanged, nothing written where it would do harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import sample

CLI = [sys.executable, "-c", "from humming_convert.cli.main import run; run()"]


def call(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **env}, timeout=120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample("gptq-4bit-v1-sym").write(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("verb", [["inspect"], ["plan", "--target", "sm90"]])
def test_the_same_page_every_time_and_json_as_ever(verb: list[str], model: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.html", tmp_path / "b.html"]
    for seed, file in enumerate(files, 1):
        done = call(verb[0], model, *verb[1:], "--json", "--html", file, PYTHONHASHSEED=str(seed))
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)
    first, second = (f.read_bytes() for f in files)
    assert first == second and first.startswith(b"<!doctype html>")
    assert str(tmp_path).encode() not in first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_verify_writes_a_page_also_of_a_folder_that_fails(model: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "page.html"
    assert call(model, "--target", "sm90", "--out", out).returncode == 0
    assert call("verify", out, "--source", model, "--html", file).returncode == 0
    assert "compared with the source" in file.read_text()
    (out / "stranger").write_text("")
    assert call("verify", out, "--html", file).returncode == 4
    assert "file-unknown" in file.read_text()


def test_inspect_writes_a_page_of_what_it_refuses(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert call("inspect", tmp_path / "empty", "--html", tmp_path / "page.html").returncode == 3
    assert "refused as it is" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("place", "says"), [("model/page.html", "inside"), ("nowhere/page.html", "no folder"), (".", "is a folder")])
def test_a_place_that_cannot_be_is_a_usage_error_before_any_work(place: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    done = call("inspect", tmp_path / "model", "--html", tmp_path / place)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert [p.name for p in tmp_path.rglob("*")] == ["model"]
