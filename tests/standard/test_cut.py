"""Cuts of lazy tensors: what is taken is what slicing the whole gives, and only what is needed is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.standard.cut import take, take_codes
from humming_convert.standard.expr import Apply, Cast, CodeBlock, Expr, Full, Recode, Stored, Weight, apply
from humming_convert.standard.packing import AWQ_ORDER, stream_pack
from humming_convert.standard.packing_ct import padded_pack
from humming_convert.standard.packing_gptq import awq_pack, marlin_pack, planar_pack
from tests.model.making import Memory

Array = NDArray[Any]
N, K = 128, 128
PACKERS: dict[str, tuple[int, Callable[[Array, int], Array]]] = {
    "rows": (3, stream_pack),
    "signed_rows": (8, lambda codes, bits: (codes.astype(np.int16) - 128).astype(np.int8)),
    "gptq": (3, lambda codes, bits: np.ascontiguousarray(stream_pack(codes, bits).T)),
    "awq": (4, lambda codes, bits: awq_pack(codes.T)),
    "marlin": (4, lambda codes, bits: marlin_pack(codes)),
    "padded": (5, padded_pack),
    "gptq_planar": (3, lambda codes, bits: np.ascontiguousarray(planar_pack(codes, bits).T)),
}


def weight(memory: Memory, packing: str, **more: Any) -> tuple[Weight, Array]:
    bits, pack = PACKERS[packing]
    codes = memory.rng().integers(0, 1 << bits, (N, K), np.uint8)
    block = CodeBlock(part="x", view=memory.store(f"x{memory.seed}", pack(codes, bits)), packing=packing, bits=bits, n=N, k=K, **more)
    return Weight(bits=bits, n=N, k=K, experts=None, blocks=(block,)), codes


@pytest.mark.parametrize("packing", PACKERS)
@given(rows=st.tuples(st.integers(0, N - 1), st.integers(1, N)), columns=st.tuples(st.integers(0, K - 1), st.integers(1, K)))
@settings(max_examples=40, deadline=None)
def test_codes_of_a_window_are_those_of_the_whole(packing: str, rows: tuple[int, int], columns: tuple[int, int]) -> None:
    (r0, r1), (c0, c1) = sorted((rows[0], rows[0] + rows[1])), sorted((columns[0], columns[0] + columns[1]))
    r1, c1 = min(r1, N), min(c1, K)
    memory = Memory()
    whole, codes = weight(memory, packing)
    cut = take_codes(whole, experts=None, rows=((r0, r1),), columns=(c0, c1))
    want = codes[r0:r1, c0:c1]
    assert np.array_equal(cut.expert_codes(memory.context(), 0), want)
    some = np.arange(0, r1 - r0, 3)
    assert np.array_equal(cut.blocks[0].some_codes(memory.context(), some), want[some])
    if (c1 - c0) * cut.bits % 32 == 0:
        assert np.array_equal(cut.expert_words(memory.context(), 0), stream_pack(want, cut.bits))


@pytest.mark.parametrize("packing", ["rows", "signed_rows", "gptq", "awq"])
def test_a_window_of_whole_words_keeps_its_compiled_pass(packing: str) -> None:
    whole, _ = weight(Memory(), packing)
    cut = take_codes(whole, experts=None, rows=((32, 96),), columns=(64, 128))
    assert packing in passes.PACKINGS and cut.blocks[0].straight


def test_a_window_inside_words_is_unpacked_whole() -> None:
    whole, _ = weight(Memory(), "awq")
    assert not take_codes(whole, experts=None, rows=((4, 64),), columns=(0, K)).blocks[0].straight


def test_a_window_of_a_window_counts_from_the_stored_part() -> None:
    memory = Memory()
    whole, codes = weight(memory, "gptq")
    once = take_codes(whole, experts=None, rows=((32, 128),), columns=(32, 128))
    twice = take_codes(once, experts=None, rows=((0, 16), (80, 96)), columns=(32, 64))
    want = codes[32:, 32:][np.r_[0:16, 80:96], 32:64]
    assert np.array_equal(twice.expert_codes(memory.context(), 0), want)


def test_orders_are_cut_and_still_pick_from_the_whole_part() -> None:
    memory = Memory()
    rows, columns = memory.rng().permutation(N), memory.rng().permutation(K)
    orders = {"row_order": Stored(memory.store("r", rows)), "col_order": Stored(memory.store("c", columns))}
    whole, codes = weight(memory, "gptq", **orders)
    cut = take_codes(whole, experts=None, rows=((16, 48),), columns=(64, 96))
    assert np.array_equal(cut.expert_codes(memory.context(), 0), codes[rows[16:48]][:, columns[64:96]])


def test_an_absorbed_zero_point_is_that_of_the_cut_place() -> None:
    memory = Memory()
    zeros = memory.rng().integers(0, 8, (N, 4), np.uint8)
    words = np.ascontiguousarray(stream_pack(np.ascontiguousarray(zeros.T), 3).T)
    recode = Recode(bits=4, add=8, zero_point=Stored(memory.store("z", words)), zero_bits=3, rows=N)
    whole, _ = weight(memory, "rows", recode=recode)
    every = whole.expert_codes(memory.context(), 0)
    cut = take_codes(whole, experts=None, rows=((16, 48),), columns=(64, 128))
    assert np.array_equal(cut.expert_codes(memory.context(), 0), every[16:48, 64:])


# ------------------------------------------------------------------ small tensors
def exprs(memory: Memory) -> dict[str, Expr]:
    def stored(*shape: int) -> Stored:
        return Stored(memory.store(f"t{memory.seed}", memory.rng().normal(size=shape).astype(np.float32)))

    a, b = stored(8, 6), stored(4, 6)
    concat = apply("concat", a, b, params=(0,), shape=(12, 6))
    return {
        "stored": stored(12, 6),
        "full": Full("F32", (12, 6), 2.0),
        "cast": Cast(concat, "BF16", "scale-cast", "weight_scale"),
        "concat": concat,
        "transposed": apply("transpose", stored(6, 12)),
        "stack": apply("stack", *(stored(12, 6) for _ in range(3)), shape=(3, 12, 6)),
    }


@pytest.mark.parametrize("kind", ["stored", "full", "cast", "concat", "transposed", "stack"])
@pytest.mark.parametrize("spans", [((2, 5),), ((0, 2), (3, 6)), ((4, 6), (0, 1))])
def test_ranges_of_any_axis_are_those_of_the_value(kind: str, spans: tuple[tuple[int, int], ...]) -> None:
    memory = Memory()
    expr = exprs(memory)[kind]
    for axis, size in enumerate(expr.shape):
        mine = tuple((a, b) for a, b in spans if b <= size) or ((0, 1),)
        cut = take(expr, axis, mine)
        picked = np.concatenate([np.arange(a, b) for a, b in mine])
        want = np.take(memory.values(expr), picked, axis)
        assert cut.shape == want.shape and cut.dtype == expr.dtype
        assert np.array_equal(memory.values(cut), want)


def test_only_the_rows_that_are_taken_are_read() -> None:
    cut = take(exprs(Memory())["concat"], 0, ((1, 3),))
    assert [v.shape for v in cut.reads()] == [(2, 6)]


def test_only_the_experts_that_are_taken_are_read() -> None:
    stack = exprs(Memory())["stack"]
    assert isinstance(stack, Apply)
    assert take(stack, 0, ((1, 2),)).reads() == stack.args[1].reads()


def test_awq_words_hold_eight_rows() -> None:
    """What the window's unit of 8 rows rests on (formats.md 3.2)."""
    assert sorted(AWQ_ORDER) == list(range(8))
