"""The same source and options give the same bytes for any number of workers, hash seed, locale, umask, date, budget and split."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.faults import content
from tests.samples import sample

LOCALES = ("C", "C.UTF-8", "POSIX", "de_DE.UTF-8")
CODE = (  # the clock of Python is years away; the folder's own clock is the system's
    "import os, sys, time; os.umask(int(sys.argv[1], 8)); shift = float(sys.argv[2]); real = time.time; time.time = lambda: real() + shift\n"
    "from humming_convert.cli.main import run; sys.argv = ['humming-convert', *sys.argv[3:]]; run()"
)


def run(model: Path, out: Path, dice: random.Random, *more: str) -> None:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(dice.randrange(1 << 32)),
        "LC_ALL": dice.choice(LOCALES),
        "TZ": dice.choice(("UTC", "Asia/Tokyo")),
    }
    umask, shift = dice.choice(("022", "077", "002")), str(dice.uniform(-1e9, 1e9))
    options = ["--target", "sm90", "--act", "fp8", "--shard-size", "60KB", "--quiet", "--jobs", str(dice.randint(1, 8)), *more]
    subprocess.run([sys.executable, "-c", CODE, umask, shift, str(model), "--out", str(out), *options], env=environment, check=True)


def rounds(folder: Path, count: int) -> int:
    model = sample("ct-int4-qwen3-moe").write(folder / "models")
    dice, want = random.Random(0), None
    for number in range(count):
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        if number % 5 == 4:
            parts = dice.randint(2, 4)
            for part in dice.sample(range(1, parts + 1), parts):
                run(model, out, dice, "--split", f"{part}/{parts}")
            merge = "from humming_convert import api; import sys; api.merge(sys.argv[1])"
            subprocess.run([sys.executable, "-c", merge, str(out)], check=True)
        else:
            run(model, out, dice, *dice.choice(((), ("--io", "mmap"), ("--max-memory", "200MB"))))
        got = content(out)
        assert want is None or got == want, [n for n in got if want is not None and got[n] != want.get(n)]
        want = got
    return count


def test_runs_in_other_surroundings_give_the_same_bytes(tmp_path: Path) -> None:
    assert rounds(tmp_path, 3) == 3


@pytest.mark.soak
def test_fifty_runs_in_other_surroundings_give_the_same_bytes(tmp_path: Path) -> None:
    print(f"\ndeterminism: {rounds(tmp_path, 50)} runs, equal bytes")
