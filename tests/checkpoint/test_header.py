"""The header reader against the safetensors library, damaged bytes and files larger than memory."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from humming_convert.checkpoint.files import LIMIT
from humming_convert.checkpoint.header import WIDTHS, Header, read_header
from tests.checkpoint.making import entry, framed, opened, weights

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
TENSORS = st.dictionaries(
    NAMES.filter(lambda n: n != "__metadata__"),
    st.tuples(st.sampled_from([*WIDTHS]), st.lists(st.integers(0, 5), max_size=4).map(tuple)),
    max_size=5,
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["F16", "U8", "I64", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("header") / "model.safetensors"


def same_as_the_library(place: Path, raw: bytes) -> bool:
    """Whether the reader takes the file; where it does, the library must read the same."""
    place.write_bytes(raw)
    got = read_header(place)
    if not isinstance(got, Header):
        assert got
        assert all(f.severity == "error" and f.file == place.name for f in got)
        return False
    theirs = {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in deserialize(raw)}
    ours = {name: (v.dtype, v.shape, raw[v.offset : v.offset + v.nbytes]) for name, v in got.tensors.items()}
    assert ours == theirs
    return True


@given(TENSORS, st.none() | st.dictionaries(NAMES, NAMES, max_size=3))
def test_a_good_file_reads_as_the_library_reads_it(place: Path, tensors: dict[str, Any], metadata: dict[str, str] | None) -> None:
    assert same_as_the_library(place, weights(tensors, metadata))


@given(TENSORS, st.data())
def test_changed_bytes_give_findings_or_what_the_library_reads(place: Path, tensors: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(weights(tensors))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1 if raw else 0))
        new = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"{", b"}", b"[", b"0", b"-", b",", b"\\", b"1e1", b" "]))
        raw[at : at + data.draw(st.integers(0, 3))] = new
    same_as_the_library(place, bytes(raw))


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__"]),
        JSON
        | st.builds(
            entry, st.sampled_from(["F16", "U8"]), st.lists(st.integers(-1, 3), max_size=2), st.integers(-1, 9), st.integers(-1, 9)
        ),
        max_size=3,
    ),
    st.binary(max_size=12),
)
def test_any_json_as_header_gives_findings_or_what_the_library_reads(place: Path, header: Any, data: bytes) -> None:
    same_as_the_library(place, framed(header, data))


@given(TENSORS.filter(bool), st.data())
def test_a_field_of_an_entry_may_hold_anything(place: Path, tensors: dict[str, Any], data: st.DataObject) -> None:
    raw = weights(tensors)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    name = data.draw(st.sampled_from(sorted(header)))
    header[name][data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "more"]))] = data.draw(JSON)
    same_as_the_library(place, framed(header, raw[8 + length :]))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(TENSORS.filter(bool), st.randoms())
def test_order_of_entries_and_padding_mean_nothing(place: Path, tensors: dict[str, Any], random: Any) -> None:
    raw = weights(tensors)
    length = int.from_bytes(raw[:8], "little")
    entries = [*json.loads(raw[8 : 8 + length]).items()]
    random.shuffle(entries)
    assert same_as_the_library(place, framed(json.dumps(dict(entries)) + " " * random.randrange(9), raw[8 + length :]))


@pytest.mark.parametrize("twice", ['{"a": %s, "a": %s}', '{"__metadata__": {"x": "1", "x": "2"}, "a": %s}'])
def test_a_key_that_stands_twice_is_refused_though_the_library_reads_it(place: Path, twice: str) -> None:
    one = json.dumps(entry())
    raw = framed(twice.replace("%s", one), b"1234")
    assert deserialize(raw)
    assert not same_as_the_library(place, raw)


def test_a_header_may_be_nested_deeper_than_a_parser_recurses(place: Path) -> None:
    place.write_bytes(framed('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"))
    assert [f.code for f in read_header(place)] == ["json-deep"]


def test_minus_zero_is_no_offset(place: Path) -> None:
    assert not same_as_the_library(place, framed('{"a": {"dtype": "F16", "shape": [2], "data_offsets": [-0, 4]}}', b"1234"))


def test_an_escaped_name_is_the_name(place: Path) -> None:
    assert same_as_the_library(place, framed('{"\\u0061\\ud83d\\ude00": ' + json.dumps(entry()) + "}", b"1234"))


def test_a_file_beyond_four_gib_reads_with_its_offsets(place: Path) -> None:
    shape = (3, 2**31 + 1)  # elements: more than 32 bits count
    nbytes = 3 * (2**31 + 1)
    raw = framed({"big": entry("U8", shape, 0, nbytes), "after": entry("F32", (1,), nbytes, nbytes + 4)})
    place.write_bytes(raw)
    os.truncate(place, len(raw) + nbytes + 4)  # sparse
    got = read_header(place)
    assert isinstance(got, Header)
    assert got.tensors["big"].nbytes == nbytes
    assert got.tensors["after"].offset == len(raw) + nbytes
    os.truncate(place, len(raw) + nbytes + 3)
    assert [f.code for f in read_header(place)] == ["file-truncated"]
    place.unlink()


@pytest.mark.parametrize("claim", [2**63, 2**64 - 1, LIMIT + 1, LIMIT])
def test_memory_is_not_taken_on_the_word_of_a_header(place: Path, claim: int) -> None:
    place.write_bytes(claim.to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    try:
        assert not isinstance(read_header(place), Header)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_shapes_of_many_huge_dimensions_are_refused_at_once(place: Path) -> None:
    start = time.perf_counter()
    place.write_bytes(framed({"a": entry("U8", [2**62] * 200_000, 0, 4)}, b"1234"))
    assert [f.code for f in read_header(place)] == ["header-shape"]
    assert time.perf_counter() - start < 5


def test_twenty_thousand_tensors_open_in_a_blink(tmp_path: Path) -> None:
    names = [f"model.layers.{i // 400}.mlp.experts.{i % 400}.down_proj.weight" for i in range(20_000)]
    header = {name: entry("U8", (1, 8), 8 * i, 8 * i + 8) for i, name in enumerate(names)}
    (tmp_path / "x.safetensors").write_bytes(framed(header, bytes(8 * len(names))))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "x.safetensors")}))
    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    start = time.perf_counter()
    checkpoint, findings = opened(tmp_path)
    assert time.perf_counter() - start < 3  # 0.3 s where it was written; a quadratic step would take minutes
    assert checkpoint is not None
    assert not len(findings)
    assert [*checkpoint.tensors] == names  # layer 2 before layer 10


def test_the_shared_folders_read_as_the_library_reads_them(shared: Path) -> None:
    folders = [d for d in sorted((shared / "checkpoints").iterdir()) if (d / "config.json").exists()]
    assert folders
    for folder in folders:
        checkpoint, findings = opened(folder)
        assert checkpoint is not None, [*map(str, findings)]
        assert not len(findings)
        stored: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
        for file in folder.glob("*.safetensors"):
            stored |= {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in deserialize(file.read_bytes())}
        raw = {f.name: f.path.read_bytes() for f in checkpoint.weights}
        ours = {k: (v.dtype, v.shape, raw[v.file.name][v.offset : v.offset + v.nbytes]) for k, v in checkpoint.tensors.items()}
        assert ours == stored
