"""The command on the card, run again, plans the same bytes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.manifest.command import command_of
from tests.samples import sample

CLI = [sys.executable, "-c", "from humming_convert.cli.main import run; run()"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"standard": True}, "--standard"),
        ({"target": "h100", "act": "fp8"}, "--target sm90 --act fp8"),
        ({"target": "sm75", "dtype": "fp16"}, "--target sm75 --act auto"),
        (
            {"target": "sm90", "act": "bf16", "exclude": r"o_proj$", "shard_size": "100KB", "e0m": "never"},
            r"--e0m never --exclude 'o_proj$' --shard-size 100000",
        ),
        (
            {"target": "sm90", "act": "fp8", "entry": "humming-layer", "pad_n": 64, "cubin_patch": False},
            "--pad-n 64 --no-cubin-patch --entry humming-layer",
        ),
        (
            {"target": "sm80", "act": "int8", "gptq_zeros": "v1", "humming_version": "0.1.19", "strict": False},
            "--humming-version 0.1.19 --gptq-zeros v1",
        ),
    ],
)
def test_the_command_plans_the_same_bytes(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    model = sample("gptq-4bit-v1-sym").write(tmp_path)
    plan = api.plan(model, **options)
    command = command_of(plan)
    assert command.startswith("humming-convert gptq-4bit-v1-sym --") and says in command
    words = ["plan", *shlex.split(command)[1:], "--json"]
    done = subprocess.run([*CLI, *words], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["fingerprint"] == plan.fingerprint
