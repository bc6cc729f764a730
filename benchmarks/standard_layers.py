"""Standard layers of real size packed for a GPU, by the numpy reference, bands of rows in processes of their own.

In: `Standard` layers and what they run on.  Out: PackedLayers, the bytes that `layouts.prepare` gives.
A band has whole blocks of 64 rows, so that its words lie apart from those of others (layouts.md 5.4 to 5.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.layouts import LayerRecipe, PackedLayer, Standard, WeightAux, pack_small, pack_weight, questions, resolve
from humming_convert.layouts.prepare import answer
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.standard.forms import InputForm
from humming_convert.standard.lossy import Meter
from humming_convert.standard.packing import stream_unpack
from humming_convert.targets.environment import Environment
from humming_convert.targets.table import Target

Array = NDArray[Any]
BAND_CODES = 1 << 22  # codes of a band, about: numpy's steps take some 30 bytes a code
BLOCK = 64  # rows of W whose words lie together


@dataclass(frozen=True)
class Wanted:
    """A layer and where it shall run. e0m: whether symmetric integers become sign and magnitude."""

    layer: Standard
    target: Target
    input: InputForm
    e0m: bool = True


def decide(wanted: Wanted) -> tuple[LayerRecipe, dict[str, Array], WeightAux]:
    """The recipe of a layer, and its packed small tensors."""
    x, env = wanted.layer, Environment()
    asked = questions(x.form, wanted.input, wanted.target, env, "vllm", param_dtype="BF16", parts=1, e0m=wanted.e0m)
    recipe = resolve(
        n=x.n,
        k=x.k,
        experts=x.experts,
        stack_n=(x.n,),
        form=x.form,
        input=wanted.input,
        target=wanted.target,
        env=env,
        param_dtype="BF16",
        has_bias="bias" in x.tensors,
        answers=answer(x, asked),
        pad_n=256,
        pad_k=128,
        entry="vllm",
        e0m=wanted.e0m,
    )
    tensors, aux = pack_small(recipe, x.tensors, Meter())
    return recipe, tensors, aux


def bands(n: int, k: int) -> list[slice]:
    """Rows of an expert in bands."""
    rows = max(BLOCK, BAND_CODES // k // BLOCK * BLOCK)
    return [slice(at, min(at + rows, n)) for at in range(0, n, rows)]


def of_band(recipe: WeightRecipe, rows: int) -> WeightRecipe:
    """The recipe of so many rows alone. A layer without padding."""
    assert not recipe.pad_n and not recipe.pad_k and not recipe.ppu and rows % BLOCK == 0, recipe
    tall, wide = recipe.shape
    shape = (tall, wide * rows // recipe.n) if recipe.place in ("standard", "packed_k") else (rows, wide)
    return replace(recipe, n=rows, shape=shape)


def pack_band(recipe: WeightRecipe, bits: int, words: Array, aux: WeightAux) -> Array:
    """words: a band's rows of the standard form."""
    return pack_weight(recipe, stream_unpack(words, bits, recipe.k), aux)


def joined(recipe: WeightRecipe, parts: list[Array]) -> Array:
    """Bands as the words of the whole expert."""
    if recipe.place in ("standard", "packed_k"):
        return np.concatenate(parts, axis=1)
    if recipe.place == "flat":
        return np.concatenate([p.reshape(-1, p.shape[0], 4) for p in parts], axis=1).reshape(recipe.shape)
    return np.concatenate(parts)


def _rows(aux: WeightAux, rows: slice) -> WeightAux:
    return WeightAux(zero=None if aux.zero is None else aux.zero[rows], offsets=None if aux.offsets is None else aux.offsets[rows])


def band_of(
    recipe: LayerRecipe, x: Standard, words: Array, aux: WeightAux, e: int, rows: slice
) -> tuple[WeightRecipe, int, Array, WeightAux]:
    """What `pack_band` takes. words: of expert e."""
    return of_band(recipe.weight, rows.stop - rows.start), x.form.number.bits, words[rows], _rows(aux.of_expert(e), rows)


def pack_all(wanted: Mapping[str, Wanted], jobs: int) -> dict[str, PackedLayer]:
    """Name -> packed layer. jobs: processes."""
    out: dict[str, PackedLayer] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        decided = dict(zip(wanted, pool.map(decide, wanted.values()), strict=True))
        waiting = {}
        for name, (recipe, _, aux) in decided.items():
            x = wanted[name].layer
            for e in range(x.experts or 1):
                words = x.tensors["weight"] if x.experts is None else x.tensors["weight"][e]
                for rows in bands(x.n, x.k):
                    waiting.setdefault((name, e), []).append(pool.submit(pack_band, *band_of(recipe, x, words, aux, e, rows)))
        for name, (recipe, tensors, _) in decided.items():
            experts = wanted[name].layer.experts
            each = [joined(recipe.weight, [f.result() for f in waiting.pop((name, e))]) for e in range(experts or 1)]
            out[name] = PackedLayer(recipe=recipe, tensors={**tensors, "weight": np.stack(each) if experts else each[0]})
    return out
