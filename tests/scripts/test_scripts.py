"""The scripts that look at other programs: what they need and do not find is said, and no end is silent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

WITHOUT = """
import importlib.util, runpy, sys
real, without = importlib.util.find_spec, sys.argv[1]
importlib.util.find_spec = lambda name, *more: None if name == without else real(name, *more)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PLAYWRIGHT = """
class TimeoutError(Exception): ...
class Browser: ...
class Page: ...
class sync_playwright:
    def __enter__(self): return self
    def __exit__(self, *_): ...
    @property
    def chromium(self): return self
    def launch(self, **_): return self
    def close(self): ...
"""
LOOKING = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
loader = SourceFileLoader("check_report", sys.argv[1])
script = module_from_spec(spec_from_loader("check_report", loader))
loader.exec_module(script)
script.look = lambda browser, file, pictures: print(file.as_uri(), pictures) or ()
script.pages = lambda _: [("page", "<!doctype html>")]
sys.argv = sys.argv[1:]
sys.exit(script.main())
"""


def run(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, cwd=cwd, env={**os.environ, **env}, timeout=120
    )


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """As vllm_setup.sh makes it, as far as is looked at; its Python has every package and runs no script."""
    home = tmp_path / "environment"
    for folder in ("venv/bin", "src-vllm/vllm", "src-humming/humming_kernels-0.1.20.dist-info"):
        (home / folder).mkdir(parents=True)
    python = home / "venv" / "bin" / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho said by the part inside >&2\nexit 1\n')
    python.chmod(0o755)
    (tmp_path / "check").mkdir()
    (tmp_path / "check" / "vllm_standard.py").write_text("")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "index-a.json").write_text('{"folders": []}')
    return home


@pytest.mark.parametrize("script", ["check_plugin", "check_vllm"])
@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("environment/venv/bin/python", "the Python of the environment"),
        ("environment/src-vllm/vllm", "vLLM's sources"),
        ("environment/src-humming", "those of humming-kernels"),
        ("check/vllm_standard.py", "--check names"),
        ("set", "--set names a folder of checkpoints"),
    ],
)
def test_what_a_check_with_vllm_needs_is_named(script: str, gone: str, says: str, environment: Path, tmp_path: Path) -> None:
    (tmp_path / gone).rename(tmp_path / "elsewhere")
    done = run(ROOT / "scripts" / script, "environment", "--check", "check", "--set", "set", cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and str(tmp_path / Path(gone).parts[0]) in done.stderr, done.stderr


@pytest.mark.parametrize(("package", "command"), [("hatchling", "-m pip install hatchling"), ("pip", "-m ensurepip")])
def test_check_plugin_names_the_package_that_it_installs_the_checkout_with(
    package: str, command: str, environment: Path, tmp_path: Path
) -> None:
    done = run("-c", WITHOUT, package, ROOT / "scripts" / "check_plugin", "environment", "--check", "check", cwd=tmp_path)
    assert done.returncode == 2 and command in done.stderr
    assert package in run(ROOT / "scripts" / "check_plugin", "--help", cwd=tmp_path).stdout


def test_check_plugin_shows_how_the_part_inside_ended(environment: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    given = ("environment", "--check", "check", "--loads", "--only", "nothing")
    done = run(ROOT / "scripts" / "check_plugin", *given, cwd=tmp_path)
    assert done.returncode == 2 and "ended early (exit code 1)" in done.stderr and "said by the part inside" in done.stderr


def test_check_report_keeps_pages_in_a_folder_that_is_named_from_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "playwright").mkdir()
    (tmp_path / "playwright" / "sync_api.py").write_text(PLAYWRIGHT)
    path = f"{tmp_path}:{ROOT}"
    done = run("-c", LOOKING, ROOT / "scripts" / "check_report", "--keep", "../pictures", cwd=tmp_path, PYTHONPATH=path)
    pictures = tmp_path.parent / "pictures"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{(pictures / 'page.html').as_uri()} {pictures}"
