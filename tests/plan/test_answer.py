"""A question about all codes of a weight is answered from as few of them as decide it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.plan.answer import _no_zero_code
from humming_convert.standard.expr import CodeBlock, Context, Weight
from humming_convert.standard.lossy import Meter
from humming_convert.standard.packing import PACKINGS

N, K = 2048, 2304  # more codes than numpy looks at by itself
SHAPES = {"gptq": (K // 8, N), "awq": (K, N // 8), "rows": (N, K // 2)}


class _Weight:
    """As much of a layer as the question sees."""

    def __init__(self, weight: Weight) -> None:
        self.tensors = {"weight": weight}


def stored(packing: str, codes: np.ndarray) -> np.ndarray:
    """Words of all ones with some codes of 0 in them, found through the slow reader."""
    shape = SHAPES[packing]
    raw = np.full(shape, 0xFF, np.uint8) if packing == "rows" else np.full(shape, -1, np.int32)
    for row, column in np.argwhere(codes == 0):
        at = {"gptq": (column // 8, row), "awq": (column, row // 8), "rows": (row, column // 2)}[packing]
        raw[at] = 0
    return raw


@pytest.mark.parametrize("packing", SHAPES)
@pytest.mark.parametrize("place", [(5, 7), (N - 1, K - 1), None])
def test_a_weight_is_read_no_further_than_its_first_code_zero(packing: str, place: tuple[int, int] | None) -> None:
    codes = np.full((N, K), 15, np.uint8)
    if place is not None:
        codes[place] = 0
    raw = stored(packing, codes)
    assert bool((PACKINGS[packing](raw, 4, N, K) == 0).any()) is (place is not None)
    view = TensorView(name="w", file=Path("f"), dtype="U8" if packing == "rows" else "I32", shape=raw.shape, offset=0, nbytes=raw.nbytes)
    seen: list[int] = []

    def read(asked: TensorView) -> np.ndarray:
        seen.append(asked.nbytes)
        rows = asked.offset // (view.nbytes // view.shape[0])
        return raw[rows : rows + asked.shape[0]]

    reader: Read = read
    block = CodeBlock(part="w", view=view, packing=packing, bits=4, n=N, k=K)
    weight = Weight(blocks=(block,), bits=4, n=N, k=K, experts=None)
    assert _no_zero_code(_Weight(weight), Context(read=reader, meter=Meter())) is (place is None)  # type: ignore[arg-type]
    first = place == (5, 7)
    assert (sum(seen) < raw.nbytes / 8) is first and (view.nbytes in seen) is not first
