"""What goes wrong between here and the Hub is said with what to do; half a file is never a file, and another revision never the planned one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from humming_convert import api
from humming_convert.engine.progress import Event
from humming_convert.hub.failures import HubError, HubNotFound
from humming_convert.hub.listing import assets, cache_folder
from tests.hub.asking import LAST, THIRD, local, planned, says, weights
from tests.hub.models import deep, nothing_is_small
from tests.hub.server import TOKEN, Server
from tests.whole import assert_whole


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_small(monkeypatch)


@pytest.fixture(autouse=True)
def _quick(no_waiting: None) -> None: ...


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return deep(tmp_path / "models")


# ------------------------------------------------------------------ names and rights
def test_rule_hub_not_found(hub: Server) -> None:
    assert "no token" in str(says("hub-not-found", HubNotFound))


def test_rule_hub_revision(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    assert "v9" in str(says("hub-revision", HubNotFound, "org/model@v9"))


def test_a_private_model_is_seen_with_its_token_only(hub: Server, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", model)
    hub.models["org/model"].private = True
    assert "private" in str(says("hub-not-found", HubNotFound))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert planned().layers


def test_rule_hub_gated(hub: Server, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", model)
    hub.models["org/model"].gated = True
    assert "ask for access" in str(says("hub-gated"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    assert "this token has no access" in str(says("hub-gated"))


def test_the_token_is_not_sent_to_the_store(hub: Server, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/model", model)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    api.convert(planned(), out=tmp_path / "out")
    assert hub.tokens_in_store == 0 and hub.sent[LAST]


def answered(hub: Server, model: Path, status: int, code: str) -> None:
    """To the first question, and to one about a weight file."""
    hub.add("org/model", model)
    for asked in ("/api/models", f"HEAD .*{LAST}"):
        with hub.failing(status={asked: (status, "Failing")}):
            says(code)


@pytest.mark.parametrize("status", [401, 403])
def test_rule_hub_denied(hub: Server, model: Path, status: int) -> None:
    answered(hub, model, status, "hub-denied")


def test_rule_hub_rate_limit(hub: Server, model: Path) -> None:
    answered(hub, model, 429, "hub-rate-limit")


@pytest.mark.parametrize("status", [418, 500, 503])
def test_rule_hub_failed(hub: Server, model: Path, status: int) -> None:
    answered(hub, model, status, "hub-failed")


def test_rule_hub_file_missing(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    with hub.failing(status={f"resolve/.*{LAST}": (404, "EntryNotFound")}):
        assert says("hub-file-missing").finding.file == LAST


def test_a_list_that_leads_out_of_the_folder_is_refused(hub: Server, model: Path) -> None:
    commit = hub.add("org/model", model)
    hub.models["org/model"].commits[commit]["../../evil.json"] = b"{}"
    says("hub-failed")


# ------------------------------------------------------------------ parts of files
def test_rule_hub_ranges(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    with hub.failing(ignore_ranges=True):
        says("hub-ranges")
    assert not any(hub.sent[p.name] > p.stat().st_size for p in model.glob("*.safetensors"))


def test_a_part_that_is_cut_off_is_read_again(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    with hub.failing(cut={LAST: (100, 2)}):
        assert planned().fingerprint == api.plan(model, target="sm90", act="bf16").fingerprint


# ------------------------------------------------------------------ downloads that are cut off
def test_a_download_that_is_cut_off_goes_on(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    plan = planned()
    with hub.failing(cut={THIRD: (30_000, 3), LAST: (0, 2)}):
        api.convert(plan, out=tmp_path / "out")
    assert weights(tmp_path / "out") == local(model, tmp_path)


@pytest.mark.parametrize("stream", [False, True])
def test_after_a_download_that_fails_the_same_command_goes_on(hub: Server, model: Path, tmp_path: Path, stream: bool) -> None:
    hub.add("org/model", model)
    plan = planned(stream=stream, shard_size="100KB")
    written = threading.Event()

    def hold(method: str, path: str) -> None:
        if path.endswith(LAST):
            written.wait(30)

    def tell(event: Event) -> None:
        if event.kind == "file":
            written.set()

    with hub.failing(cut={LAST: (0, 1000)}, before=hold), pytest.raises(HubError) as failed:
        api.convert(plan, out=tmp_path / "out", progress=tell)
    assert failed.value.finding.code == "hub-unreachable" and failed.value.finding.file == LAST
    assert not (tmp_path / "out").exists()
    for cache in (cache_folder(), assets("stream")):
        assert not [p for p in cache.rglob("*") if p.name == LAST and p.is_file()]
    events: list[Event] = []
    api.convert(planned(stream=stream, shard_size="100KB"), out=tmp_path / "out", progress=events.append)
    assert any(e.kind == "resume" for e in events)
    assert assert_whole(tmp_path / "out") and weights(tmp_path / "out") == local(model, tmp_path, shard_size="100KB")


def test_an_incomplete_file_in_the_cache_is_not_taken_for_a_whole_one(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    path = api.fetched("org/model") / LAST
    whole = path.read_bytes()
    path.resolve().write_bytes(whole[:-10])
    assert "in the cache" in str(says("hub-file-damaged"))


def test_rule_hub_file_damaged(hub: Server, model: Path, tmp_path: Path) -> None:
    """Of the right length, and with the header that was planned with."""
    hub.add("org/model", model)
    plan = planned()
    right = (model / LAST).read_bytes()
    with hub.failing(spoil={LAST: right[:-1] + bytes([right[-1] ^ 1])}), pytest.raises(HubError) as failed:
        api.convert(plan, out=tmp_path / "out")
    assert failed.value.finding.code == "hub-file-damaged" and failed.value.finding.file == LAST
    assert not (tmp_path / "out").exists() and not [p for p in cache_folder().rglob(LAST) if p.is_file()]
    api.convert(planned(), out=tmp_path / "out")
    assert weights(tmp_path / "out") == local(model, tmp_path)
