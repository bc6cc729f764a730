"""The examples of docs/ci.md are run, or held against what they use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.samples import sample

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def example(name: str) -> dict[str, Any]:
    """The YAML block whose first line names a file."""
    (text,) = [b for b in blocks("yaml") if b.startswith(f"# {name}")]
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def ours() -> dict[str, Any]:
    steps = example(".github/workflows/convert.yml")["jobs"]["convert"]["steps"]
    (step,) = [s for s in steps if "humming-convert@" in s.get("uses", "")]
    return step  # type: ignore[no-any-return]


ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())


def test_the_workflow_uses_inputs_and_outputs_that_the_action_has() -> None:
    step = ours()
    assert set(step["with"]) <= set(ACTION["inputs"])
    used = set(re.findall(rf"steps\.{step['id']}\.outputs\.([\w-]+)", PAGE))
    assert used and used <= set(ACTION["outputs"])


def test_the_page_names_every_input_and_output() -> None:
    rows = {name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert set(ACTION["inputs"]) <= rows
    (outputs,) = re.findall(r"^Outputs: (.*?);", PAGE, re.M)
    assert set(re.findall(r"`([\w-]+)`", outputs)) == set(ACTION["outputs"])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A model where the examples have theirs, and the command on the path."""
    sample("gptq-4bit-v1-sym").write(tmp_path / "models").rename(tmp_path / "models" / "my-model")
    command = tmp_path / "bin" / "humming-convert"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from humming_convert.cli.main import run; run()" "$@"\n')
    command.chmod(0o755)
    return tmp_path


def bash(script: str, checkout: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-ec", script], cwd=checkout, env=env, capture_output=True, text=True, timeout=120)


def test_the_shell_example_converts_once_and_verifies_each_time(checkout: Path) -> None:
    (script,) = blocks("bash")
    first, second = bash(script, checkout), bash(script, checkout)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "written" in first.stderr and "written" not in second.stderr
    assert len(list((checkout / "store").iterdir())) == 1


def test_the_gitlab_example_runs(checkout: Path) -> None:
    job = example(".gitlab-ci.yml")["convert"]
    done = bash("\n".join(job["script"]), checkout)
    assert done.returncode == 0, done.stderr
    assert all((checkout / path).is_file() for path in job["artifacts"]["paths"])
