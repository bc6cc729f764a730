"""The table of refusals: every row can be said, every code of the room has a row."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from humming_convert.serve import refusals
from humming_convert.serve.refusals import REFUSALS, Refusal, refusal

ROOM = Path(refusals.__file__).parent
SAID = [m for path in ROOM.rglob("*.py") if path.name != "refusals.py" for m in re.findall(r'refusal\(\s*"([a-z0-9-]+)"', path.read_text())]
# manifest/inside.py and manifest/whole.py, for every reader
ELSEWHERE = {
    "name-outside",
    "file-missing",
    "tensor-missing",
    "tensor-dtype",
    "tensor-shape",
    "no-manifest",
    "manifest-newer",
    "manifest-damaged",
}


def test_codes_are_unique_and_each_is_given_by_some_condition() -> None:
    codes = [r.code for r in REFUSALS]
    assert len(set(codes)) == len(codes)
    assert set(SAID) | ELSEWHERE == set(codes)


@pytest.mark.parametrize("row", REFUSALS, ids=lambda r: r.code)
def test_each_says_what_to_do(row: Refusal) -> None:
    facts = {name: "FACT" for _, name, _, _ in string.Formatter().parse(row.advice) if name}
    finding = refusal(row.code, "what differs", layer="model.layers.0", **facts)
    assert finding.severity == "error" and finding.advice and "{" not in finding.advice and row.when


def test_a_fact_that_the_advice_needs_may_not_be_left_out() -> None:
    with pytest.raises(KeyError):
        refusal("sm-differs", "what differs")
