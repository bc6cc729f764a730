"""action.yml is run, step by step, over a small model: what a job of GitHub would see."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from humming_convert.proof.verify import verify_folder
from tests.ci.runner import ROOT, Ran, Runner, action
from tests.samples import sample

STEP = ROOT / "scripts" / "ci_step"
INSTALL = frozenset({"Install humming-convert"})  # asks the package index
CONVERTER = f'#!/bin/sh\nexec {sys.executable} -c "from humming_convert.cli.main import run; run()" "$@"\n'
REQUEST = {"target": "sm90", "act": "fp8", "options": "--tp=1\n\n  --exclude=down_proj  \n", "run_options": "--jobs=1"}


def command(place: Path, script: str) -> None:
    """What the install step leaves, without a package index."""
    path = place / "humming-convert" / "bin" / "humming-convert"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A job that converted `m`, and what it saw; its cache is in the folder."""
    folder = tmp_path_factory.mktemp("first")
    command(folder / "temporary", CONVERTER)
    (folder / "cache").mkdir()
    sample("gptq-4bit-v1-sym").write(folder / "work").rename(folder / "work" / "m")
    ran = Runner(folder / "work", folder / "temporary", folder / "cache", INSTALL).run(model="m", **REQUEST)
    return folder, ran


@pytest.fixture
def runner(first: tuple[Path, Ran], tmp_path: Path) -> Runner:
    """The next job: a fresh checkout, the same cache."""
    shutil.copytree(first[0], tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "work" / "humming-out")
    return Runner(tmp_path / "work", tmp_path / "temporary", tmp_path / "cache", INSTALL)


def test_a_model_is_converted_verified_and_kept(first: tuple[Path, Ran]) -> None:
    folder, ran = first
    assert ran.codes == {"Plan": 0, "Look in the cache": 0, "Convert": 0, "Verify": 0, "Keep in the cache": 0}, ran.said
    out = folder / "work" / "humming-out"
    assert not verify_folder(out, folder / "work" / "m").failed
    assert json.loads((out / "humming_manifest.json").read_text())["options"]["exclude"] == "down_proj"
    assert ran.outputs["cache-hit"] == "false" and len(ran.outputs["cache-key"]) == 32
    assert all(json.loads(Path(ran.outputs[k]).read_text())["version"] == "2.1.0" for k in ("plan-sarif", "verify-sarif"))


def test_the_next_job_takes_it_from_the_cache_and_holds_it_against_the_model(first: tuple[Path, Ran], runner: Runner) -> None:
    ran = runner.run(model="m", **REQUEST)
    assert ran.codes == {"Plan": 0, "Look in the cache": 0, "Verify": 0}, ran.said
    assert ran.outputs["cache-hit"] == "true" and ran.outputs["cache-key"] == first[1].outputs["cache-key"]


def test_another_request_is_not_taken_from_the_cache(first: tuple[Path, Ran], runner: Runner) -> None:
    runner.skip |= {"Convert", "Verify", "Keep in the cache"}
    ran = runner.run(model="m", **(REQUEST | {"target": "sm80", "act": "auto"}))
    assert ran.outputs["cache-hit"] == "false" and ran.outputs["cache-key"] != first[1].outputs["cache-key"]


