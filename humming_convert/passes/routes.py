"""Routes: from a recipe and a packing to what is compiled (`Route`) and what is passed (strides).

In: a WeightRecipe, a packing, the pitch of a stored block.  Out: a `Way`: the route, its tile and orders, or None if only the general
pass goes there.
Facts: layouts.md 5; formats.md 0, 2.2, 3.2.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from msgspec import Struct

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.aux_values import aux_group, wanted
from humming_convert.passes.orders import LANE_BITS, LANES, Order, Tile, log2, source_order, target_order, tile_of, transpositions
from humming_convert.passes.positions import BLOCK, packed_bits, padded_width, tile_columns
from humming_convert.passes.route import Route

MAX_REGISTERS = 64  # vectors of a tile
AHEAD = 4096  # bytes: some tiles of a strip, which was written past the caches; 512 to 16384 were tried


class Way(Struct, frozen=True, kw_only=True):
    """row_unit, column_unit: a tile may start at any multiple of them. group: columns that share an aux value (0: no aux, or one a row)."""

    route: Route
    tile: Tile
    source: Order
    target: Order
    row_unit: int
    column_unit: int
    group: int


def is_power(x: int) -> bool:
    return x > 0 and x & (x - 1) == 0


@lru_cache(maxsize=256)
def way(recipe: WeightRecipe, packing: str, pitch: int, still: bool = False) -> Way | None:
    """None: nothing compiled for it (other containers than codes, raw or flat odd widths, groups that are no power of two).

    still: every E8M0 offset of the block is 0 (in real checkpoints nearly always), so that they need not be read.
    """
    bits, width = recipe.bits, padded_width(recipe.bits)
    flip = packing == "signed_rows"
    odd = width != bits
    still = still and recipe.maps == ("fused_e8m0",)
    group = 0 if still else aux_group(recipe)
    if (flip and bits != 8) or (odd and (packing == "strips" or recipe.place in ("raw", "flat"))) or (group and not is_power(group)):
        return None
    if recipe.place == "flat" and 128 % bits:
        return None
    source = source_order("rows" if flip else packing, bits, pitch)
    target = target_order(recipe)
    tile = tile_of(source, target)
    inside = log2(32 // width) + LANE_BITS
    registers = tile.source[inside:]
    if 1 << len(registers) > MAX_REGISTERS:
        return None
    aux, moves = ("", ()) if still else _aux_of(recipe, packing, source, group, registers)
    if aux is None:
        return None
    slots = log2(width) if odd else 0
    jumps = packed_bits(recipe, np.zeros(1, np.int64), np.zeros(1, np.int64)).jump
    route = Route(
        width=width,
        bits=bits,
        source=tile.source,
        target=tile.target,
        read="vectors" if not odd else "runs" if packing == "gptq" else "gathered",
        near=len(source.near),
        slots=slots,
        fixed=tuple(target.strides[x] for x in target.near[slots:]),
        jumps=_word_offsets(jumps, bits) if odd else (),
        sign=transpositions(target.fields, target.sign) if target.sign else (),
        flip=flip,
        maps=recipe.maps,
        aux=aux,
        aux_registers=moves,
        ahead=AHEAD if packing == "strips" else 0,
    )
    word = 32 if odd else 32 // width  # codes of one stored word, along the packed direction
    unit = max(min(tile.columns, tile_columns(recipe)), word if packing != "awq" else 1)
    if group:
        unit = max(unit, min(group, tile.columns))
    return Way(route=route, tile=tile, source=source, target=target, row_unit=min(tile.rows, BLOCK), column_unit=unit, group=group)


def _word_offsets(jumps: np.ndarray[tuple[int, ...], np.dtype[np.int64]], bits: int) -> tuple[int, ...]:
    """Byte offset of each of the B words of a sub-block."""
    words = np.unique(jumps // 32)
    assert len(words) == bits
    return tuple(int(x) * 4 for x in words)


def _aux_of(
    recipe: WeightRecipe, packing: str, source: Order, group: int, registers: tuple[str, ...]
) -> tuple[str | None, tuple[int, ...]]:
    """How the aux values of a tile are read, and the register bits that change them. None: no way to."""
    if not wanted(recipe):
        return "", ()
    column = log2(group) if group else 99  # the first bit of k that tells groups apart

    def tells(bit: str) -> bool:
        return bit[0] == "n" or int(bit[1:]) >= column

    if any(tells(x) for x in source.fields) and packing != "awq":
        return None, ()
    moves = tuple(i for i, x in enumerate(registers) if tells(x))
    if packing == "strips":
        return None, moves
    if packing == "awq":
        return ("words" if recipe.maps == ("int_to_float_zp",) else None), moves
    if source.lanes[0][0] == "n":
        return "lanes", moves
    return f"spread{1 << sum(tells(x) for x in source.lanes)}", moves


assert LANES == 1 << LANE_BITS
