"""One of a thing is not several: what is printed of a model with as little in it as can be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from humming_convert.findings import counted
from tests.samples import sample

THINGS = "files|tensors|layers|ranks|errors|warnings|kernels|modules|rows|configurations|experts|ranges|kinds|models|parts|groups"
WRONG = re.compile(rf"(?<![\d,.])1 (?:other |plain |more |tensor-parallel )?(?:{THINGS})\b")
CLI = [sys.executable, "-c", "from humming_convert.cli.main import run; run()"]


def call(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [*CLI, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=120, env={**os.environ, "NO_COLOR": "1"}
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`one`: a module, another tensor, a file."""
    from safetensors.numpy import save_file

    place = tmp_path_factory.mktemp("words")
    made = sample("gptq-4bit-v1-sym")
    prefix = "model.layers.0.self_attn.o_proj."
    tensors = {name: np.ascontiguousarray(t) for name, t in made.tensors.items() if name.startswith(prefix)}
    folder = made.write(place)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "mine"}  # of no family: no part is missing
    (place / "one").mkdir()
    (place / "one" / "config.json").write_text(json.dumps(config))
    save_file({**tensors, "model.norm.weight": np.ones(4, np.float16)}, place / "one" / "model.safetensors")
    return place


VERBS = [
    "inspect one",
    "plan one --target sm90 --act bf16",
    "one --target sm90 --act bf16 --out out",
    "verify out --source one",
    "doctor out",
    "recheck out --humming-version 0.1.19",
    "one --target sm90 --act bf16 --split 1/2 --out parts",
    "kernels clean out",
    "inspect cut",
    "verify bad",
]


def test_one_is_singular_in_all_that_is_printed(place: Path) -> None:
    said = []
    for verb in VERBS:
        said.append(call(*verb.split(), cwd=place))
        if verb.startswith("one --target sm90 --act bf16 --out"):
            (place / "cut").mkdir()
            (place / "cut" / "config.json").write_bytes((place / "one" / "config.json").read_bytes())
            (place / "cut" / "model.safetensors").write_bytes((place / "one" / "model.safetensors").read_bytes()[:-4])
            (place / "bad").mkdir()
            for p in (place / "out").iterdir():
                (place / "bad" / p.name).write_bytes(p.read_bytes())
            path = next((place / "bad").glob("model-packed-*"))
            path.write_bytes(path.read_bytes()[:-4])
            said.append((place / "out" / "README.md").read_text())
    found = [line for text in said for line in text.splitlines() if WRONG.search(line)]
    assert not found
    for one in ("1 layer,", "1 other tensor", "1 file", "1 layer proven", "1 plain tensor", "1 tensor is incomplete"):
        assert any(one in text for text in said), (one, said)


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [(0, ("file",), "0 files"), (1, ("file",), "1 file"), (2, ("file",), "2 files"), (2, ("kind of x", "kinds of x"), "2 kinds of x")],
)
def test_counted(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said
