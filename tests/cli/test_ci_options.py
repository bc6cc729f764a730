"""`--sarif`, `--annotations`, `--fingerprint` and `--cache-key`, as a job of a CI system uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from humming_convert.cli.main import application
from tests.samples import sample

CLI = [sys.executable, "-c", "from humming_convert.cli.main import run; run()"]


def call(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env={**os.environ, "NO_COLOR": "1"}, timeout=120
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the model `m`, its packed form `out`, a damaged copy `bad` of that, and `nvfp4`, which sm90 refuses with fp8."""
    here = tmp_path_factory.mktemp("checkout")
    sample("gptq-4bit-v1-sym").write(here).rename(here / "m")
    sample("nvfp4-modelopt").write(here).rename(here / "nvfp4")
    for out in ("out", "bad"):
        done = call("m", "--target", "sm90", "--out", out, cwd=here)
        assert done.returncode == 0, done.stderr
    path = next((here / "bad").glob("model-packed-*"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    return here


def run_in(path: Path) -> dict[str, Any]:
    (run,) = json.loads(path.read_text())["runs"]
    return run  # type: ignore[no-any-return]


def test_a_refused_plan_is_told_in_full(work: Path) -> None:
    done = call("plan", "nvfp4", "--target", "sm90", "--act", "fp8", "--sarif", "s.json", "--annotations", "--json", cwd=work)
    assert done.returncode == 3
    run, listed = run_in(work / "s.json"), json.loads(done.stdout)["findings"]
    assert run["invocations"][0]["exitCode"] == 3 and run["invocations"][0]["executionSuccessful"]
    assert len(run["results"]) == len(listed) > 3
    assert {r["ruleId"] for r in run["results"]} == {f["code"] for f in listed}
    assert sum(line.startswith("::error ") and "act-illegal" in line for line in done.stderr.splitlines()) == 1


def test_what_is_no_finding_is_a_notification(work: Path) -> None:
    done = call("plan", "m", "--target", "sm90", "--act", "fp7", "--sarif", "usage.json", "--annotations", cwd=work)
    assert done.returncode == 2
    run = run_in(work / "usage.json")
    assert not run["results"] and not run["invocations"][0]["executionSuccessful"]
    assert "fp7" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    assert any(line.startswith("::error title=humming-convert::") and "fp7" in line for line in done.stderr.splitlines())


def test_a_damaged_folder_is_told_with_its_file(work: Path) -> None:
    done = call("verify", "bad", "--sarif", "v.json", "--annotations", "--quiet", cwd=work)
    assert done.returncode == 4
    run = run_in(work / "v.json")
    files = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert run["invocations"][0]["exitCode"] == 4 and "digest-differs" in {r["ruleId"] for r in run["results"]}
    assert all(f.startswith("bad/model-packed-") and (work / f).is_file() for f in files)
    assert any(line.startswith("::error file=bad/model-packed-") for line in done.stderr.splitlines())


def test_a_whole_folder_has_no_results(work: Path) -> None:
    assert call("verify", "out", "--source", "m", "--sarif", "whole.json", cwd=work).returncode == 0
    assert not run_in(work / "whole.json")["results"]


def test_a_document_that_cannot_be_written_is_said_before_the_work(work: Path) -> None:
    done = call("verify", "out", "--sarif", "nowhere/s.json", cwd=work)
    assert done.returncode == 2 and "nowhere" in done.stderr and not (work / "nowhere").exists()


def test_the_fingerprint_stands_alone_and_is_the_one_of_the_manifest(work: Path) -> None:
    done = call("plan", "m", "--target", "sm90", "--fingerprint", "--sarif", "ok.json", cwd=work)
    assert done.stdout == json.loads((work / "out" / "humming_manifest.json").read_text())["fingerprint"] + "\n"
    assert run_in(work / "ok.json")["invocations"][0] == {"executionSuccessful": True, "exitCode": 0, "toolExecutionNotifications": []}


def test_the_cache_key_stands_alone_one_line_a_target(work: Path) -> None:
    done = call("plan", "m", "--target", "sm90", "--target", "sm80", "--cache-key", cwd=work)
    first, second = done.stdout.splitlines()
    assert first != second and all(len(k) == 32 and int(k, 16) >= 0 for k in (first, second))


@pytest.mark.parametrize("other", ["--json", "--cache-key", "--headers-only"])
def test_what_would_not_stand_alone_or_be_whole_is_a_usage_error(work: Path, other: str) -> None:
    with pytest.raises(typer.BadParameter, match=other):
        application(["plan"])(["plan", str(work / "m"), "--target", "sm90", "--fingerprint", other], standalone_mode=False)


def test_a_refused_plan_prints_no_key(work: Path) -> None:
    done = call("plan", "nvfp4", "--target", "sm90", "--act", "fp8", "--cache-key", cwd=work)
    assert done.returncode == 3 and not done.stdout


def test_a_place_that_cannot_be_written_ends_before_the_work(work: Path) -> None:
    done = call("plan", "nvfp4", "--target", "sm90", "--act", "fp8", "--sarif", "m", cwd=work)
    assert done.returncode == 2 and "act-illegal" not in done.stderr


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), ("Terminated", 143)])
def test_an_interrupt_is_no_success(tmp_path: Path, stop: Any, code: int) -> None:
    from humming_convert.cli import exits
    from humming_convert.cli.ci import told_to_ci

    kind = exits.Terminated if stop == "Terminated" else stop
    with pytest.raises(kind), told_to_ci("plan", "m", tmp_path / "s.json", False):
        raise kind
    invocation = run_in(tmp_path / "s.json")["invocations"][0]
    assert invocation["exitCode"] == code and not invocation["executionSuccessful"]
