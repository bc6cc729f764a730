"""How a block finds its expert and its rows, by the very header of the kernels, read by a C++ compiler."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable

import emulation
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_convert.gemm import tasks
from humming_convert.resources import cuda_templates

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")
EXPERTS, TILE = 6, 4
TEXT = f"""#include "tasks.cuh"
using namespace hc;
struct L {{ static constexpr int experts = {EXPERTS}; }};
template <Task kTask> struct C {{ static constexpr Task task = kTask; }};
// out: tiles x {TILE} pairs of expert and row; -1 where there is none
template <Task kTask> void walk(const int* counts, int room, int m, int tiles, int* out) {{
  const TaskLists lists{{nullptr, counts, room}};
  for (int i = 0; i < tiles; i++) {{
    const RowTile tile = tile_of<L, C<kTask>, {TILE}>(lists, i, m);
    for (int j = 0; j < {TILE}; j++) {{
      const int row = tile.expert < 0 ? -1 : row_of<C<kTask>>(lists, tile, tile.first + j);
      out[2 * ({TILE} * i + j)] = row < 0 ? -1 : tile.expert;
      out[2 * ({TILE} * i + j) + 1] = row;
    }}
  }}
}}
extern "C" void contiguous(const int* c, int room, int m, int tiles, int* out) {{ walk<Task::contiguous>(c, room, m, tiles, out); }}
extern "C" void masked(const int* c, int room, int m, int tiles, int* out) {{ walk<Task::masked>(c, room, m, tiles, out); }}
"""
COUNTS = st.lists(st.integers(0, 9), min_size=EXPERTS, max_size=EXPERTS)


class HostDevice:
    """Counts stay where they are."""

    def counts(self, counts: object, experts: int) -> object:
        return counts


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "tasks.cpp").write_text(TEXT)
    command = [str(emulation.COMPILER), "-std=c++17", "-O0", "-shared", "-fPIC", f"-I{cuda_templates()}", str(folder / "tasks.cpp")]
    subprocess.run([*command, "-o", str(folder / "tasks.so")], check=True)
    return ctypes.CDLL(str(folder / "tasks.so"))


def experts_of_rows(walk: Callable[..., None], counts: list[int], room: int, m: int, tiles: int) -> np.ndarray:
    """The expert that multiplies each row; no row is multiplied twice."""
    given, out = np.asarray(counts, np.int32), np.full((tiles, TILE, 2), -7, np.int32)
    walk(given.ctypes.data_as(ctypes.c_void_p), room, m, tiles, out.ctypes.data_as(ctypes.c_void_p))
    pairs = out[out[..., 1] >= 0]
    assert np.unique(pairs[:, 1]).size == len(pairs)
    of_row = np.full(m, tasks.NOBODY)
    of_row[pairs[:, 1]] = pairs[:, 0]
    return of_row


@given(counts=COUNTS, spare=st.integers(0, 5))
def test_contiguous_rows_meet_their_experts_and_spare_rows_nobody(library: ctypes.CDLL, counts: list[int], spare: int) -> None:
    m = sum(counts) + spare
    tiles = tasks.Contiguous(counts).lists(HostDevice(), m, EXPERTS, TILE).tiles  # type: ignore[arg-type]
    want = np.pad(tasks.contiguous(counts), (0, spare), constant_values=tasks.NOBODY)
    np.testing.assert_array_equal(experts_of_rows(library.contiguous, counts, 0, m, tiles), want)


@given(counts=COUNTS, spare=st.integers(0, 5))
def test_rows_that_are_there_meet_their_experts(library: ctypes.CDLL, counts: list[int], spare: int) -> None:
    room = max(counts) + spare
    lists = tasks.Masked(counts).lists(HostDevice(), room * EXPERTS, EXPERTS, TILE)  # type: ignore[arg-type]
    have = experts_of_rows(library.masked, counts, room, room * EXPERTS, lists.tiles)
    np.testing.assert_array_equal(have, tasks.masked(counts, room))
