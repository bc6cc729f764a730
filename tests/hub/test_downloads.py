"""How far the weight files have come is told while they come: bytes, rate and time left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from humming_convert import api
from humming_convert.cli import progress as shown
from humming_convert.engine.progress import Counter, Event
from humming_convert.hub import downloads
from humming_convert.hub.downloads import arrived
from humming_convert.hub.listing import HubFile
from tests.hub.models import LAYERS, deep, nothing_is_small
from tests.hub.server import Server

LAST = f"model-{LAYERS:05}-of-{LAYERS:05}.safetensors"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_small(monkeypatch)
    monkeypatch.setattr(downloads, "EVERY", 0.02)


@pytest.fixture
def model(hub: Server, tmp_path: Path) -> Path:
    folder = deep(tmp_path / "models")
    hub.add("org/model", folder)
    return folder


def of_fetching(events: list[Event]) -> list[Event]:
    return [e for e in events if e.kind == "fetch"]


def all_bytes(model: Path) -> int:
    return sum(p.stat().st_size for p in model.glob("*.safetensors"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversion_tells_how_much_has_come(hub: Server, model: Path, tmp_path: Path, stream: bool) -> None:
    events: list[Event] = []
    with hub.failing(slow={LAST: 2.0}):  # many times as long as files are looked at apart, also where the machine has other work
        api.convert(api.plan("org/model", target="sm90", act="bf16", stream=stream), out=tmp_path / "out", progress=events.append)
    told = of_fetching(events)
    assert {e.total for e in told} == {all_bytes(model)}
    assert [e.done for e in told] == sorted(e.done for e in told)
    assert told[-1].done == all_bytes(model) and told[-1].eta in (0, None)
    assert any(e.name == LAST and e.done < e.total for e in told), "the file that is slow is named while it comes"
    assert any(e.done not in {0, e.total} and e.rate > 0 and e.eta is not None for e in told)


def test_fetching_to_verify_tells_it_too(hub: Server, model: Path) -> None:
    events: list[Event] = []
    with hub.failing(slow={LAST: 0.3}):
        api.fetched("org/model", progress=events.append)
    assert of_fetching(events)[-1].done == all_bytes(model)


def test_nothing_is_told_where_nothing_has_to_come(hub: Server, model: Path, tmp_path: Path) -> None:
    api.fetched("org/model")
    events: list[Event] = []
    api.convert(api.plan("org/model", target="sm90", act="bf16"), out=tmp_path / "out", progress=events.append)
    assert events and not of_fetching(events)


def test_a_part_of_a_file_counts_and_one_that_is_only_sized_does_not(tmp_path: Path) -> None:
    file = HubFile(name="m", nbytes=1 << 20, sha256="ab" * 32)
    assert arrived(tmp_path, file) == 0
    part = tmp_path / f"{file.sha256}.1234.incomplete"
    part.write_bytes(bytes([1]) * 8192)
    assert arrived(tmp_path, file) == 8192
    with open(part, "r+b") as f:
        f.truncate(1 << 20)
    assert arrived(tmp_path, file) <= 16384


def test_the_rate_leaves_out_what_was_there_before() -> None:
    clock: Iterator[float] = iter([0.0, 10.0, 12.0])
    events: list[Event] = []
    counter = Counter(0, events.append, clock=lambda: next(clock))
    counter.fetched("a", 600, 1000)
    counter.fetched("a", 800, 1000)
    assert (events[-1].rate, events[-1].eta) == (100, 2)


def test_it_is_a_line_of_json_of_its_own_kind(capsys: pytest.CaptureFixture[str]) -> None:
    now: Iterator[float] = iter([0.0, 2.0, 2.1, 2.2])
    with shown.display(as_json=True, quiet=False, clock=lambda: next(now)) as tell:
        assert tell is not None
        tell(Event(kind="fetch", name="a", done=1, total=4, rate=2.0, eta=1.5))
        tell(Event(kind="tensor", name="b", done=1, total=9))
        tell(Event(kind="fetch", name="a", done=2, total=4))
    first, second = (json.loads(x) for x in capsys.readouterr().err.splitlines())
    assert first == {"event": "fetch", "name": "a", "done": 1, "total": 4, "bytes_per_second": 2, "eta": 1.5}
    assert second["event"] == "tensor", "each kind keeps its own pace"


def test_it_is_said_in_words() -> None:
    event = Event(kind="fetch", name="m.safetensors", done=500_000, total=2_000_000, rate=1e6, eta=1.5)
    assert shown.text(event) == "fetched  25 %  500 kB of 2 MB  1 MB/s  2 s left  m.safetensors"


def test_fetching_and_writing_share_the_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(shown.sys, "stderr", screen)
    now: Iterator[float] = iter(range(9))
    with shown.display(as_json=False, quiet=False, clock=lambda: next(now)) as tell:
        assert tell is not None
        tell(Event(kind="fetch", name="m", done=1, total=4))
        tell(Event(kind="tensor", name="layer", done=1, total=2))
        tell(Event(kind="fetch", name="m", done=4, total=4))
    drawn = screen.getvalue().split("\r\x1b[2K")
    assert "layer" in drawn[2] and "  |  fetched" in drawn[2]
    assert "fetched" not in drawn[3], "what has come is not told for ever"
