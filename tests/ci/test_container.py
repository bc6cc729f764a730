"""The container recipe: what it copies is enough to build the package, and what it runs needs no rights and no home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci.runner import ROOT
from tests.samples import sample

LINES = re.sub(r"\\\n\s*", " ", (ROOT / "container" / "Containerfile").read_text()).splitlines()


def instructions(name: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.startswith(name + " ")]


def test_it_runs_as_a_user_by_number_without_rights() -> None:
    """A number: clusters that forbid root can see it without the image's table of users."""
    assert instructions("USER") == ["10001"]
    assert LINES.index("USER 10001") < LINES.index('ENTRYPOINT ["humming-convert"]')


def test_what_it_copies_is_enough_for_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("build")
    for line in instructions("COPY"):
        if line.startswith("--from="):
            continue
        *sources, to = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / "src" / to)
            else:
                (tmp_path / "src" / to).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, tmp_path / "src" / to)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", tmp_path / "src"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert len(list((tmp_path / "dist").glob("*.whl"))) == 1


def test_a_conversion_needs_no_home(tmp_path: Path) -> None:
    """Neither HOME nor /cache can be written: as in a container whose files are read-only, without a volume."""
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("a folder below a file can be made by no user, root included")
    env = {**os.environ, "HOME": str(blocked / "home"), "HUMMING_CONVERT_CACHE": str(blocked / "cache"), "HF_HOME": str(blocked / "hf")}
    env.pop("XDG_CACHE_HOME", None)
    run = [sys.executable, "-c", "from humming_convert.cli.main import run; run()", model, "--target", "sm90", "--out", tmp_path / "out"]
    done = subprocess.run(run, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
