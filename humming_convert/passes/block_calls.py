"""Blocks as calls of a program: what `pack_block` and `prove_block` do.

In: as these.  Out: calls added to a Listing, relative to bases, so that one program serves all blocks of one shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from msgspec import Struct

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.aux_values import AUX_KINDS, Aux, address
from humming_convert.passes.blocks import Raw, Run, Where, Words, run_of
from humming_convert.passes.calls import Argument, At, Listing, function
from humming_convert.passes.known import general, tiles
from humming_convert.passes.machine import Kernel
from humming_convert.passes.plans import GENERAL_SLOTS, PLANS, TILE_SLOTS, Plan, Shape, plan_of
from humming_convert.passes.positions import Ints
from humming_convert.passes.route import Purpose


class Bases(Struct, frozen=True):
    """Numbers of the bases: the window's words, eight values in which proofs count, aux values by arrangement (AUX_KINDS, in order)."""

    words: int
    result: int
    aux: tuple[int, ...]


class BlockCalls(Struct, frozen=True):
    """A block to be listed. source: where it will be stored, as a base and an offset."""

    run: Run
    source: At
    bases: Bases
    start: int

    def add(self, listing: Listing, purpose: Purpose) -> None:
        """pack: writes the words.  prove: compares what the words hold; a call with another result than wanted says that a code differs or
        was left out."""
        plan, parts = _parts(self.run.shape, purpose)
        listing.held.append(plan)
        for part in parts:
            where = (self.source, At(self.bases.words, self.start), self._aux(part), At(self.bases.result))
            if purpose == "prove":  # what the proof before this one counted is no answer
                listing.call(function("memset"), At(self.bases.result), 0, part.want.nbytes, want=At(self.bases.result))
            listing.kernel(part.kernel, part.parameters, tuple(zip(part.places, where)))
            if purpose == "prove":
                listing.call(function("memcmp"), At(self.bases.result), address(part.want), part.want.nbytes)
                listing.held.append(part.want)

    def _aux(self, part: _Part) -> Argument:
        kind, offset = part.aux_of(self.run)
        return offset if kind is None else At(self.bases.aux[AUX_KINDS.index(kind)], offset)


def block_calls(
    recipe: WeightRecipe,
    *,
    packing: str,
    stored: Raw,
    n: int,
    k: int,
    row: int,
    words: Words,
    source: At,
    bases: Bases,
    aux: Aux | None = None,
    column: int = 0,
    first: int = 0,
) -> BlockCalls:
    """Arguments as of `pack_block`. stored, words, aux: arrays of the shapes and strides that there will be, and of any content; of
    E8M0 offsets the largest one matters."""
    run = run_of(recipe, packing, stored, Where(n=n, k=k, row=row, column=column), words, aux, first)
    assert address(run.source) == address(stored), "the block would be copied"
    return BlockCalls(run, source, bases, run.base - address(words))


class _Part(Struct, frozen=True):
    """A kernel's call on the tiles of a block or on one of its edges. places: of the addresses in `parameters` (source, target, aux, result).
    want: what a proof counts: codes and tiles; of an edge, codes and how many of them differ."""

    kernel: Kernel
    parameters: Ints
    places: tuple[int, ...]
    aux_of: Callable[[Run], tuple[str | None, int]]
    want: Ints


@lru_cache(maxsize=PLANS)
def _parts(shape: Shape, purpose: Purpose) -> tuple[Plan, list[_Part]]:
    """Made once for all blocks of one shape; the plan owns what the parameters point at."""
    plan, out = plan_of(shape), []
    if (tile := plan.tile) is not None:
        kernel = tiles(tile.way.route, purpose)
        out.append(_Part(kernel, tile.parameters, TILE_SLOTS, partial(Run.tile_aux, plan=tile), _counts(tile.box.codes, tile.tiles)))
    for edge in plan.edges:
        kernel = general(shape.recipe.bits, purpose)
        out.append(_Part(kernel, edge.parameters, GENERAL_SLOTS, partial(Run.edge_aux, plan=edge), _counts(edge.box.codes, 0)))
    return plan, out


@lru_cache(maxsize=None)
def _counts(codes: int, second: int) -> Ints:
    """One array for equal numbers, so that the calls of equal blocks are equal."""
    return np.array((codes, second), np.int64)
