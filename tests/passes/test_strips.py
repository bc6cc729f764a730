"""Turned rows: strips hold each row's bytes where the packing says, and packing from strips gives what packing from rows gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.calls import At, Listing, make
from humming_convert.passes.positions import STRIP, source_bits
from humming_convert.passes.strips import add_turn, strip_shape, turns
from tests.passes.cases import aux_for, recipe

SOURCE, TARGET, RESULT = 2, 3, 4  # bases
RECIPES: tuple[tuple[int, int, str, tuple[str, ...], dict[str, Any]], ...] = (
    (4, 16, "standard", (), {}),
    (4, 16, "standard", ("e0m",), {}),
    (4, 8, "standard", ("int_to_float",), {}),
    (4, 8, "packed_k", ("e0m",), {"swapped": True}),
    (4, 8, "standard", ("fused_e8m0",), {"interleave": "mode2", "group": 32}),
    (4, 8, "packed_k", ("fused_e8m0",), {"interleave": "mode2", "group": 32}),
    (4, 4, "flat", (), {}),
    (8, 8, "flat", (), {}),
    (8, 16, "standard", (), {}),
    (2, 16, "standard", (), {}),
)


def turned(rows: NDArray[np.uint8], step: int) -> NDArray[np.uint8]:
    """uint8 [strips, pitch], by calls of `step` rows each."""
    n, row_bytes = rows.shape
    shape = strip_shape(n, row_bytes)
    out, result = passes.empty_lines(shape[0] * shape[1]), np.zeros(8, np.int64)
    out[:] = 0
    listing = Listing()
    for r0 in range(0, n, step):
        add_turn(listing, min(step, n - r0), row_bytes, shape[1], At(SOURCE, r0 * row_bytes), At(TARGET, STRIP * r0), RESULT)
    bases = np.array([0, 0, passes.address(rows), passes.address(out), passes.address(result)], np.int64)
    calls = listing.done().linked(bases)
    assert make(calls.calls) == (len(calls.calls), 0)
    return out.reshape(shape)


@given(n=st.integers(1, 40).map(lambda x: 8 * x), strips=st.integers(8, 90), step=st.sampled_from([8, 24, 64]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_strip_holds_eight_bytes_of_every_row(n: int, strips: int, step: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (n, STRIP * strips), np.uint8)
    found = turned(rows, step)
    assert np.array_equal(found[:, : STRIP * n], rows.reshape(n, strips, STRIP).transpose(1, 0, 2).reshape(strips, -1))
    assert not found[:, STRIP * n :].any()  # nothing is written between strips


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_packing_says_where_each_bit_is(bits: int) -> None:
    n, k = 16, 512
    rows = np.random.default_rng(bits).integers(0, 256, (n, k * bits // 8), np.uint8)
    found = turned(rows, 8)
    stored = [np.unpackbits(np.ascontiguousarray(x).reshape(-1), bitorder="little") for x in (rows, found)]
    codes = []
    for packing, pitch, whole in (("rows", rows.shape[1], stored[0]), ("strips", found.shape[1], stored[1])):
        by_row, by_column = source_bits(packing, bits, pitch, np.arange(n), np.arange(k))
        codes.append(whole[by_row[:, None] + by_column[None]])
    assert np.array_equal(*codes)


def some(bits: int, act: int, place: str, maps: tuple[str, ...], more: dict[str, Any], n: int, k: int) -> tuple[WeightRecipe, Any, Any]:
    r = recipe(bits, act, n, k, place, maps, **more)  # type: ignore[arg-type]
    values = aux_for(maps, bits, n, k, r.group, 0, top=1)  # type: ignore[arg-type]
    rows = np.random.default_rng(0).integers(0, 256, (n, k * bits // 8), np.uint8)
    if "e0m" in maps:
        rows |= {4: 0x11, 8: 0x01}[bits]
    return r, None if values is None else passes.Aux(values), rows


@pytest.mark.parametrize(("n", "k"), [(64, 256), (192, 640), (128, 1408)])
@pytest.mark.parametrize("case", RECIPES, ids=str)
def test_strips_give_the_words_that_rows_give(case: Any, n: int, k: int) -> None:
    r, aux, rows = some(*case, n, k)
    assert turns(r, "rows", n, k, aux is not None)
    strips = turned(rows, 64)
    words, again = (np.zeros(passes.whole(r).words, np.uint32) for _ in range(2))
    passes.pack_block(r, packing="rows", stored=rows, n=n, k=k, row=0, out=words, aux=aux)
    for w in passes.windows(r, 1 << 9, passes.window_unit(r, ("strips",), aux is not None)):
        here: dict[str, Any] = {"n": n, "k": min(w.k1, k) - w.k0, "row": 0, "column": w.k0, "first": w.first, "aux": aux}
        stored = passes.slice_block("strips", r.bits, strips, n, (0, n), (w.k0, min(w.k1, k)))
        out = again[w.first : w.first + w.words]
        passes.pack_block(r, packing="strips", stored=stored, out=out, **here)
        assert passes.prove_block(r, packing="strips", stored=stored, written=out, **here) is None
    assert np.array_equal(words, again)


@pytest.mark.parametrize("case", RECIPES, ids=str)
def test_a_bit_that_differs_from_the_strips_is_found(case: Any) -> None:
    n, k = 128, 512
    r, aux, rows = some(*case, n, k)
    strips, words = turned(rows, 64), np.zeros(passes.whole(r).words, np.uint32)
    here: dict[str, Any] = {"packing": "strips", "stored": strips, "n": n, "k": k, "row": 0, "aux": aux}
    passes.pack_block(r, out=words, **here)
    for bit in np.random.default_rng(1).integers(0, 32 * len(words), 24):
        broken = words.copy()
        broken[bit // 32] ^= np.uint32(1 << (bit % 32))
        assert passes.prove_block(r, written=broken, **here) is not None


@pytest.mark.parametrize(
    ("why", "case", "n", "k", "still"),
    [
        ("rows are kept as they are", (4, 4, "raw", (), {}), 128, 512, False),
        ("three bits", (3, 16, "standard", (), {}), 128, 512, False),
        ("E8M0 offsets differ", RECIPES[4], 128, 512, False),
        ("rows that are no whole tiles", RECIPES[0], 132, 512, False),
        ("half a strip at the end", RECIPES[0], 128, 520, False),
        ("short rows", RECIPES[0], 128, 64, False),
    ],
)
def test_what_is_not_turned(why: str, case: Any, n: int, k: int, still: bool) -> None:
    bits, act, place, maps, more = case
    assert not turns(recipe(bits, act, n, k, place, maps, **more), "rows", n, k, still), why
