"""`--html FILE` and `--sarif FILE`: beside what the verb prints, its exit code unchanged, nothing written where it would do harm."""

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


@pytest.fixture(scope="module")
def packed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    assert call(model, "--target", "sm90", "--out", out).returncode == 0
    return out


@pytest.mark.parametrize("option", ["--html", "--sarif"])
@pytest.mark.parametrize("name", ["config.json", "new.file"])
def test_neither_a_model_nor_an_output_is_written_into(option: str, name: str, model: Path, packed: Path) -> None:
    before = {p: p.read_bytes() for folder in (model, packed) for p in folder.iterdir()}
    for verb in (
        ["plan", model, "--target", "sm90", option, model / name],
        ["verify", packed, option, packed / name],
        ["verify", packed, "--source", model, option, model / name],
    ):
        done = call(*verb)
        assert done.returncode == 2 and "inside" in done.stderr, done.stderr
    assert before == {p: p.read_bytes() for folder in (model, packed) for p in folder.iterdir()}


def test_two_options_do_not_name_one_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    done = call("plan", model, "--target", "sm90", "--html", tmp_path / "x", "--sarif", tmp_path / "link")
    assert done.returncode == 2 and "one file" in done.stderr and not (tmp_path / "x").exists()


def test_links_stay_links_and_pipes_stay_pipes(model: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    assert call("plan", model, "--target", "sm90", "--html", tmp_path / "link").returncode == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text().startswith("<!doctype html>")
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        assert call("plan", model, "--target", "sm90", "--sarif", tmp_path / "pipe").returncode == 0
        assert json.loads(reader.communicate(timeout=60)[0])["version"] == "2.1.0"
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_as_long_as_names_can_be(model: Path, tmp_path: Path) -> None:
    file = tmp_path / ("n" * 250 + ".html")
    assert call("plan", model, "--target", "sm90", "--html", file).returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


FULL = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *CLI]  # no file beyond 1 KiB


def full(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FULL, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_a_page_that_cannot_be_written_is_an_error_and_sarif_says_so(model: Path, tmp_path: Path) -> None:
    done = full("plan", model, "--target", "sm90", "--html", tmp_path / "p.html", "--sarif", tmp_path / "p.sarif")
    assert done.returncode == 5 and "too large" in done.stderr
    assert not (tmp_path / "p.html").exists() and [p.name for p in tmp_path.iterdir()] in ([], ["p.sarif"])
    for text in (p.read_text() for p in tmp_path.iterdir()):
        invocation = json.loads(text)["runs"][0]["invocations"][0]
        assert invocation["exitCode"] == 5 and not invocation["executionSuccessful"]


def test_a_failed_check_stays_one_where_its_page_cannot_be_written(packed: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    for p in packed.iterdir():
        (bad / p.name).write_bytes(p.read_bytes())
    (bad / "stranger").write_text("")
    done = full("verify", bad, "--html", tmp_path / "p.html", "--json")
    assert done.returncode == 4 and "was not written" in done.stderr
    assert "file-unknown" in {f["code"] for f in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize("verb", ["plan", "verify", "formats", "failed"])
def test_a_reader_that_goes_away_changes_no_exit_code(verb: str, model: Path, packed: Path, tmp_path: Path) -> None:
    words = {
        "plan": ["plan", model, "--target", "sm90", "--json"],
        "verify": ["verify", packed],
        "formats": ["formats"],
        "failed": ["verify", tmp_path],
    }
    process = subprocess.Popen([*CLI, *map(str, words[verb])], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    told = process.stderr.read().decode()
    assert process.wait(60) == (4 if verb == "failed" else 0), told
    assert "Traceback" not in told and "Broken pipe" not in told


def test_a_folder_whose_name_is_no_utf_8_is_converted_and_named_in_utf_8(model: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff"))
    odd.mkdir()
    for p in model.iterdir():
        (odd / p.name).write_bytes(p.read_bytes())
    for verb in (
        ["plan", odd, "--target", "sm90", "--json"],
        [odd, "--target", "sm90", "--out", tmp_path / "out", "--json"],
        ["inspect", odd, "--json"],
    ):
        done = subprocess.run([*CLI, *map(os.fspath, verb)], capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout.decode())
    assert "odd\ufffd" in (tmp_path / "out" / "README.md").read_text()


def test_a_page_of_headers_says_that_no_value_was_looked_at(model: Path, tmp_path: Path) -> None:
    for option, says in (("--headers-only", True), ("--quiet", False)):
        assert call("plan", model, "--target", "sm90", option, "--html", tmp_path / "p.html").returncode == 0
        page = (tmp_path / "p.html").read_text()
        assert ("as far as headers tell" in page) == says == ("no scale was looked at" in page)
