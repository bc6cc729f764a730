"""Tensors read from mapped files and by position, and sources that change meanwhile."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.numpy import load_file

from humming_convert.checkpoint import (
    Read,
    SourceChanged,
    SourceFile,
    SourceUnreadable,
    TensorView,
    reader,
    snapshot,
    source_digest,
    unchanged,
)
from humming_convert.checkpoint.header import Header, read_header
from humming_convert.checkpoint.reading import FOLIO, RESIDENT, WHOLE
from humming_convert.checkpoint.tensors import read_mapped
from tests.checkpoint.making import entry, framed, weights

MODES: list[Literal["mmap", "read"]] = ["mmap", "read"]
TENSORS = {
    "byte": ("U8", (1,)),
    "a": ("F32", (3, 5)),
    "b": ("I64", (2,)),
    "none": ("F16", (0, 4)),
    "scalar": ("F64", ()),
    "c": ("I16", (2, 1, 3)),
}


def header_of(path: Path) -> Header:
    got = read_header(path)
    assert isinstance(got, Header)
    return got


def source(path: Path) -> SourceFile:
    header = header_of(path)
    return SourceFile(name=path.name, path=path, nbytes=header.nbytes, header_bytes=header.header_bytes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(weights(TENSORS))
    return path


@pytest.mark.parametrize("read", [reader("mmap"), reader("read"), read_mapped()], ids=["mmap", "read", "read_mapped"])
def test_both_ways_read_what_the_library_reads_at_odd_offsets_too(file: Path, read: Read) -> None:
    theirs = load_file(file)
    views = header_of(file).tensors
    assert views.keys() == theirs.keys()
    for name, view in views.items():
        got = read(view)
        assert (got.dtype, got.shape) == (view.numpy, view.shape)
        assert got.tobytes() == theirs[name].tobytes()
        with pytest.raises(ValueError, match="read-only"):
            got[...] = 0


@given(st.integers(0, 2), st.integers(0, 3), st.sampled_from(MODES))
def test_a_part_of_a_tensor_is_a_view_like_any_other(
    tmp_path_factory: pytest.TempPathFactory, first: int, rows: int, io: Literal["mmap", "read"]
) -> None:
    path = tmp_path_factory.mktemp("part") / "x.safetensors"
    path.write_bytes(weights(TENSORS))
    view = header_of(path).tensors["a"]
    rows = min(rows, 3 - first)
    part = replace(view, shape=(rows, 5), offset=view.offset + first * 20, nbytes=rows * 20)
    assert np.array_equal(reader(io)(part), reader(io)(view)[first : first + rows])


@pytest.mark.parametrize("io", MODES)
def test_a_tensor_beyond_four_gib_is_read_where_it_is(tmp_path: Path, io: Literal["mmap", "read"]) -> None:
    path, hole = tmp_path / "x.safetensors", 5 * 2**30
    raw = framed({"hole": entry("U8", (hole,), 0, hole), "end": entry("I32", (2,), hole, hole + 8)})
    with path.open("wb") as f:
        f.write(raw)
        f.seek(len(raw) + hole)  # sparse
        f.write(np.array([7, -7], "<i4").tobytes())
    assert reader(io)(header_of(path).tensors["end"]).tolist() == [7, -7]
    path.unlink()


@pytest.mark.parametrize("io", MODES)
@pytest.mark.parametrize("when", ["before", "between"])
def test_a_file_that_became_shorter_is_a_finding_and_no_signal(file: Path, io: Literal["mmap", "read"], when: str) -> None:
    views, read = header_of(file).tensors, reader(io)
    if when == "between":
        read(views["a"])
    os.truncate(file, views["c"].offset + 1)
    assert read(views["a"]).shape == (3, 5)
    with pytest.raises(SourceChanged) as raised:
        read(views["c"])
    finding = raised.value.finding
    assert (finding.severity, finding.code, finding.tensor, finding.file) == ("error", "source-changed", "c", file.name)


@pytest.mark.parametrize("io", MODES)
@pytest.mark.parametrize("change", [Path.unlink, lambda p: (p.unlink(), os.mkfifo(p))], ids=["gone", "pipe"])
def test_a_file_that_is_gone_is_a_finding(file: Path, io: Literal["mmap", "read"], change: Callable[[Path], Any]) -> None:
    view = header_of(file).tensors["a"]
    change(file)
    with pytest.raises(SourceUnreadable) as raised:
        reader(io)(view)
    assert raised.value.finding.file == file.name


def test_readers_close_their_files(file: Path) -> None:
    view = header_of(file).tensors["a"]
    before = len(os.listdir("/proc/self/fd"))
    for io in MODES:
        for _ in range(3):
            reader(io)(view)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("apart", "dropped"), [(FOLIO, 63 * FOLIO // RESIDENT), (4096, 0)])
def test_pages_that_a_small_look_maps_are_counted_whole(apart: int, dropped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that keeps files in pieces of 2 MB maps all of one at a touch: 16 GB of experts, looked at in their first rows, were 3.7 GB
    of this process. Small tensors side by side are one piece."""
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 64 * FOLIO)
    dropped_files: list[object] = []

    class Counted(mmap.mmap):
        def madvise(self, *given: int) -> None:
            assert given == (mmap.MADV_DONTNEED,)
            dropped_files.append(self)
            super().madvise(*given)

    monkeypatch.setattr(mmap, "mmap", Counted)
    read = reader("mmap")
    for i in range(64):
        assert not read(TensorView(name="x", file=path, dtype="U8", shape=(16,), offset=i * apart, nbytes=16)).any()
    assert len(dropped_files) == dropped


