"""Which bytes of which file go where; and where the files are."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.serve.torch_tensors import CHUNK, TORCH, _chunks, runs
from humming_convert.serve.where import folder_of

VIEW = TensorView(name="w", file=Path("f"), dtype="I32", shape=(8, 3, 5), offset=1000, nbytes=8 * 15 * 4)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=12))
def test_runs_are_the_rows_in_their_order(rows: list[int]) -> None:
    found = list(runs(VIEW, rows))
    back = [(part.offset - 1000) // 60 + i for part in found for i in range(part.shape[0])]
    assert back == rows
    for one, next_one in itertools.pairwise(found):
        assert next_one.offset != one.offset + one.nbytes, "neighbours are one view"


@given(st.lists(st.integers(1, 3 * CHUNK + 5), min_size=1, max_size=5))
def test_chunks_follow_each_other_without_a_gap(sizes: list[int]) -> None:
    views = [TensorView(name="w", file=Path("f"), dtype="U8", shape=(n,), offset=7 * i, nbytes=n) for i, n in enumerate(sizes)]
    at = 0
    for where, part in _chunks(views):
        assert where == at and 0 < part.nbytes <= CHUNK
        at += part.nbytes
    assert at == sum(sizes)


def test_every_type_that_layers_are_packed_in_has_a_name_in_torch() -> None:
    assert {"I32", "U8", "F16", "BF16", "F32", "F8_E4M3", "F8_E5M2", "F8_E8M0"} <= set(TORCH)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert folder_of(str(tmp_path), None, None) == tmp_path


def test_a_hub_id_is_the_snapshot_of_its_revision_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "0123456789" * 4
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / commit
    for folder in (snapshot, repository / "refs", repository / "blobs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs" / "a").write_text("{}")
    os.symlink("../../blobs/a", snapshot / "humming_manifest.json")
    assert folder_of("org/name", None, str(tmp_path)) == snapshot
    assert folder_of("org/name", commit, str(tmp_path)) == snapshot
