"""What the system does not let us read or write is 5, whatever verb meets it; what is not there is 2; neither is damage (4) or a refusal (3)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_command_line import CLI, call, document
from tests.samples import sample

# root reads everything, unless it gives up the capabilities that let it
BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
pytestmark = pytest.mark.skipif(bool(BOUND) and shutil.which("setpriv") is None, reason="root, and no setpriv")


def bound(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """As a user whom permissions bind."""
    command = [*BOUND, *CLI, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env={**os.environ, "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("work")
    sample("gptq-4bit-v1-sym").write(work).rename(work / "model")
    assert call("model", "--target", "sm90", "--act", "bf16", "--out", "out", cwd=work).returncode == 0
    return work


@pytest.fixture
def forbid(work: Path) -> Iterator[Callable[[str], None]]:
    """Takes all permissions from what a pattern names, until the test ends."""
    taken: list[tuple[Path, int]] = []

    def take(pattern: str) -> None:
        path = next(work.glob(pattern))
        taken.append((path, path.stat().st_mode))
        path.chmod(0)

    yield take
    for path, mode in taken:
        path.chmod(mode)


OF_MODELS = (("inspect",), ("plan", "--target", "sm90"), ("convert", "--target", "sm90", "--out", "new"))
OF_OUTPUTS = (
    *(("verify",), ("doctor",), ("bench",), ("tune",), ("kernels", "build"), ("kernels", "list"), ("kernels", "clean")),
    *(("push", "org/name"), ("recheck", "--humming-version", "0.1.19")),
)


def on(folder: Path, verb: tuple[str, ...]) -> list[object]:
    words = 2 if verb[0] == "kernels" else 1
    return [*verb[:words], folder, *verb[words:]]


@pytest.mark.parametrize("verb", OF_MODELS, ids=" ".join)
@pytest.mark.parametrize("what", ["model", "model/config.json", "model/model.safetensors"])
def test_a_model_that_may_not_be_read(verb: tuple[str, ...], what: str, work: Path, forbid: Callable[[str], None]) -> None:
    forbid(what)
    done = bound(*on(work / "model", verb))
    assert done.returncode == 5 and "Permission denied" in done.stderr, done.stderr
    done = bound(*on(work / "model", verb), "--json")
    assert done.returncode == 5 and "file-unreadable" in {f["code"] for f in document(done)["findings"]}


@pytest.mark.parametrize("verb", OF_OUTPUTS, ids=" ".join)
@pytest.mark.parametrize("what", ["out", "out/humming_manifest.json"])
def test_an_output_that_may_not_be_read(verb: tuple[str, ...], what: str, work: Path, forbid: Callable[[str], None]) -> None:
    forbid(what)
    done = bound(*on(work / "out", verb))
    assert done.returncode == 5 and "Permission denied" in done.stderr, done.stderr
    assert "--out" not in done.stderr


def test_a_finished_output_that_may_not_be_read_is_not_called_foreign(work: Path, forbid: Callable[[str], None]) -> None:
    forbid("out/humming_manifest.json")
    done = bound(work / "model", "--target", "sm90", "--act", "bf16", "--out", work / "out")
    assert done.returncode == 5 and "--overwrite" not in done.stderr


@pytest.mark.parametrize("what", ["out/model-packed*", "out/model-common*", "out/config.json", "out/README.md"])
def test_verify_says_what_it_could_not_read_and_of_that_file_nothing_else(what: str, work: Path, forbid: Callable[[str], None]) -> None:
    forbid(what)
    done = bound("verify", work / "out", "--json")
    assert done.returncode == 5
    (found,) = document(done)["findings"]
    assert found["code"] == "file-unreadable" and "permissions" in found["advice"] and "--out" not in found["advice"]
    listed = json.loads((work / "out" / "humming_manifest.json").read_text())["files"]
    assert document(done)["checked"]["files"] == len(listed) - 1


@pytest.mark.parametrize("what", ["out/model-packed*", "out/humming_manifest.json"])
def test_nothing_is_multiplied_of_what_could_not_be_read(what: str, work: Path, forbid: Callable[[str], None]) -> None:
    forbid(what)
    done = bound("verify", work / "out", "--gpu")
    assert done.returncode == 5 and "Permission denied" in done.stderr and "no-gpu" not in done.stderr


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_folder_of_a_hub_name_that_may_not_be_read_is_not_said_to_lack_a_file(more: list[str], tmp_path: Path) -> None:
    closed = tmp_path / "models" / "closed"
    closed.mkdir(parents=True, mode=0)
    done = bound("inspect", "models/closed", *more, cwd=tmp_path)
    assert done.returncode == 5 and "file-unreadable" in done.stdout + done.stderr, done.stderr
    assert "hub-or-folder" not in done.stderr


def test_damage_beside_what_could_not_be_read_is_damage(work: Path, forbid: Callable[[str], None], tmp_path: Path) -> None:
    bad = Path(shutil.copytree(work / "out", tmp_path / "bad"))
    (bad / "config.json").unlink()
    next(bad.glob("model-packed*")).chmod(0)
    done = bound("verify", bad, "--json")
    assert done.returncode == 4
    assert {f["code"] for f in document(done)["findings"]} == {"file-unreadable", "file-missing"}


@pytest.mark.parametrize("option", ["--html", "--sarif", "--out"])
def test_a_place_that_may_not_be_written_is_5_and_one_that_is_not_there_2(option: str, work: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    verb = "convert" if option == "--out" else "plan"
    done = bound(verb, work / "model", "--target", "sm90", option, tmp_path / "closed" / "x")
    assert done.returncode == 5 and "Permission denied" in done.stderr, done.stderr
    if option != "--out":  # whose parents are made
        done = bound(verb, work / "model", "--target", "sm90", option, tmp_path / "nowhere" / "x")
        assert done.returncode == 2 and "no folder" in done.stderr


def test_files_to_read_that_are_not_there_are_2(work: Path, tmp_path: Path) -> None:
    for name in ("nowhere", "nowhere/x.json", "."):
        done = call("bench", "--from", tmp_path / name)
        assert done.returncode == 2 and "--from" in done.stderr, done.stderr
    (tmp_path / "closed.json").write_text("{}")
    (tmp_path / "closed.json").chmod(0)
    assert bound("bench", "--from", tmp_path / "closed.json").returncode == 5


def test_sarif_says_that_the_run_came_to_no_answer(work: Path, tmp_path: Path, forbid: Callable[[str], None]) -> None:
    forbid("model/model.safetensors")
    assert bound("plan", work / "model", "--target", "sm90", "--sarif", tmp_path / "s").returncode == 5
    run = json.loads((tmp_path / "s").read_text())["runs"][0]
    assert run["invocations"][0]["exitCode"] == 5 and not run["invocations"][0]["executionSuccessful"]
    assert run["results"][0]["ruleId"] == "file-unreadable"
