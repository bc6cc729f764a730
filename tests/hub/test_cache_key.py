"""The cache key of a model of the Hub: its commit fixes what is not fetched to plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from humming_convert import api
from tests.hub.models import deep, nothing_is_small
from tests.hub.server import Server


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_small(monkeypatch)


def key(name: str) -> str:
    return api.cache_key(api.plan(name, target="sm90", act="bf16"))


def test_another_commit_has_another_key_and_the_same_one_the_same(hub: Server, tmp_path: Path) -> None:
    model = deep(tmp_path / "models")
    first = hub.add("org/model", model)
    before = key("org/model")
    (model / "tokenizer.json").write_text('{"changed": true}')
    hub.add("org/model", model)
    assert key("org/model") != before
    assert key(f"org/model@{first}") == before


def test_nothing_is_fetched_for_it(hub: Server, tmp_path: Path) -> None:
    model = deep(tmp_path / "models")
    (model / "tokenizer.json").write_text("{}")
    hub.add("org/model", model)
    plan = api.plan("org/model", target="sm90", act="bf16")
    hub.forget()
    api.cache_key(plan)
    assert not hub.log
