"""What docs/start.md shows and says of refusals is what the tool prints and the pages hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from humming_convert.ci.codes import all_codes, rules
from tests.conftest import ROOT
from tests.samples import sample

DOCS = ROOT / "docs"
PAGE = (DOCS / "start.md").read_text()


def test_the_error_that_is_shown_is_what_a_refused_checkpoint_prints(tmp_path: Path) -> None:
    made, name = sample("ct-int4-sym"), "model.layers.0.mlp.down_proj.weight_scale"
    scale = made.tensors[name].copy()
    scale.reshape(-1)[:2] = np.nan
    folder = replace(made, name="model", tensors={**made.tensors, name: scale}).write(tmp_path)
    command = [sys.executable, "-c", "from humming_convert.cli.main import run; run()", "plan", folder, "--target", "sm90", "--act", "fp8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 3
    assert re.findall(r"^    (error\[.*)$", PAGE, re.M) == [line for line in done.stderr.splitlines() if line.startswith("error[")]


def test_the_page_of_all_codes_has_all_codes_and_that_of_rules_all_rules() -> None:
    findings, of_rules = (DOCS / "findings.md").read_text(), (DOCS / "format-rules.md").read_text()
    assert not {c.code for c in all_codes() if f"`{c.code}`" not in findings}
    assert not {x.rule.code for x in rules() if f"`{x.rule.code}`" not in of_rules}


def test_no_page_sends_readers_for_all_codes_to_the_page_of_rules() -> None:
    """format-rules.md has what a checkpoint and the Hub must keep; codes of requests, checks and machines are in findings.md alone."""
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        for sentence in re.split(r"(?<=\.)\s", page.read_text()):
            if "format-rules.md)" in sentence:
                assert not re.search(r"format-rules\.md\)[^.]*\b(them all|all codes|all of them|every code)\b", sentence), (
                    f"{page.name}: {sentence}"
                )
