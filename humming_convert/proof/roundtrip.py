"""The round trip: what stands in the file, inverted, against what the source says.

Codes are compared one by one for every layer; place also by sampled codes through the address formula of layouts.md 5.2, which
shares nothing with the packing code. Facts: architecture.md 1, 5, 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.layouts import WeightAux, pack_small, unpack_weight
from humming_convert.layouts.address import sample_codes
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.weights import map_codes, unmap_codes
from humming_convert.plan.types import PlannedLayer
from humming_convert.proof.failed import ProofFailed
from humming_convert.proof.small import prove_small
from humming_convert.proof.stream import ExpertStream, small_passes, some_places, streams
from humming_convert.standard.expr import Context, Weight
from humming_convert.standard.lossy import Meter
from humming_convert.standard.packing import stream_unpack

SAMPLES = 32  # rows and columns whose codes are read by address in every expert

Codes = NDArray[np.uint8]


def prove_layer(planned: PlannedLayer, written: Mapping[str, TensorView], context: Context) -> None:
    """Proves a finished layer against its source. written: role -> view into the output. Raises ProofFailed at the first difference."""
    layer = planned.layer
    small = {role: expr.evaluate(context) for role, expr in layer.tensors.items() if role != "weight"}
    back = {role: context.read(view) for role, view in written.items() if role != "weight"}
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)

    def words_of(expert: int) -> NDArray[Any]:
        return context.read(written["weight"].at((expert,) if weight.experts is not None else ()))

    if planned.recipe is None:
        prove_small(planned, small, small, back)
        for expert in range(weight.experts or 1):
            prove_standard_weight(planned, weight, expert, words_of(expert), context)
        return
    packed, aux = pack_small(planned.recipe, small, Meter(), small_passes(weight))
    prove_small(planned, small, packed, back)
    compiled = streams(planned.recipe, weight)
    for expert in range(weight.experts or 1):
        words = np.ascontiguousarray(words_of(expert)).view(np.uint32).reshape(-1)
        if not compiled:
            prove_weight(planned, planned.recipe, weight, expert, words, aux.of_expert(expert), weight.expert_codes(context, expert))
            continue
        stream = ExpertStream(planned, planned.recipe.weight, weight, expert, aux.of_expert(expert), lambda _, view: context.read(view))
        for step in stream.steps():
            stream.prove(step, words[step.window.first : step.window.first + step.window.words])
        stream.finish()


def prove_weight(
    planned: PlannedLayer,
    recipe: LayerRecipe,
    weight: Weight,
    expert: int,
    words: NDArray[np.uint32],
    aux: WeightAux,
    codes: Codes,
) -> None:
    """One expert by the numpy reference. words: flat, as read from the file; codes: of the source, standard [n, k]."""
    w = recipe.weight
    have = unpack_weight(w, words.view("<i4").reshape(w.shape), aux)
    want = codes
    if "fused_e8m0" in w.maps or "e0m_to_int" in w.maps:
        # not one to one: what the named lossy step makes of the source's codes (and -0, which has no counterpart)
        want = unmap_codes(w, map_codes(w, codes, aux), aux)
    if not np.array_equal(have, want):
        n, k = (int(x[0]) for x in np.nonzero(have != want))
        row, block = next((r, b) for r, b in weight.of_expert(expert) if r <= n < r + b.n)
        count = int((have != want).sum())
        where = f"{block.part}: code at n={n - row} k={k}"
        raise ProofFailed(planned, "weight", f"{where} is {have[n, k]}, want {want[n, k]}; {count} differ")
    rows, columns = some_places(w.n, SAMPLES, expert), some_places(w.k, SAMPLES, expert)
    n_at, k_at = (x.reshape(-1) for x in np.meshgrid(rows, columns, indexing="ij"))
    placed = sample_codes(w, words, n_at, k_at).reshape(len(rows), len(columns))
    wanted = _mapped_rows(recipe, codes[rows], rows, aux)[:, columns]
    if not np.array_equal(placed, wanted):
        i, j = (int(x[0]) for x in np.nonzero(placed != wanted))
        where = f"by address, the code at n={rows[i]} k={columns[j]}"
        raise ProofFailed(planned, "weight", f"{where} is {placed[i, j]}, want {wanted[i, j]}")


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
            raise ProofFailed(planned, "weight", f"{block.part}: code at n={n} k={k} is {have[n, k]}, want {want[n, k]}")
