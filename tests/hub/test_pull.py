"""A model of the Hub is converted to the bytes of the same folder on disk, while its files arrive."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.engine.progress import Event
from humming_convert.hub.arrivals import HELD
from humming_convert.hub.listing import assets, cache_folder
from tests.hub.models import LAYERS, deep, nothing_is_small
from tests.hub.server import Server
from tests.samples import sample
from tests.whole import assert_whole

WAYS: tuple[dict[str, Any], ...] = ({"target": "sm90", "act": "bf16"}, {"target": "sm90", "act": "fp8"}, {"standard": True})


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_small(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return deep(tmp_path / "models")


def weights(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix == ".safetensors"}


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def large(folder: Path) -> list[str]:
    """Whole weight files in a cache."""
    found = (Path(top, n) for top, _, names in os.walk(folder) for n in names if n.endswith(".safetensors"))  # others may be at work there
    return sorted(p.name for p in found if p.is_file())


# ------------------------------------------------------------------ equal bytes
@pytest.mark.parametrize("options", WAYS)
def test_the_bytes_are_those_of_the_folder(hub: Server, model: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    commit = hub.add("org/model", model)
    api.convert(api.plan(model, **options), out=tmp_path / "local")
    api.convert(api.plan("org/model", **options), out=tmp_path / "hub")
    manifest = assert_whole(tmp_path / "hub")
    assert weights(tmp_path / "hub") == weights(tmp_path / "local")
    assert (manifest["source"]["name"], manifest["source"]["revision"]) == ("org/model", commit)
    assert (tmp_path / "hub" / "LICENSE").read_bytes() == (model / "LICENSE").read_bytes()
    assert "A model for tests." in (tmp_path / "hub" / "README.md").read_text()


def test_every_file_is_that_of_converting_the_cached_folder(hub: Server, model: Path, tmp_path: Path) -> None:
    commit = hub.add("org/model", model)
    plan = api.plan("org/model", target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "hub")
    cached = cache_folder() / "models--org--model" / "snapshots" / commit
    local = api.plan(cached, target="sm90", act="bf16")
    assert local.fingerprint == plan.fingerprint
    api.convert(local, out=tmp_path / "local")
    assert content(tmp_path / "hub") == content(tmp_path / "local")


@pytest.mark.parametrize("name", ["awq-4bit-gemm", "mxfp4-gpt-oss"])
def test_a_model_of_one_file_is_converted(hub: Server, tmp_path: Path, name: str) -> None:
    folder = sample(name).write(tmp_path / "models")
    hub.add("org/model", folder)
    api.convert(api.plan(folder, target="sm90", act="bf16"), out=tmp_path / "local")
    api.convert(api.plan("org/model", target="sm90", act="bf16"), out=tmp_path / "hub")
    assert weights(tmp_path / "hub") == weights(tmp_path / "local")


def test_a_branch_a_tag_or_a_commit_may_be_named(hub: Server, model: Path, tmp_path: Path) -> None:
    first = hub.add("org/model", model)
    (model / "LICENSE").write_text("another\n")
    second = hub.add("org/model", model, branch="v2")
    for revision, commit in (("main", first), (first, first), ("v2", second), (second, second)):
        assert api.plan(f"org/model@{revision}", target="sm90", act="bf16").source.revision == commit


# ------------------------------------------------------------------ what is fetched, and when
def test_planning_fetches_headers_and_small_tensors_but_no_whole_weight_file(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    here = api.plan(model, standard=True)
    plan = api.plan("org/model", standard=True)
    assert plan.fingerprint == here.fingerprint
    sizes = {p.name: p.stat().st_size for p in model.glob("*.safetensors")}
    assert all(0 < hub.sent[name] < size / 2 for name, size in sizes.items())
    assert hub.sent["LICENSE"] == hub.sent["tokenizer.json"] == 0
    assert not large(cache_folder())


def test_headers_alone_need_no_tensor(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    plan = api.plan("org/model", target="sm90", act="bf16", headers_only=True)
    headers = {f.name: f.header_bytes for f in plan.source.weights}
    assert all(hub.sent[name] <= max(nbytes, 512) for name, nbytes in headers.items())


def test_a_layer_is_converted_before_the_last_file_comes(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    plan = api.plan("org/model", target="sm90", act="bf16")
    converted, last = threading.Event(), f"model-{LAYERS:05}-of-{LAYERS:05}.safetensors"
    in_time: list[bool] = []

    def hold(method: str, path: str) -> None:
        if path.endswith(last) and method == "HEAD":
            in_time.append(converted.wait(30))

    def progress(event: Event) -> None:
        if event.kind == "tensor" and "layers.0." in event.name:
            converted.set()

    with hub.failing(before=hold):
        api.convert(plan, out=tmp_path / "out", progress=progress)
    assert in_time == [True]


def test_a_file_that_is_cached_is_not_fetched_again(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    api.convert(api.plan("org/model", target="sm90", act="bf16"), out=tmp_path / "one")
    hub.forget()
    api.convert(api.plan("org/model", target="sm90", act="fp8"), out=tmp_path / "two")
    assert not any(name.endswith(".safetensors") for name in hub.sent)


def test_a_weight_file_that_nothing_reads_is_not_fetched(hub: Server, model: Path, tmp_path: Path) -> None:
    (model / "consolidated.safetensors").write_bytes(bytes(5000))
    (model / "pytorch_model.bin").write_bytes(bytes(5000))
    hub.add("org/model", model)
    api.convert(api.plan("org/model", target="sm90", act="bf16"), out=tmp_path / "out")
    assert assert_whole(tmp_path / "out")
    assert hub.sent["consolidated.safetensors"] == hub.sent["pytorch_model.bin"] == 0


# ------------------------------------------------------------------ --stream
@pytest.fixture
def held(hub: Server) -> Iterator[list[int]]:
    """How many weight files the streaming cache held, at each request."""
    seen: list[int] = []

    def look(*_: str) -> None:
        seen.append(len(large(assets("stream"))))

    with hub.failing(before=look):
        yield seen


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("options", [{"target": "sm90", "act": "bf16"}, {"standard": True}, {"target": "sm80", "act": "int8"}])
def test_streaming_holds_few_files_and_leaves_none(
    hub: Server, held: list[int], tmp_path: Path, jobs: int, options: dict[str, Any]
) -> None:
    model = deep(tmp_path / "models", layers=2 * HELD + 2)
    hub.add("org/model", model)
    api.convert(api.plan(model, **options), out=tmp_path / "local", jobs=1)
    api.convert(api.plan("org/model", stream=True, **options), out=tmp_path / "hub", jobs=jobs)
    assert weights(tmp_path / "hub") == weights(tmp_path / "local")
    assert_whole(tmp_path / "hub")
    assert 0 < max(held) <= HELD
    assert not large(assets("stream")) and not large(cache_folder())


def test_streaming_several_targets_holds_few_files(hub: Server, held: list[int], tmp_path: Path) -> None:
    hub.add("org/model", deep(tmp_path / "models", layers=2 * HELD + 2))
    plans = api.plans("org/model", ["sm90", "sm80"], act="bf16", stream=True)
    for result in api.convert_all([(p, tmp_path / api.default_name(p)) for p in plans], jobs=1):
        assert_whole(result.out)
    assert 0 < max(held) <= HELD


def test_streaming_leaves_alone_what_the_cache_had(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    api.fetched("org/model")
    before = large(cache_folder())
    api.convert(api.plan("org/model", target="sm90", act="bf16", stream=True), out=tmp_path / "out")
    assert len(before) == LAYERS and large(cache_folder()) == before


def test_a_streamed_model_is_verified_against_its_source(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    api.convert(api.plan("org/model", target="sm90", act="bf16", stream=True), out=tmp_path / "out")
    found = api.verify(tmp_path / "out", source="org/model")
    assert not found.failed, list(found.findings)


def test_verify_reads_the_commit_that_the_output_was_made_from(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    api.convert(api.plan("org/model", target="sm90", act="bf16"), out=tmp_path / "out")
    hub.models["org/model"].commit({"config.json": b"{}"})
    assert not api.verify(tmp_path / "out", source="org/model").failed


def test_a_folder_is_never_streamed(model: Path) -> None:
    with pytest.raises(api.UsageError, match="is a folder"):
        api.plan(model, target="sm90", act="bf16", stream=True)


# ------------------------------------------------------------------ other verbs
def test_inspect_says_the_same_of_both(hub: Server, model: Path) -> None:
    hub.add("org/model", model)
    here, there = api.inspect(model), api.inspect("org/model")
    assert (there.document()["layers"], there.document()["zero_points"]) == (here.document()["layers"], here.document()["zero_points"])
    assert there.document()["source"]["name"] == "org/model"


def test_parts_of_a_split_run_are_merged(hub: Server, model: Path, tmp_path: Path) -> None:
    hub.add("org/model", model)
    options: dict[str, Any] = {"target": "sm90", "act": "bf16", "shard_size": "200KB"}
    api.convert(api.plan(model, **options), out=tmp_path / "local")
    for part in ("1/2", "2/2"):
        api.convert(api.plan("org/model", **options, stream=True), out=tmp_path / "out", split=part)
    api.merge(tmp_path / "out")
    assert weights(tmp_path / "out") == weights(tmp_path / "local")


def test_a_folder_wins_over_a_hub_id(hub: Server, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("models/deep", sample("awq-4bit-gemm").write(tmp_path / "other"))
    monkeypatch.chdir(tmp_path)
    assert api.plan("models/deep", target="sm90", act="bf16").families == ("gptq",)
    assert api.plan("models/deep@main", target="sm90", act="bf16").families == ("awq",)
