"""Keys of `dynamic` are found through a tree; it must say what trying one regular expression after another says."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_convert.formats.patterns import BadPattern, dynamic_overrides

PIECES = [
    "model",
    "layers",
    "0",
    "1",
    "11",
    r"\.",
    ".",
    ".*",
    "^",
    "$",
    "mlp",
    "_",
    r"\d+",
    "(a|b)",
    "[01]",
    "1?",
    "x{2}",
    "|",
    r"\-",
    "-",
    "(?i)M",
]
NAMES = [
    "model",
    "model.layers.0",
    "model.layers.11.mlp",
    "modelxlayers.1",
    "MODEL.layers",
    "layers.1",
    "a",
    "1",
    "",
    "model.layers.1-mlp",
    "x",
]


def slow(dynamic: dict[str, dict[str, int]], name: str) -> str | None:
    for key in dynamic:
        if re.compile(key[2:] if key[:2] in ("-:", "+:") else key).match(name):
            return key
    return None


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), max_size=6), st.sampled_from(NAMES))
def test_the_first_key_that_matches_is_found(keys: list[str], name: str) -> None:
    dynamic: dict[str, dict[str, int]] = {f"{'+-'[i % 2]}:{k}": {} for i, k in enumerate(keys)}
    try:
        overrides = dynamic_overrides(dynamic)
    except BadPattern:
        return
    found = overrides.first_match(name)
    assert (found.key if found is not None else None) == slow(dynamic, name)


@pytest.mark.parametrize("form", [r"+:^model\.layers\.{}\.q_proj$", "model.layers.{}.q_proj", r"+:model\.layers\.{}\..*"])
def test_as_many_keys_as_modules_are_found_without_trying_each(form: str) -> None:
    overrides = dynamic_overrides({form.format(i): {"bits": i} for i in range(3000)})
    start = time.process_time()
    for i in range(0, 3000, 7):
        found = overrides.first_match(f"model.layers.{i}.q_proj")
        assert found is not None and found.values["bits"] == i
    assert time.process_time() - start < 0.5
