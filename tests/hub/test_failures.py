"""What goes wrong between here and the Hub is said with what to do; half a file is never a file, and another revision never the planned one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from humming_convert import api
from humming_convert.checkpoint.reading import SourceChanged
from humming_convert.engine.progress import Event
from humming_convert.findings import Findings
from humming_convert.hub import ranges
from humming_convert.hub.failures import HubError, HubNotFound
from humming_convert.hub.listing import assets, cache_folder, resolve
from humming_convert.hub.names import HubName
from humming_convert.hub.streaming import StreamCache
from humming_convert.plan.types import Plan
from tests.hub.models import LAYERS, deep, nothing_is_small
from tests.hub.server import TOKEN, Server
from tests.whole import assert_whole

LAST = f"model-{LAYERS:05}-of-{LAYERS:05}.safetensors"
THIRD = f"model-00003-of-{LAYERS:05}.safetensors"


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_small(monkeypatch)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch, hub: Server) -> None:
    """Between two tries of this program and of the library."""
    from huggingface_hub import file_download
    from huggingface_hub.utils import _http

    for module in (ranges, file_download, _http):
        real = module.time
        monkeypatch.setattr(module, "time", SimpleNamespace(**{n: getattr(real, n) for n in dir(real)} | {"sleep": lambda _: None}))


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


def planned(name: str = "org/model", **options: Any) -> Plan:
    return api.plan(name, target="sm90", act="bf16", **options)


def weights(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix == ".safetensors"}


def local(model: Path, tmp_path: Path, **options: Any) -> dict[str, bytes]:
    api.convert(api.plan(model, target="sm90", act="bf16", **options), out=tmp_path / "local")
    return weights(tmp_path / "local")


def says(code: str, kind: type[HubError] = HubError, name: str = "org/model") -> HubError:
    with pytest.raises(kind) as failed:
        planned(name)
    assert failed.value.finding.code == code and failed.value.finding.advice
    return failed.value


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


@pytest.mark.parametrize(
    ("status", "code"), [(403, "hub-denied"), (401, "hub-denied"), (429, "hub-rate-limit"), (500, "hub-failed"), (503, "hub-failed")]
)
def test_what_the_hub_answers_is_told(hub: Server, model: Path, status: int, code: str) -> None:
    hub.add("org/model", model)
    with hub.failing(status={"/api/models": (status, "Failing")}):
        says(code)
    with hub.failing(status={f"HEAD .*{LAST}": (status, "Failing")}):
        assert says(code).finding.code


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
