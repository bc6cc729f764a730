"""Another revision is never taken for the planned one, and offline what is missing is said by file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from humming_convert import api
from humming_convert.checkpoint.reading import SourceChanged
from humming_convert.engine.progress import Event
from humming_convert.findings import Findings
from humming_convert.hub.failures import HubError, HubNotFound
from humming_convert.hub.listing import resolve
from humming_convert.hub.names import HubName
from humming_convert.hub.streaming import StreamCache
from tests.hub.asking import LAST, THIRD, local, planned, says, weights
from tests.hub.models import deep, nothing_is_small
from tests.hub.server import Server
from tests.whole import assert_whole


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_small(monkeypatch)


@pytest.fixture(autouse=True)
def _quick(no_waiting: None) -> None: ...


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return deep(tmp_path / "models")


@pytest.fixture
def offline(hub: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def go() -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        hub.forget()

    return go


# ------------------------------------------------------------------ revisions
def test_a_branch_that_moves_on_is_converted_as_it_was_planned(hub: Server, model: Path, tmp_path: Path) -> None:
    commit = hub.add("org/model", model)
    plan = planned()
    hub.models["org/model"].commit({"config.json": b"{}"})
    api.convert(plan, out=tmp_path / "out")
    assert assert_whole(tmp_path / "out")["source"]["revision"] == commit
    assert weights(tmp_path / "out") == local(model, tmp_path)


def test_a_branch_that_moves_while_it_is_resolved_is_told(hub: Server, model: Path) -> None:
    hub.add("org/model", model)

    def move(method: str, path: str) -> None:
        if method == "HEAD":
            hub.models["org/model"].commit({"config.json": b"{}"})

    with hub.failing(before=move):
        assert "moved from" in str(says("hub-revision"))


@pytest.mark.parametrize("place", ["data", "header", "length"])
def test_a_commit_whose_files_change_is_refused(hub: Server, model: Path, tmp_path: Path, place: str) -> None:
    commit = hub.add("org/model", model)
    plan = planned()
    files = hub.models["org/model"].commits[commit]
    at = {"data": -1, "header": 20, "length": -1}[place]
    raw = bytearray(files[LAST])
    raw[at] ^= 1
    files[LAST] = bytes(raw) + (b"\0" if place == "length" else b"")
    with pytest.raises(SourceChanged) as failed:
        api.convert(plan, out=tmp_path / "out")
    assert failed.value.finding.code == "source-changed" and failed.value.finding.file == LAST
    assert not (tmp_path / "out").exists()


def test_a_commit_that_is_gone_is_refused(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    plan = planned()
    hub.models["org/model"].commits.clear()
    hub.models["org/model"].commit({"config.json": b"{}"})
    with pytest.raises(HubNotFound):
        api.convert(plan, out=tmp_path / "out")


def test_a_file_that_changes_in_the_cache_while_it_is_read_is_refused(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    cached = (api.fetched("org/model") / LAST).resolve()
    plan = planned()

    def change(event: Event) -> None:
        if event.kind == "tensor":
            raw = bytearray(cached.read_bytes())
            raw[-1] ^= 1
            cached.write_bytes(raw)

    with pytest.raises(SourceChanged):
        api.convert(plan, out=tmp_path / "out", progress=change, jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_in_the_cache_after_the_plan_is_refused(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    cached = (api.fetched("org/model") / LAST).resolve()
    plan = planned()
    raw = bytearray(cached.read_bytes())
    raw[-1] ^= 1
    cached.write_bytes(raw)
    with pytest.raises(SourceChanged, match="since the plan was made"):
        api.convert(plan, out=tmp_path / "out")


# ------------------------------------------------------------------ offline
def test_what_is_in_the_cache_works_offline(hub: Server, model: Path, tmp_path: Path, offline: Callable[[], None]) -> None:
    hub.add("org/model", model)
    api.convert(planned(), out=tmp_path / "online")
    offline()
    for name in ("org/model", "org/model@main"):
        api.convert(planned(name), out=tmp_path / "offline", overwrite=True)
        assert {p.name: p.read_bytes() for p in (tmp_path / "offline").iterdir()} == {
            p.name: p.read_bytes() for p in (tmp_path / "online").iterdir()
        }
    assert not hub.log


def test_rule_hub_offline(hub: Server, model: Path, offline: Callable[[], None]) -> None:
    hub.add("org/model", model)
    folder = api.fetched("org/model")
    for name in (THIRD, LAST):
        (folder / name).unlink()
    offline()
    error = says("hub-offline")
    assert [f.file for f in error.findings] == [THIRD, LAST]


def test_a_model_that_was_never_fetched_is_told_offline(hub: Server, model: Path, offline: Callable[[], None]) -> None:
    commit = hub.add("org/model", model)
    offline()
    says("hub-offline")
    says("hub-offline", name=f"org/model@{commit}")


def test_rule_hub_unlisted(hub: Server, model: Path, tmp_path: Path, offline: Callable[[], None]) -> None:
    """Fetched by another program, of which nobody knows what it left out."""
    from huggingface_hub import snapshot_download

    hub.add("org/model", model)
    snapshot_download("org/model", ignore_patterns=["LICENSE"])
    offline()
    plan = planned()
    assert [f.severity for f in plan.findings if f.code == "hub-unlisted"] == ["warning"]
    api.convert(plan, out=tmp_path / "out")
    assert weights(tmp_path / "out") == local(model, tmp_path)


# ------------------------------------------------------------------ room
def test_rule_hub_no_space(hub: Server, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", model)
    plan, real = planned(), shutil.disk_usage

    def full(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=real(path).free if "hf" not in str(path) else 1000)

    monkeypatch.setattr(shutil, "disk_usage", full)
    with pytest.raises(HubError, match="--stream") as failed:
        api.convert(plan, out=tmp_path / "out")
    assert failed.value.finding.code == "hub-no-space"


def test_rule_hub_in_use(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    other = StreamCache(resolve(HubName("org/model"), Findings()))
    other.lock()
    with pytest.raises(HubError) as failed:
        api.convert(planned(stream=True), out=tmp_path / "out")
    assert failed.value.finding.code == "hub-in-use"
    other.unlock(clear=False)
    api.convert(planned(stream=True), out=tmp_path / "out")