def test_a_cache_that_holds_something_else_fails(runner: Runner) -> None:
    (kept,) = runner.cache.iterdir()
    path = next(kept.glob("model-packed-*"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    assert runner.run(model="m", **REQUEST).codes["Verify"] == 4


def test_a_refusal_ends_the_job_with_its_exit_code_annotations_and_sarif(runner: Runner) -> None:
    sample("nvfp4-modelopt").write(runner.work)
    ran = runner.run(model="nvfp4-modelopt", target="sm90", act="fp8")
    assert ran.codes == {"Plan": 3}
    assert any(line.startswith("::error ") for line in ran.said.splitlines())
    assert json.loads(Path(ran.outputs["plan-sarif"]).read_text())["runs"][0]["results"]
    assert not (runner.work / "humming-out").exists()


def test_an_input_never_becomes_shell_text(runner: Runner) -> None:
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step["name"]
    hostile = 'm"; touch hacked; $(touch hacked) `touch hacked`'
    ran = runner.run(model=hostile, target=hostile, options=hostile)
    assert ran.codes == {"Plan": 2} and not (runner.work / "hacked").exists()


@pytest.fixture
def told(tmp_path: Path) -> Runner:
    """A command that writes its words and the token down, a line each."""
    for name in ("work", "temporary", "cache"):
        (tmp_path / name).mkdir()
    command(tmp_path / "temporary", '#!/bin/sh\nprintf "%s\\n" "$@" >> words\nprintf "%s" "$HF_TOKEN" > token\n')
    return Runner(tmp_path / "work", tmp_path / "temporary", tmp_path / "cache", INSTALL)


def test_a_second_target_is_a_usage_error(told: Runner) -> None:
    ran = told.run(model="m", target="sm90", options="--target=sm80")
    assert ran.codes["Plan"] == 2 and not (told.work / "words").exists()


def test_without_a_target_the_standard_form_is_made(told: Runner) -> None:
    told.run(model="m", cache="false")
    words = (told.work / "words").read_text().splitlines()
    assert words.count("--standard") == 2 and not any(w.startswith("--target") for w in words), "of plan and of convert"


def test_a_way_to_verify_that_there_is_not_is_a_usage_error(told: Runner) -> None:
    assert told.run(model="m", target="sm90", cache="false", verify="never").codes["Verify"] == 2


def test_publishing_gets_the_folder_the_repository_and_the_token(told: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "of the job")
    ran = told.run(
        model="org/m@v1", target="sm90", out="a b", cache="false", push_repo="org/out", push_options="--private", hub_token="of the input"
    )
    assert ran.codes["Publish"] == 0
    words = (told.work / "words").read_text().splitlines()
    assert words[words.index("push") :] == ["push", "a b", "org/out", "--private"]
    assert (told.work / "token").read_text() == "of the input"


def test_without_a_token_of_its_own_the_job_s_is_used(told: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "of the job")
    told.run(model="m", target="sm90", cache="false")
    assert (told.work / "token").read_text() == "of the job"


@pytest.mark.parametrize(("verify", "hit", "folder", "source"), [
    ("auto", "", True, False), ("auto", "true", True, True), ("auto", "true", False, False),
    ("source", "", False, True), ("folder", "true", True, False),
])  # fmt: skip
def test_what_comes_from_the_cache_is_held_against_a_folder(told: Runner, verify: str, hit: str, folder: bool, source: bool) -> None:
    if folder:
        (told.work / "m").mkdir()
    env = {"HC_MODEL": "m", "HC_OUT": "out", "HC_VERIFY": verify, "HC_CACHE_HIT": hit}
    code, _, said = told.shell(f"bash {STEP} verify", env)
    assert code == 0, said
    assert ("--source=m" in (told.work / "words").read_text().splitlines()) is source


def test_every_input_and_output_is_described_and_every_step_is_one_of_the_script() -> None:
    document = action()
    assert all(spec["description"] for kind in ("inputs", "outputs") for spec in document[kind].values())
    steps = [s["run"].split()[-1] for s in document["runs"]["steps"] if "run" in s]
    assert steps == ["install", "plan", "convert", "verify", "push"]
    assert all(s["shell"] == "bash" for s in document["runs"]["steps"] if "run" in s)


def test_a_python_that_is_not_there_is_not_replaced_by_another(tmp_path: Path) -> None:
    env = {**os.environ, "HC_PYTHON": "python-of-no-name", "RUNNER_TEMP": str(tmp_path)}
    done = subprocess.run(["bash", ROOT / "scripts" / "ci_step", "install"], capture_output=True, text=True, env=env)
    assert done.returncode and "python-of-no-name is not there" in done.stderr
    assert not any(tmp_path.iterdir())


def test_the_shell_scripts_have_no_faults_that_shellcheck_knows() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", STEP, ROOT / "scripts" / "environment"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
