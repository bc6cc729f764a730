"""Which file holds which tensor: a series of files of about one size, cut between layers, none larger than asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from humming_convert.plan import files
from humming_convert.plan.types import planned_tensor

MB = 1_000_000


def series(sizes: list[int], shard_size: int = 5000 * MB) -> list[int]:
    """Bytes of the files of a series whose layers have these sizes."""
    units = [(planned_tensor(f"x{i}", None, "U8", (size,)),) for i, size in enumerate(sizes)]
    _, made = files._series("model", units, shard_size)
    return [f.nbytes - len(f.header) for f in made]


def test_a_large_series_is_eight_files_of_about_one_size() -> None:
    layer = [13 * MB, 9 * MB, 62 * MB, 31 * MB]  # the fused layers of one decoder layer
    made = series(layer * 18)
    assert len(made) == files.SERIES
    assert max(made) - min(made) <= max(layer)


def test_small_layers_after_a_large_one_are_one_file() -> None:
    made = series([3000 * MB, *[10 * MB] * 40])
    assert len(made) == 2
    assert made[1] == 400 * MB


def test_a_small_series_is_one_file() -> None:
    assert series([MB] * 60) == [60 * MB]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(50, 2000))
def test_no_file_is_larger_than_asked_but_for_a_single_layer(sizes: list[int], shard: int) -> None:
    sizes = [x * MB for x in sizes]
    made = series(sizes, shard * MB)
    assert sum(made) == sum(sizes)
    assert all(made)
    assert all(x <= shard * MB or x in sizes for x in made)
    goal = sum(sizes) / min(files.SERIES, -(-sum(sizes) // files.WORTH))
    assert max(made) <= max(goal + max(sizes), files.WORTH + max(sizes))
