"""stdout and stderr that fail, are closed, or have no letter for what is said: one exit code, no traceback, a whole document or none."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_command_line import CLI
from tests.samples import sample

FULL = "/dev/full"
pytestmark = pytest.mark.skipif(not os.path.exists(FULL), reason="no device that is always full")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model, out and an empty folder, which is neither."""
    work = tmp_path_factory.mktemp("work")
    sample("gptq-4bit-v1-sym").write(work).rename(work / "model")
    (work / "empty").mkdir()
    assert call(work, "model", "--target", "sm90", "--out", "out").returncode == 0
    return work


def call(cwd: Path, *arguments: str, unbuffered: bool = False, **more: Any) -> subprocess.CompletedProcess[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") or k == "PYTHONPATH"}
    env |= {"NO_COLOR": "1", **more.pop("env", {})} | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.run([*CLI, *arguments], cwd=cwd, env=env, timeout=120, check=False, **streams)


DOCUMENTS = (
    ("plan", "model", "--target", "sm90"),
    ("inspect", "model"),
    ("verify", "out"),
    ("model", "--target", "sm90", "--out", "out"),
    ("targets",),
    ("recheck", "out", "--humming-version", "0.1.19"),
)
ALL = (*((*a, "--json") for a in DOCUMENTS), *DOCUMENTS, ("--help",), ("plan", "--help"), ("--version",), ("schema", "plan"), ("formats",))
FAILED = (  # and their own codes, which say more than a full disk does
    (2, ("nowhere", "--target", "sm90")),
    (2, ("verify", "out", "--nonsense")),
    (3, ("empty", "--target", "sm90")),
    (4, ("verify", "empty")),
)


@pytest.mark.parametrize(("arguments", "unbuffered"), [*((a, False) for a in ALL), (ALL[0], True), (("--help",), True)], ids=str)
def test_an_answer_that_cannot_be_written_is_5_with_or_without_json(arguments: tuple[str, ...], unbuffered: bool, work: Path) -> None:
    with open(FULL, "wb") as full:
        done = call(work, *arguments, stdout=full, unbuffered=unbuffered)
    said = done.stderr.decode()
    assert done.returncode == 5 and "Traceback" not in said and "standard output" in said, said
    assert said.count("No space left") == 1


@pytest.mark.parametrize("json_", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(("code", "arguments"), FAILED, ids=lambda x: x if isinstance(x, int) else " ".join(x))
def test_what_is_wrong_is_said_on_stderr_where_stdout_is_full(code: int, arguments: tuple[str, ...], json_: list[str], work: Path) -> None:
    with open(FULL, "wb") as full:
        done = call(work, *arguments, *json_, stdout=full)
    said = done.stderr.decode()
    assert done.returncode == (5 if arguments == ("verify", "empty") else code) and "Traceback" not in said, said
    assert said.strip()


@pytest.mark.parametrize("arguments", [*ALL, *(a for _, a in FAILED)], ids=" ".join)
def test_a_stderr_that_is_full_changes_neither_the_answer_nor_the_code(arguments: tuple[str, ...], work: Path) -> None:
    expected = call(work, *arguments)
    with open(FULL, "wb") as full:
        done = call(work, *arguments, stderr=full)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)


@pytest.mark.parametrize("arguments", [*DOCUMENTS, *(a for _, a in FAILED)], ids=" ".join)
def test_closed_streams_change_no_code(arguments: tuple[str, ...], work: Path) -> None:
    expected = call(work, *arguments).returncode
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *CLI, *arguments], cwd=work, timeout=120, check=False)
    assert closed.returncode == expected


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "utf-16"])
@pytest.mark.parametrize("name", ["we ird é", "模型", os.fsdecode(b"odd\xff")], ids=ascii)
def test_no_encoding_fails_and_json_stays_json(name: str, encoding: str, work: Path) -> None:
    link = work / name
    if not link.is_symlink():
        link.symlink_to("model")
    env = {"PYTHONIOENCODING": encoding}
    shown = os.fsencode(name).decode(errors="replace")
    for verb in (["inspect", name], [name, "--target", "sm90", "--out", name + ".out"]):
        for more in ([], ["--json"]):
            done = call(work, *verb, *more, env=env)
            assert done.returncode == 0, done.stderr
            text = done.stdout.decode(encoding)
            if more:
                json.loads(text)
            if more and verb[0] == "inspect":
                assert json.loads(text)["source"]["name"] == shown
    done = call(work, "verify", "nowhere" + name, env=env)
    assert done.returncode == 2 and b"Traceback" not in done.stderr
