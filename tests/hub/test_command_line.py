"""The Hub as a user of the command line meets it; the library reads the environment of the process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub.models import deep, with_large_file
from tests.hub.server import TOKEN, Server
from tests.whole import assert_whole

CLI = [sys.executable, "-c", "from humming_convert.cli.main import run; run()"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def environment(home: Path, **env: str) -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "HF_HOME": str(home), **env}


def call(home: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    where = {"capture_output": True, "text": True, "timeout": 120, "cwd": home.parent}
    return subprocess.run([*CLI, *map(str, arguments)], env=environment(home, **env), **where)  # type: ignore[call-overload,no-any-return]


def test_a_model_of_the_hub_is_converted_and_names_its_folder(hub: Server, home: Path, tmp_path: Path) -> None:
    hub.add("org/model", deep(tmp_path / "models", layers=2))
    done = call(home, "org/model", "--target", "sm90", "--act", "fp8", "--stream", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "done"
    assert all(json.loads(line)["event"] for line in done.stderr.splitlines())
    manifest = assert_whole(tmp_path / "model-humming-sm90-fp8")
    text = (tmp_path / "model-humming-sm90-fp8" / "README.md").read_text()
    assert f"humming-convert org/model@{manifest['source']['revision']} --target sm90 --act fp8" in text


def test_the_cache_of_the_environment_is_used_offline(hub: Server, home: Path, tmp_path: Path) -> None:
    hub.add("org/model", deep(tmp_path / "models", layers=2))
    assert call(home, "org/model", "--standard", "--out", "one").returncode == 0
    done = call(home, "org/model", "--standard", "--out", "two", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()} == {p.name: p.read_bytes() for p in (tmp_path / "two").iterdir()}


def test_rule_hub_unreachable(home: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = call(home, "org/model", "--standard", "--json", HF_ENDPOINT=url)
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["findings"][0]["code"]) == (5, 5, "hub-unreachable")
    assert "HF_HUB_OFFLINE=1" in document["findings"][0]["advice"]


@pytest.mark.parametrize("name", ["org/modle", "org/model@v9"])
def test_a_name_that_is_wrong_is_a_usage_error(hub: Server, home: Path, tmp_path: Path, name: str) -> None:
    hub.add("org/model", deep(tmp_path / "models", layers=1))
    done = call(home, "plan", name, "--standard")
    assert done.returncode == 2 and "error[hub-" in done.stderr


def test_what_is_no_name_at_all_asks_nobody(hub: Server, home: Path) -> None:
    home.mkdir()
    done = call(home, "plan", "models/of/mine", "--standard")
    assert done.returncode == 2 and "no such folder" in done.stderr
    assert not hub.log


def test_rule_hub_or_folder(hub: Server, home: Path, tmp_path: Path) -> None:
    """A folder that is a checkpoint is what was meant; one that is none may not be."""
    model = deep(tmp_path / "models", layers=1)
    for verb in (["inspect"], ["plan", "--standard"]):
        assert "hub-or-folder" not in call(home, verb[0], "models/deep", *verb[1:]).stderr
    (model / "config.json").rename(tmp_path / "config.json")
    done = call(home, "inspect", "models/deep")
    assert done.returncode == 3 and "note[hub-or-folder]" in done.stderr and "models/deep@main" in done.stderr
    assert "hub-or-folder" not in call(home, "inspect", "./models/deep").stderr
    assert not hub.log


def test_push_says_what_it_would_do_and_then_does_it(hub: Server, home: Path, tmp_path: Path) -> None:
    deep(tmp_path / "models", layers=1)
    assert call(home, "models/deep/", "--target", "sm90", "--act", "fp8", "--out", "out").returncode == 0
    dry = call(home, "push", "out", "me/deep", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "would make: branch packed-sm90-fp8-tp1-hk0.1.20" in dry.stdout and "license: apache-2.0" in dry.stdout
    assert not [x for x in hub.log if x[0] != "GET"]
    assert call(home, "push", "out", "me/deep").returncode == 5  # no token
    done = call(home, "push", "out", "me/deep", "--private", "--json", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["commit"] == hub.models["me/deep"].branches["packed-sm90-fp8-tp1-hk0.1.20"]


def test_a_dry_run_of_what_would_be_refused_lists_it_and_ends_as_push_would(hub: Server, home: Path, tmp_path: Path) -> None:
    model = deep(tmp_path / "models", layers=1)
    (model / "README.md").write_text("---\ntags: [gptq]\n---\n# Deep\n")
    assert call(home, "models/deep/", "--target", "sm90", "--act", "fp8", "--out", "out").returncode == 0
    dry = call(home, "push", "out", "me/deep", "--dry-run")
    assert dry.returncode == 3
    for listed in ("config.json", "files, ", "would make: branch packed", "licence: none named", "head of the card", "tags:"):
        assert listed in dry.stdout, dry.stdout
    assert "error[push-license]" in dry.stderr and "push would be refused: 1 error; this dry run wrote nothing" in dry.stderr
    said = json.loads(call(home, "push", "out", "me/deep", "--dry-run", "--json").stdout)
    assert (said["status"], said["exit_code"]) == ("refused", 3) and said["files"] and said["findings"][0]["code"] == "push-license"
    assert call(home, "push", "out", "me/deep").returncode == 3
    assert call(home, "push", "out", "me/deep", "--dry-run", "--yes").returncode == 0
    assert not [x for x in hub.log if x[0] != "GET"]


def until(there: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_interrupt_while_a_file_is_waited_for_ends_at_once_and_is_resumed(hub: Server, home: Path, tmp_path: Path) -> None:
    """The last file is more than the 64 MB up to which files are fetched to plan; it never comes."""
    model = deep(tmp_path / "models", layers=2)
    with_large_file(model)
    hub.add("org/model", model)
    command = [*CLI, "org/model", "--target", "sm90", "--act", "bf16", "--out", "out"]
    with hub.failing(slow={"large.safetensors": 20.0}):
        run = subprocess.Popen(command, env=environment(home), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        until(lambda: (tmp_path / "out.partial").exists())
        time.sleep(0.5)
        begun = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=15)
    assert run.returncode == 130 and "the same command goes on" in said and time.monotonic() - begun < 10
    done = call(home, "org/model", "--target", "sm90", "--act", "bf16", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path / "out")


def test_push_says_what_helps_push_and_not_what_helps_a_download(hub: Server, home: Path, tmp_path: Path) -> None:
    """No cache can stand in for the Hub when something is published."""
    hub.add("org/model", deep(tmp_path / "models", layers=1))
    assert call(home, "org/model", "--standard", "--out", "out").returncode == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    for code, env in (("hub-unreachable", {"HF_ENDPOINT": url}), ("hub-offline", {"HF_HUB_OFFLINE": "1"})):
        done = call(home, "push", "out", "org/new", "--dry-run", **env)
        assert done.returncode == 5 and f"error[{code}]" in done.stderr
        assert "HF_HUB_OFFLINE=1 only" not in done.stderr and "fetched" not in done.stderr and "in the cache" not in done.stderr
