"""`verify` finds every damage of a finished folder, and with the source every wrong code."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.manifest.digests import manifest_digest
from tests.samples import sample
from tests.whole import MANIFEST, manifest_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(source, output)"""
    root = tmp_path_factory.mktemp("verify")
    source = sample("gptq-4bit-v2-asym").write(root)
    out = root / "out"
    api.convert(api.plan(source, target="sm90", act="bf16"), out=out)
    return source, out


def test_a_whole_folder_is_found_whole_and_not_changed(made: tuple[Path, Path]) -> None:
    source, out = made
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    found = api.verify(out, source=source)
    assert not found.failed
    assert found.checked["layers proven"] == len(manifest_of(out)["layers"])
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before


def test_any_single_bit_of_any_file_is_found(made: tuple[Path, Path]) -> None:
    _, out = made
    dice = random.Random(1)
    for path in sorted(out.iterdir()):
        raw = path.read_bytes()
        for _ in range(12):
            damaged = bytearray(raw)
            damaged[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
            path.write_bytes(damaged)
            found = api.verify(out)
            path.write_bytes(raw)
            assert found.failed, path.name
            assert any(f.file == path.name for f in found.findings.errors), path.name
    assert not api.verify(out).failed


@pytest.mark.parametrize("cut", [0, 1, 1000])
def test_a_short_or_missing_file_is_found(made: tuple[Path, Path], cut: int) -> None:
    _, out = made
    path = next(out.glob("model-packed-*"))
    raw = path.read_bytes()
    if cut:
        path.write_bytes(raw[:-cut])
    else:
        path.unlink()
    found = api.verify(out)
    path.write_bytes(raw)
    assert any(f.file == path.name for f in found.findings.errors)


def test_a_stray_file_is_found(made: tuple[Path, Path]) -> None:
    _, out = made
    (out / "model-extra.safetensors").write_bytes(b"")
    found = api.verify(out)
    (out / "model-extra.safetensors").unlink()
    assert [f.code for f in found.findings.errors] == ["file-unknown"]


def test_a_folder_without_a_manifest_is_no_output(tmp_path: Path) -> None:
    assert [f.code for f in api.verify(tmp_path).findings.errors] == ["no-manifest"]


def _forge(out: Path, change: Any) -> None:
    """Rewrites the manifest so that its own digest fits again."""
    manifest = manifest_of(out)
    change(manifest)
    manifest["manifest_digest"] = manifest_digest(manifest)
    (out / MANIFEST).write_text(json.dumps(manifest))


def test_words_that_fit_their_digest_but_not_the_source_are_found(made: tuple[Path, Path]) -> None:
    """Somebody repacked a layer wrongly and made the manifest fit: only the source can tell."""
    from xxhash import xxh3_128

    from humming_convert.checkpoint.header import read_header

    source, out = made
    kept = {p: p.read_bytes() for p in out.iterdir()}
    layer = manifest_of(out)["layers"][0]
    tensor = layer["tensors"]["weight"]
    path = out / tensor["file"]
    header = read_header(path)
    assert not isinstance(header, list)
    view = header.tensors[tensor["name"]]
    raw = bytearray(kept[path])
    raw[view.offset] ^= 1
    path.write_bytes(raw)

    def fit(manifest: dict[str, Any]) -> None:
        manifest["layers"][0]["tensors"]["weight"]["digest"] = "xxh3:" + xxh3_128(raw[view.offset : view.offset + view.nbytes]).hexdigest()
        next(f for f in manifest["files"] if f["name"] == path.name)["digest"] = "xxh3:" + xxh3_128(raw).hexdigest()

    _forge(out, fit)
    assert not api.verify(out).failed
    found = api.verify(out, source=source)
    for p, content in kept.items():
        p.write_bytes(content)
    assert [(f.code, f.tensor) for f in found.findings.errors] == [("proof-failed", tensor["name"])]


def test_another_source_is_told(made: tuple[Path, Path], tmp_path: Path) -> None:
    other = sample("gptq-4bit-v1-sym").write(tmp_path)
    found = api.verify(made[1], source=other)
    assert [f.code for f in found.findings.errors] == ["fingerprint-differs"]


# ------------------------------------------------------------------ manifests that somebody else wrote
def rewritten(out: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """With a digest that is right."""
    manifest = manifest_of(out)
    change(manifest)
    manifest["manifest_digest"] = manifest_digest(manifest)
    (out / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture
def copied(made: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[1], tmp_path / "copy"))


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "..", "a/b", "a\\b", "a\0b"])
@pytest.mark.parametrize(
    "place",
    [lambda m: m["files"][0], lambda m: m["layers"][0]["tensors"]["weight"]],
    ids=["files", "tensors"],
)
def test_a_name_outside_the_folder_is_refused_and_not_opened(
    copied: Path, name: str, place: Callable[[dict[str, Any]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(copied, lambda m: place(m).update({"name" if "bytes" in place(m) else "file": name}))
    opened: list[str] = []
    monkeypatch.setattr("builtins.open", lambda path, *_: opened.append(str(path)))
    for found in (api.verify(copied), api.recheck(copied, humming_version="0.1.19")):
        assert [f.code for f in found.findings.errors] == ["name-outside"] and repr(name) in found.findings.errors[0].message
    assert not opened


def test_a_link_out_of_the_folder_is_refused(copied: Path, tmp_path: Path) -> None:
    path = next(copied.glob("model-packed-*"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "name-outside" in {f.code for f in api.verify(copied).findings.errors}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: m.update(format_version=2), "manifest-newer"),
        (lambda m: m["layers"][0].pop("tensors"), "manifest-damaged"),
        (lambda m: m.update(layers="x"), "manifest-damaged"),
        (lambda m: m.update(files=[{}]), "manifest-damaged"),
        (lambda m: m.clear(), "manifest-damaged"),
    ],
)
def test_a_manifest_of_another_shape_is_a_finding_with_a_way_out(copied: Path, change: Callable[[dict[str, Any]], Any], code: str) -> None:
    rewritten(copied, change)
    for found in (api.verify(copied), api.recheck(copied, humming_version="0.1.19")):
        (error,) = found.findings.errors
        assert error.code == code and error.advice and error.file == MANIFEST
        assert "nothing could be checked" in found.summary() or "no layer could be looked at" in found.summary()


def test_a_folder_for_an_unknown_library_cannot_be_rechecked(copied: Path) -> None:
    rewritten(copied, lambda m: m["humming"].update(version="0.0.1", accepted=["0.0.1"], same_bytes=["0.0.1"]))
    assert not api.verify(copied).failed
    (error,) = api.recheck(copied, humming_version="0.1.19").findings.errors
    assert error.code == "humming-unknown" and "0.0.1" in error.message and error.advice


# ------------------------------------------------------------------ files that cannot be read
def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def without_a_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 64)


def gone(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("pattern", ["model-packed-*", "model-common-*"])
@pytest.mark.parametrize(
    ("damage", "code"), [(cut, "file-truncated"), (without_a_header, "header-limit"), (gone, "file-missing"), (a_folder, "file-missing")]
)
def test_a_file_that_cannot_be_read_is_one_finding_and_nothing_is_said_of_its_tensors(
    copied: Path, pattern: str, damage: Callable[[Path], None], code: str
) -> None:
    path = next(copied.glob(pattern))
    whole = api.verify(copied).checked
    damage(path)
    found = api.verify(copied)
    (error,) = found.findings.errors
    assert (error.code, error.file) == (code, path.name) and error.advice
    assert found.unread == {path.name}
    assert found.checked.get("tensors", 0) == (whole["tensors"] if pattern == "model-common-*" else 0)


def test_tensors_that_are_not_in_a_file_that_can_be_read_are_missing(copied: Path) -> None:
    rewritten(copied, lambda m: m["layers"][0]["tensors"]["weight"].update(name="another"))
    assert [(f.code, f.tensor) for f in api.verify(copied).findings.errors] == [("tensor-missing", "another")]


def test_a_layer_whose_file_cannot_be_read_is_not_checked_whatever_its_conversion_proved(copied: Path) -> None:
    from tests.report.samples import verified

    cut(next(copied.glob("model-packed-*")))
    page = verified(copied)
    assert page.state.mark == "failed" and page.layers is not None
    assert {x.verdicts[0].mark for x in page.layers.layers} == {"unchecked"}


@pytest.mark.parametrize("name", ["config.json", "README.md", "model.safetensors.index.json", "model-packed-*"])
@pytest.mark.parametrize(
    ("what", "says"),
    [("folder", "is a folder"), ("link", "is a link to nothing"), ("pipe", "is no regular file"), ("nothing", "is missing")],
)
def test_what_stands_in_the_place_of_a_file_is_named(copied: Path, name: str, what: str, says: str) -> None:
    import os

    path = next(copied.glob(name))
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to("nothing")
    elif what == "pipe":
        os.mkfifo(path)
    (error,) = api.verify(copied).findings.errors
    assert error.code == "file-missing" and says in error.message
