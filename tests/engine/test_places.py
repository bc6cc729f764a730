"""Where an output may stand: the model that is read is never replaced, filled or taken away, and links and dots lead where they say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.engine import places
from humming_convert.engine.folder import Occupied
from humming_convert.engine.places import Overlaps
from tests.samples import sample
from tests.whole import assert_whole, manifest_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """At z/model."""
    made = sample("gptq-4bit-v1-sym").write(tmp_path / "z")
    return made.rename(tmp_path / "z" / "model")


def everything(root: Path) -> dict[str, bytes | str | None]:
    """Names below, what files hold and where links lead."""
    return {
        str(p.relative_to(root)): os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else None
        for p in sorted(root.rglob("*"))
    }


def itself(model: Path) -> Path:
    return model


def above(model: Path) -> Path:
    return model.parent


def inside(model: Path) -> Path:
    return model / "out"


def deep_inside(model: Path) -> Path:
    return model / "a" / "b"


def a_file_of_it(model: Path) -> Path:
    return model / "config.json"


def by_dots(model: Path) -> Path:
    return model / "sub" / ".."


def by_a_link(model: Path) -> Path:
    link = model.parent.parent / "link"
    link.symlink_to(model)
    return link


def above_by_a_link(model: Path) -> Path:
    link = model.parent.parent / "link"
    link.symlink_to(model.parent)
    return link


def inside_by_a_link(model: Path) -> Path:
    link = model.parent.parent / "link"
    link.symlink_to(model)
    return link / "out"


PLACES = (itself, above, inside, deep_inside, a_file_of_it, by_dots, by_a_link, above_by_a_link, inside_by_a_link)
REQUESTS: tuple[dict[str, Any], ...] = ({"target": "sm90", "act": "bf16"}, {"standard": True})
HOWS: tuple[dict[str, Any], ...] = ({}, {"overwrite": True}, {"fresh": True, "overwrite": True}, {"split": "1/2"})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("request_", REQUESTS, ids=["packed", "standard"])
@pytest.mark.parametrize("how", HOWS, ids=["plain", "overwrite", "fresh", "split"])
def test_no_output_stands_where_the_model_is(
    place: Callable[[Path], Path], request_: dict[str, Any], how: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    if place is by_dots:
        (model / "sub").mkdir()
    out = place(model)
    before = everything(tmp_path)
    with pytest.raises(Overlaps, match=r"model.*Name a folder") as refused:
        api.convert(api.plan(model, **request_), out=out, **how)
    assert "--overwrite" not in str(refused.value)
    with pytest.raises(Overlaps):
        api.check_out(model, out)
    assert everything(tmp_path) == before


def test_a_model_that_was_named_by_a_link_is_the_same_model(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    before = everything(tmp_path)
    for out in (model, model.parent, model / "out"):
        with pytest.raises(Overlaps):
            api.convert(api.plan(tmp_path / "link", target="sm90"), out=out, overwrite=True)
    assert everything(tmp_path) == before


def test_a_model_where_the_run_would_write_is_not_written_into(model: Path, tmp_path: Path) -> None:
    model = model.rename(tmp_path / "out.partial")
    for deeper in (False, True):
        if deeper:
            model = model.rename(tmp_path / "model")
            (tmp_path / "out.partial").mkdir()
            model = model.rename(tmp_path / "out.partial" / "model")
        before = everything(tmp_path)
        with pytest.raises(Overlaps, match="where the run would write"):
            api.convert(api.plan(model, target="sm90"), out=tmp_path / "out", fresh=True, overwrite=True)
        assert everything(tmp_path) == before


def test_files_that_a_model_links_to_are_files_of_the_model(model: Path, tmp_path: Path) -> None:
    """A snapshot of the Hub's cache."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in list(model.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    before = everything(tmp_path)
    with pytest.raises(Overlaps, match="holds files of the model"):
        api.convert(api.plan(model, target="sm90"), out=blobs, overwrite=True)
    assert everything(tmp_path) == before


