"""Headers that are written read back as they were meant, by this reader and by the library."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize

from humming_convert.checkpoint.header import WIDTHS, Header, read_header
from humming_convert.checkpoint.writing import ALIGNMENT, build_header, file_size, offsets_of, size_of

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=12).filter(lambda n: n != "__metadata__")
TENSORS = st.lists(
    st.tuples(NAMES, st.sampled_from([*WIDTHS]), st.lists(st.integers(0, 5), max_size=4).map(tuple)), unique_by=lambda t: t[0], max_size=6
)


@given(TENSORS, st.dictionaries(NAMES, NAMES, max_size=3))
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, tensors: list[Any], metadata: dict[str, str]) -> None:
    header = build_header(tensors, metadata)
    assert len(header) % ALIGNMENT == 0
    path = tmp_path_factory.mktemp("w") / "x.safetensors"
    raw = header + bytes(sum(size_of(d, s) for _, d, s in tensors))
    assert len(raw) == file_size(tensors, header)
    path.write_bytes(raw)
    got = read_header(path)
    assert isinstance(got, Header), got
    assert [(v.name, v.dtype, v.shape) for v in got.tensors.values()] == tensors
    assert {n: v.offset for n, v in got.tensors.items()} == offsets_of(tensors, header)
    assert got.metadata == metadata
    assert {n: (t["dtype"], tuple(t["shape"])) for n, t in deserialize(raw)} == {n: (d, s) for n, d, s in tensors}


def test_tensors_of_more_elements_than_32_bits_count_have_their_place() -> None:
    tensors = [("a", "I32", (256, 4096, 7168)), ("b", "F8_E8M0", (2**33,)), ("c", "U8", (1,))]
    header = build_header(tensors, {})
    places = offsets_of(tensors, header)
    assert places["b"] - places["a"] == 4 * math.prod((256, 4096, 7168))
    assert places["c"] - places["b"] == 2**33


def test_the_same_tensors_give_the_same_bytes() -> None:
    tensors = [("b", "F16", (2,)), ("a", "F16", (2,))]
    assert build_header(tensors, {"y": "1", "x": "2"}) == build_header(list(tensors), {"y": "1", "x": "2"})
    assert build_header(tensors, {}) != build_header(tensors[::-1], {})


def test_a_name_is_not_written_twice() -> None:
    with pytest.raises(AssertionError):
        build_header([("a", "U8", (1,)), ("a", "U8", (1,))], {})
