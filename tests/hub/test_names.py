"""What is a Hub id, what a licence permits, where an output belongs: decided without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humming_convert.findings import Findings
from humming_convert.hub import publication
from humming_convert.hub.heads import OwnFolder
from humming_convert.hub.licence import named, objection
from humming_convert.hub.locks import lock
from humming_convert.hub.names import HubName, branch_fault, folder_fault, hub_name
from humming_convert.hub.publication import Local, check_limits, default_branch
from humming_convert.hub.rules import RULES

PARTS = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
REVISIONS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}(/[A-Za-z0-9]{1,9})?", fullmatch=True)


@given(PARTS, PARTS, st.none() | REVISIONS)
def test_a_name_is_read_as_it_is_written(organisation: str, name: str, revision: str | None) -> None:
    written = HubName(f"{organisation}/{name}", revision)
    assert hub_name(str(written)) == written


@pytest.mark.parametrize(
    "text", ["", "model", "/abs/path", "./a/b", "../a", "a/b/", "a/b/c", "a/b@", "a//b", "a/b c", "a/-b", "a/b@-x", "~/model", "a/b\n"]
)
def test_what_is_no_name(text: str) -> None:
    assert hub_name(text) is None


BRANCHES = ("main", "packed-sm90-bf16-tp1-hk0.1.20", "a/b", "a.b", "a@b", "ä", "refs/pr/1", "a.lock.b", "a-", "HEAD/x", "@@", "a{")
NO_BRANCHES = (
    "",
    "a..b",
    "a b",
    ".a",
    "a/.b",
    "a.lock",
    "a.lock/b",
    "/a",
    "a/",
    "a//b",
    "a.",
    "a@{b",
    "@",
    "HEAD",
    "-a",
    "a~",
    "a^",
    "a:b",
    "a?",
    "a*",
) + ("a[b", "a\\b", "a\nb", "a\tb", "a\x7f", " ", "..", "/", "\x1b[31m")


STRICTER = ("@", "HEAD")  # a branch of this name cannot be named where both are meant; versions of git differ


def git_takes(name: str, cwd: Path) -> bool:
    """Its own answer, where no repository has branches that a name could stand for."""
    asked = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, cwd=cwd)
    return asked.returncode == 0


@pytest.mark.parametrize("name", [*BRANCHES, *NO_BRANCHES])
def test_a_branch_is_what_git_takes_for_one(name: str, tmp_path: Path) -> None:
    why = branch_fault(name)
    assert (why is None) == (name in BRANCHES), why
    if shutil.which("git") and name not in STRICTER:
        assert (why is None) == git_takes(name, tmp_path), why


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@settings(max_examples=300, deadline=None)
@given(
    st.text(st.sampled_from("ab./@{}~^:?*[\\ -\x01\x7f\u00e9") | st.sampled_from(["l"]), max_size=6)
    | st.sampled_from(["a.lock", "a.lock/b"])
)
def test_any_branch_is_what_git_takes_for_one(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    assert name in STRICTER or (branch_fault(name) is None) == git_takes(name, tmp_path_factory.getbasetemp()), repr(name)


@pytest.mark.parametrize("path", ["packed", "packed/sm90-tp1", "a..b", "_/0"])
def test_a_folder_of_a_repository(path: str) -> None:
    assert folder_fault(path) is None


@pytest.mark.parametrize(
    "path", ["", ".", "..", "../a", "a/..", "a/../b", "/a", "a/", "a//b", "a b", ".git", "-a", "a\n", "a\\b", "a\0", "~"]
)
def test_what_is_no_folder_of_a_repository(path: str) -> None:
    assert folder_fault(path) is not None


@pytest.mark.parametrize(
    ("head", "licence", "free"),
    [
        ("license: apache-2.0\n", "apache-2.0", True),
        ("tags: [a]\nlicense: 'MIT'  # really\n", "mit", True),
        ("license: other\nlicense_name: llama4\nlicense_link: LICENSE\n", "llama4", False),
        ("license: other\n", "other", False),
        ("license: gemma\n", "gemma", False),
        ("license:\n- mit\n- apache-2.0\n", None, False),
        ("license_name: mit\n", None, False),
        ("other:\n  license: mit\n", None, False),
        ("", None, False),
    ],
)
def test_only_a_licence_that_is_known_to_permit_it_needs_no_answer(head: str, licence: str | None, free: bool) -> None:
    assert named(head) == licence
    assert (objection(head) is None) is free


def manifest(**changed: Any) -> dict[str, Any]:
    return {
        "format": "humming-packed",
        "source": {"name": "org/model"},
        "target": {"name": "sm90"},
        "act": "fp8:128",
        "parallel": {"tp_size": 4, "ep_size": 1},
        "humming": {"version": "0.1.20"},
    } | changed


@pytest.mark.parametrize(
    ("changed", "branch"),
    [
        ({}, "packed-sm90-fp8-128-tp4-hk0.1.20"),
        ({"parallel": {"tp_size": 2, "ep_size": 8}}, "packed-sm90-fp8-128-tp2-ep8-hk0.1.20"),
        ({"target": None, "act": None, "format": "humming-standard"}, "main"),
    ],
)
def test_each_target_and_number_of_ranks_has_its_branch(changed: dict[str, Any], branch: str) -> None:
    assert default_branch(manifest(**changed)) == branch


def test_rule_push_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MOST_FILES", 2)
    findings = Findings()
    check_limits(Local(folder=tmp_path, manifest=manifest(), files={"a": 1, "b": 300 * 10**9, "c": 1}, head=""), findings)
    assert [(f.code, f.file) for f in findings.errors] == [("push-limits", None), ("push-limits", "b")]


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    mine = OwnFolder(tmp_path)
    left = tmp_path / "plan-left"
    left.mkdir()
    (left / "model").mkdir()
    other = OwnFolder(tmp_path)
    assert sorted(tmp_path.glob("plan-*")) == sorted([mine.path, other.path])
    del other
    assert list(tmp_path.glob("plan-*")) == [mine.path]


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    held = lock(tmp_path)
    assert held is not None and lock(tmp_path) is None
    os.close(held)
    again = lock(tmp_path)
    assert again is not None
    os.close(again)


def test_every_rule_has_a_test_of_its_name() -> None:
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    tests = set(re.findall(r"^def test_rule_(\w+)\(", text, re.M))
    assert not {r.code for r in RULES if r.code.replace("-", "_") not in tests}