def test_one_of_several_targets_is_enough(model: Path, tmp_path: Path) -> None:
    plans = api.plans(model, ["sm90", "sm80"], act="bf16")
    before = everything(tmp_path)
    with pytest.raises(Overlaps):
        api.convert_all([(plans[0], tmp_path / "good"), (plans[1], model)], overwrite=True)
    assert everything(tmp_path) == before


def test_parts_are_not_joined_where_the_model_is(model: Path, tmp_path: Path) -> None:
    api.convert(api.plan(model, target="sm90"), out=tmp_path / "out", split="1/1")
    (tmp_path / "out").mkdir()
    model.rename(tmp_path / "out" / "model")
    before = everything(tmp_path)
    with pytest.raises(Overlaps, match="holds files of the model"):
        api.merge(tmp_path / "out", source=tmp_path / "out" / "model", overwrite=True)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("at", ["here", "here/model", "x/here"], ids=["mounted", "below", "above"])
def test_folders_are_known_by_what_they_are_not_by_their_names(
    at: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bind mount, or a file system on which HERE is here: another path, one device and inode."""
    other = tmp_path / at
    (other / "sub").mkdir(parents=True)
    out = tmp_path / at.partition("/")[0]
    real = os.stat

    def stat(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        return real(model if Path(path) == other else path, *rest, **more)

    plan = api.plan(model, target="sm90")
    before = everything(tmp_path)
    monkeypatch.setattr(places.os, "stat", stat)
    with pytest.raises(Overlaps):
        api.convert(plan, out=out, overwrite=True)
    monkeypatch.undo()
    assert everything(tmp_path) == before


def test_the_root_is_no_output(model: Path) -> None:
    with pytest.raises(Overlaps):
        api.convert(api.plan(model, target="sm90"), out="/", overwrite=True)


def test_beside_the_model_is_where_an_output_stands(model: Path, tmp_path: Path) -> None:
    for out in (model.with_name("model2"), model.with_name("mode"), tmp_path / "z2" / "model"):
        api.convert(api.plan(model, target="sm90", act="bf16"), out=out)
        assert_whole(out)


# ------------------------------------------------------------------ links and dots
def test_what_a_link_leads_to_is_replaced_and_the_link_stays(model: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    link.symlink_to("disk/real")
    api.convert(api.plan(model, target="sm90", act="bf16"), out=real)
    api.convert(api.plan(model, target="sm90", act="fp8"), out=link, overwrite=True)
    assert link.is_symlink() and manifest_of(real)["act"] == "fp8"
    assert_whole(real)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "link", "z"]
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["real"]
    assert api.convert(api.plan(model, target="sm90", act="fp8"), out=link).already_done


def test_a_link_to_nothing_or_to_something_else_is_refused_and_nothing_is_left(model: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    shutil.rmtree(tmp_path / "real")
    with pytest.raises(Occupied, match="a link to real, where there is nothing"):
        api.convert(api.plan(model, target="sm90"), out=tmp_path / "link", overwrite=True)
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "real")
    (tmp_path / "link" / "stray").touch()
    for number in (1, 2):
        with pytest.raises(Occupied):
            api.convert(api.plan(model, target="sm90", act="fp8"), out=tmp_path / "link", split=f"{number}/2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real", "z"]


def test_the_working_directory_can_be_the_output(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".", "../here", ""):
        (tmp_path / "here").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "here")
        if name:
            api.convert(api.plan(model, target="sm90", act="bf16"), out=name, overwrite=True)
            assert_whole(tmp_path / "here")
        else:
            with pytest.raises(api.UsageError, match="empty"):
                api.convert(api.plan(model, target="sm90", act="bf16"), out=name, overwrite=True)
        shutil.rmtree(tmp_path / "here")
    assert [p.name for p in tmp_path.iterdir()] == ["z"]


def test_a_partial_folder_that_is_a_link_is_not_followed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "out.partial").symlink_to("else")
    with pytest.raises(Occupied, match="is a link; remove it"):
        api.convert(api.plan(model, target="sm90"), out=tmp_path / "out", fresh=True)
    assert list((tmp_path / "else").iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_not_replaced(model: Path, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(Occupied, match="is a file"):
        api.convert(api.plan(model, target="sm90"), out=tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out").read_text() == "mine"
