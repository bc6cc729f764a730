"""Times from graphs: how many calls, and what becomes of replays."""

from __future__ import annotations

import pytest
from fake_graphs import FakeGraphs

from humming_convert.gemm.timing import CACHES, MOST_CALLS, MOST_COPIES, REPLAY_MS, Times, copies_for, rounds_for, timed, times_of


def test_copies_together_fill_the_cache_several_times_and_are_never_one() -> None:
    assert copies_for(1 << 20, 50 << 20) == MOST_COPIES
    assert copies_for(32 << 20, 50 << 20) * (32 << 20) >= CACHES * (50 << 20)
    assert copies_for(1 << 34, 50 << 20) == 2


def test_a_graph_takes_about_so_long_and_has_not_too_many_calls() -> None:
    assert rounds_for(0.1, 8) == REPLAY_MS / 0.1
    assert rounds_for(0.001, 8) * 8 <= MOST_CALLS
    assert rounds_for(50.0, 8) == 1


def test_median_and_quartiles_are_of_a_call() -> None:
    assert times_of([1.0, 2.0, 3.0, 4.0, 50.0], calls=10) == Times(300.0, 200.0, 400.0)


@pytest.mark.parametrize("us", [2.0, 40.0, 9000.0])
def test_every_copy_stands_in_the_graph_as_often_as_the_others(us: float) -> None:
    graphs = FakeGraphs(us)
    assert timed(graphs, [lambda: None] * 6) == Times(us, us, us)
    assert graphs.ran == 6
    assert all(size % 6 == 0 for size in graphs.sizes)
