"""A finished folder is called done only where it is whole by names and sizes; what is in the files is `verify`'s question, or --overwrite's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.demo.models import Shape, decoder
from humming_convert.demo.samples import DECODERS
from humming_convert.engine import prepare
from humming_convert.engine.finish import CheckFailed
from humming_convert.manifest.digests import manifest_digest
from tests.whole import assert_whole, manifest_of

RANKS = {"target": "sm90", "act": "bf16", "tp": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    row = next(r for r in DECODERS if r["name"] == "gptq-4bit-v1-sym")
    even = Shape(hidden=128, intermediate=256, heads=2, kv_heads=2, head_dim=128)
    made = decoder(**{**row, "shape": even}).write(tmp_path_factory.mktemp("models"))
    (made / "tokenizer.json").write_text("{}")
    return made


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    api.convert(api.plan(model, **RANKS), out=out)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "out"))


def gone(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


NAMES = (
    "model-packed-tp2of2-00001-of-00001.safetensors",
    "model-common-00001-of-00001.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "config.json",
    "README.md",
    "humming_manifest-tp1of2.json",
)


def test_all_files_of_the_folder_are_among_those_that_are_damaged_here(finished: Path) -> None:
    listed = {f["name"] for f in manifest_of(finished)["files"]}
    assert set(NAMES) <= listed and len(listed) == len(NAMES) + 2  # of two ranks, one


@pytest.mark.parametrize("damage", [gone, cut, longer, empty, a_link_to_nothing])
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_folder_is_not_done_and_overwrite_makes_it_again(
    damage: Callable[[Path], None], name: str, model: Path, finished: Path, out: Path
) -> None:
    damage(out / name)
    plan = api.plan(model, **RANKS)
    with pytest.raises(CheckFailed) as failed:
        api.convert(plan, out=out)
    (found,) = failed.value.findings
    assert found.file == name and "--overwrite" in str(found) and "verify" in str(found)
    assert not api.convert(plan, out=out, overwrite=True).already_done
    assert_whole(out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {p.name: p.read_bytes() for p in finished.iterdir()}
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_all_that_is_missing_is_said_at_once(model: Path, out: Path) -> None:
    for name in NAMES:
        (out / name).unlink()
    with pytest.raises(CheckFailed) as failed:
        api.convert(api.plan(model, **RANKS), out=out)
    assert {f.file for f in failed.value.findings} == set(NAMES)


def changed(document: dict[str, Any]) -> None:
    document["totals"]["layers"] += 1


def without_files(document: dict[str, Any]) -> None:
    del document["files"]


def files_of_another_kind(document: dict[str, Any]) -> None:
    document["files"] = [1]
    document["manifest_digest"] = manifest_digest(document)


@pytest.mark.parametrize("name", ["humming_manifest.json", "humming_manifest-tp1of2.json"])
@pytest.mark.parametrize("change", [changed, without_files, files_of_another_kind])
def test_a_damaged_manifest_is_not_done(name: str, change: Callable[[dict[str, Any]], None], model: Path, out: Path) -> None:
    document = json.loads((out / name).read_text())
    change(document)
    (out / name).write_text(json.dumps(document))
    with pytest.raises(CheckFailed) as failed:
        api.convert(api.plan(model, **RANKS), out=out)
    assert failed.value.findings[0].file == name


def test_contents_are_not_read_but_with_overwrite(model: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = prepare.content_digest
    monkeypatch.setattr(prepare, "content_digest", lambda path: read.append(path.name) or real(path))
    path = out / NAMES[0]
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    plan = api.plan(model, **RANKS)
    assert api.convert(plan, out=out).already_done and read == []
    assert not api.convert(plan, out=out, overwrite=True).already_done and path.name in read
    assert_whole(out)
    assert api.convert(plan, out=out, overwrite=True).already_done


def test_files_that_came_later_are_of_no_matter(model: Path, out: Path) -> None:
    (out / "notes.txt").write_text("mine")
    assert api.convert(api.plan(model, **RANKS), out=out).already_done


def test_parts_that_were_joined_and_damaged_are_not_done(model: Path, tmp_path: Path) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "out", split="1/1")
    shutil.copytree(tmp_path / "out.partial", tmp_path / "again")
    api.merge(tmp_path / "out")
    next((tmp_path / "out").glob("model-packed*")).unlink()
    (tmp_path / "again").rename(tmp_path / "out.partial")
    with pytest.raises(CheckFailed):
        api.merge(tmp_path / "out")
    api.merge(tmp_path / "out", overwrite=True)
    assert_whole(tmp_path / "out")