def test_an_array_outlives_its_reader(file: Path) -> None:
    view = header_of(file).tensors["a"]
    expected = load_file(file)["a"]
    assert np.array_equal(reader("mmap")(view), expected)  # the reader is gone when the comparison runs


def test_a_source_that_stays_is_unchanged(file: Path) -> None:
    files = [source(file)]
    assert unchanged(snapshot(files), files) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda p: p.write_bytes(p.read_bytes() + b"x"), "size"),
        (lambda p: p.write_bytes(p.read_bytes().replace(b'"byte"', b'"bite"')), "header"),
        (lambda p: os.utime(p, ns=(1, 1)), "time"),
        (Path.unlink, "cannot be opened"),
    ],
)
def test_a_source_that_changes_is_named_with_what_changed(file: Path, change: Callable[[Path], Any], word: str) -> None:
    files = [source(file)]
    before = snapshot(files)
    change(file)
    (finding,) = unchanged(before, files)
    assert finding.severity == "error"
    assert finding.file == file.name
    assert word in finding.message


def test_a_small_file_has_a_digest_of_its_content(file: Path) -> None:
    assert source_digest(source(file)) == "xxh3:" + xxhash.xxh3_128_hexdigest(file.read_bytes(), seed=0)


@pytest.mark.parametrize(("size", "whole"), [(WHOLE, True), (WHOLE + 1, False)])
def test_a_large_file_has_a_digest_of_its_header(tmp_path: Path, size: int, whole: bool) -> None:
    path = tmp_path / "x.safetensors"
    pad, raw = 0, b""
    for _ in range(3):  # the header's length depends on the length it states
        raw = framed({"a": entry("U8", (pad,), 0, pad)})
        pad = size - len(raw)
    path.write_bytes(raw)
    os.truncate(path, size)
    assert path.stat().st_size == len(raw) + pad
    expected = "xxh3:" + xxhash.xxh3_128_hexdigest(path.read_bytes()) if whole else "xxh3-header:" + xxhash.xxh3_128_hexdigest(raw)
    assert source_digest(source(path)) == expected


def test_a_view_of_no_bytes_needs_no_file() -> None:
    view = TensorView(name="none", file=Path("nowhere"), dtype="F16", shape=(0, 4), offset=0, nbytes=0)
    for io in MODES:
        assert reader(io)(view).shape == (0, 4)
