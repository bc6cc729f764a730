"""JSON that means one thing only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_convert.checkpoint.strict_json import DEPTH, depth_of, parse_object

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=4),
    max_leaves=10,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, st.booleans())
def test_depth_is_that_of_the_value_whatever_its_strings_hold(value: Any, ascii_: bool) -> None:
    assert depth_of(json.dumps(value, ensure_ascii=ascii_).encode()) == depth(value)


@pytest.mark.parametrize("text", [r'{"a": "[[[\"[[["}', r'{"a\\": [1]}', '{"[": "]"}'])
def test_brackets_and_quotes_inside_strings_do_not_count(text: str) -> None:
    assert depth_of(text.encode()) == depth(json.loads(text))


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), VALUES, max_size=4))
def test_good_json_reads_as_it_is(value: dict[str, Any]) -> None:
    got, found = parse_object(json.dumps(value).encode(), "x.json")
    assert not found
    assert json.dumps(got) == json.dumps(value)


@given(st.binary())
def test_any_bytes_give_an_object_or_findings(raw: bytes) -> None:
    got, found = parse_object(raw, "x.json")
    assert found or json.dumps(got) == json.dumps(json.loads(raw))


def test_as_deep_as_allowed_is_read() -> None:
    raw = b'{"a":' + b"[" * (DEPTH - 1) + b"]" * (DEPTH - 1) + b"}"
    assert not parse_object(raw, "x.json")[1]


def test_every_key_that_stands_twice_is_named_once_with_its_count() -> None:
    _, found = parse_object(b'{"a": {"b": 1, "b": 2}, "c": {"b": 1, "b": 1, "b": 1}, "d": 1, "d": 2}', "x.json")
    assert {f.code for f in found} == {"json-duplicate-key"}
    assert [(f.message.split("'")[1], f.count) for f in found] == [("b", 2), ("d", 1)]


def test_a_pair_of_surrogates_is_a_character() -> None:
    got, found = parse_object(b'{"a": "\\ud83d\\ude00"}', "x.json")
    assert not found
    assert got == {"a": "\U0001f600"}
