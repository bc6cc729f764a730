"""The round trip: what stands in the file, inverted, against what the source says.

Codes are compared one by one for every layer; place also by sampled codes through the address formula of layouts.md 5.2, which
shares nothing with the packing code. Facts: architecture.md 1, 5, 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding
from humming_convert.layouts import WeightAux, pack_small, unpack_weight
from humming_convert.layouts.address import sample_codes
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.weights import map_codes, unmap_codes
from humming_convert.plan.types import PlannedLayer
from humming_convert.standard.expr import CodeBlock, Context, Weight
from humming_convert.standard.lossy import Meter
from humming_convert.standard.packing import stream_unpack

SAMPLES = 64  # rows and columns whose codes are read by address in every expert
SEED = 0x48554D  # of the sampled places: the same run reads the same places

Codes = NDArray[np.uint8]


class ProofFailed(Exception):
    """What was written does not say what the source says: a bug, or a machine that cannot be trusted. Exit code 4."""

    def __init__(self, planned: PlannedLayer, role: str, message: str) -> None:
        tensor = planned.outputs[role]
        self.finding = Finding(
            severity="error",
            code="proof-failed",
            layer=planned.layer.name,
            tensor=tensor.name,
            file=tensor.file,
            message=message,
            advice="convert again; if it comes back, check the machine's memory and disk, and report it",
        )
        super().__init__(str(self.finding))


def prove_layer(planned: PlannedLayer, written: Mapping[str, TensorView], context: Context) -> None:
    """Proves a finished layer against its source. written: role -> view into the output. Raises ProofFailed at the first difference."""
    layer = planned.layer
    small = {role: expr.evaluate(context) for role, expr in layer.tensors.items() if role != "weight"}
    back = {role: context.read(view) for role, view in written.items() if role != "weight"}
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)
    if planned.recipe is None:
        prove_small(planned, small, back)
        for expert in range(weight.experts or 1):
            index = (expert,) if weight.experts is not None else ()
            prove_standard_weight(planned, weight, expert, context.read(written["weight"].at(index)), context)
        return
    packed, aux = pack_small(planned.recipe, small, Meter())
    prove_small(planned, packed, back)
    for expert in range(weight.experts or 1):
        index = (expert,) if weight.experts is not None else ()
        words = np.ascontiguousarray(context.read(written["weight"].at(index))).view(np.uint32).reshape(-1)
        prove_weight(planned, planned.recipe, weight.of_expert(expert), expert, words, aux.of_expert(expert), None, None, context)


def prove_small(planned: PlannedLayer, want: Mapping[str, NDArray[Any]], back: Mapping[str, NDArray[Any]]) -> None:
    """Scales, zero points, biases: the bytes of the file are those that were computed, role by role."""
    for role, got in back.items():
        if role == "weight":
            continue
        wanted = want[role]
        if got.dtype != wanted.dtype or got.shape != wanted.shape or _bytes(got) != _bytes(wanted):
            raise ProofFailed(planned, role, f"{planned.outputs[role].name}: the file does not hold what was computed from the source")


def _bytes(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def prove_weight(
    planned: PlannedLayer,
    recipe: LayerRecipe,
    blocks: Sequence[tuple[int, CodeBlock]],
    expert: int,
    words: NDArray[np.uint32],
    aux: WeightAux,
    stored: Sequence[NDArray[Any]] | None,
    codes: Codes | None,
    context: Context,
) -> None:
    """One expert. words: flat, as read from the file. stored: the blocks' source arrays, where a compiled pass made the words;
    codes: standard codes [n, k], where the reference did; both None: codes are read again."""
    if stored is not None:
        compared = 0
        for (row, block), source in zip(blocks, stored, strict=True):
            bad = passes.prove_block(
                recipe.weight, packing=block.packing, stored=source, n=block.n, k=block.k, row=row, written=words, aux=aux.array
            )
            if bad is not None:
                raise ProofFailed(planned, "weight", f"{_where(block, expert)}: {bad}")
            compared += block.n * block.k
        assert compared == recipe.weight.n * recipe.weight.k, (planned.layer.name, compared)
        prove_places(planned, recipe, blocks, expert, words, aux, context, None)
        return
    if codes is None:
        codes = np.concatenate([b.codes(context) for _, b in blocks])
    have = unpack_weight(recipe.weight, words.view("<i4").reshape(recipe.weight.shape), aux)
    want = codes
    if "fused_e8m0" in recipe.weight.maps or "e0m_to_int" in recipe.weight.maps:
        # not one to one: what the named lossy step makes of the source's codes (and -0, which has no counterpart)
        want = unmap_codes(recipe.weight, map_codes(recipe.weight, codes, aux), aux)
    if not np.array_equal(have, want):
        n, k = (int(x[0]) for x in np.nonzero(have != want))
        row, block = next((r, b) for r, b in blocks if r <= n < r + b.n)
        count = int((have != want).sum())
        raise ProofFailed(
            planned, "weight", f"{_where(block, expert)}: code at n={n - row} k={k} is {have[n, k]}, want {want[n, k]}; {count} differ"
        )
    prove_places(planned, recipe, blocks, expert, words, aux, context, codes)


def _where(block: CodeBlock, expert: int) -> str:
    return f"{block.part} (expert {expert})" if block.index else block.part


def prove_places(
    planned: PlannedLayer,
    recipe: LayerRecipe,
    blocks: Sequence[tuple[int, CodeBlock]],
    expert: int,
    words: NDArray[np.uint32],
    aux: WeightAux,
    context: Context,
    codes: Codes | None,
) -> None:
    """Codes at sampled places, read by the address formula, against the source's. codes: None where they would be read for this alone;
    then a few rows of each block are."""
    w = recipe.weight
    dice = np.random.default_rng(SEED + expert)
    rows = np.unique(dice.integers(0, w.n, SAMPLES))
    columns = np.unique(dice.integers(0, w.k, SAMPLES))
    if codes is not None:
        source = codes[rows]
    else:
        source = np.empty((len(rows), w.k), np.uint8)
        for row, block in blocks:
            mine = (rows >= row) & (rows < row + block.n)
            if mine.any():
                source[mine] = block.some_codes(context, rows[mine] - row)
    n, k = (x.reshape(-1) for x in np.meshgrid(rows, columns, indexing="ij"))
    placed = sample_codes(w, words, n, k).reshape(len(rows), len(columns))
    wanted = _mapped_rows(recipe, source, rows, aux)[:, columns]
    if not np.array_equal(placed, wanted):
        i, j = (int(x[0]) for x in np.nonzero(placed != wanted))
        raise ProofFailed(planned, "weight", f"by address, the code at n={rows[i]} k={columns[j]} is {placed[i, j]}, want {wanted[i, j]}")


def _mapped_rows(recipe: LayerRecipe, codes: Codes, rows: NDArray[np.intp], aux: WeightAux) -> Codes:
    """Codes of some rows [m, k] as they are placed."""
    some = replace(recipe.weight, n=len(rows), pad_n=0)
    mine = WeightAux(zero=None if aux.zero is None else aux.zero[rows], offsets=None if aux.offsets is None else aux.offsets[rows])
    return map_codes(some, codes, mine)


def prove_standard_weight(planned: PlannedLayer, weight: Weight, expert: int, back: NDArray[Any], context: Context) -> None:
    """The standard form's words of one expert: codes of the file against codes of the source, part by part."""
    for row, block in weight.of_expert(expert):
        want = block.codes(context)
        have = stream_unpack(np.ascontiguousarray(back[row : row + block.n]), weight.bits, weight.k)
        if not np.array_equal(have, want):
            n, k = (int(x[0]) for x in np.nonzero(have != want))
            raise ProofFailed(planned, "weight", f"{_where(block, expert)}: code at n={n} k={k} is {have[n, k]}, want {want[n, k]}")
