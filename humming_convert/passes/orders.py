"""Orders: a layout of power-of-two fields as a list of address bits, and the network of exchanges between two lists.

    GPTQ, 4 bits     field k0 k1 k2   lanes n0 n1 n2 n3   then k3 .., n4 ..
    A16, 4 bits      field k3 n3 k0   lanes n4 n5 k1 k2   then n0 n1 n2, n6 .., k4 ..

A bit is a name: `n3` is bit 3 of the row number. Low first: bits that choose the field in a 32-bit word, then bits that choose the
word. A tile is the union of what is inside 16 words on either side: it lives in vector registers, all other bits are loops.
In: a recipe or a packing.  Out: a `Tile`.  Facts: layouts.md 5; the target lists are read off `positions`, not written again.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.passes.positions import STRIP, packed_bits, padded_width

LANES = 16  # 32-bit words in a vector
LANE_BITS = 4
TOP = 24  # bits of n and k that are looked at: 2**24 rows


def log2(x: int) -> int:
    assert x > 0 and x & (x - 1) == 0, x
    return x.bit_length() - 1


def names(letter: str, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"{letter}{i}" for i in range(first, last))


class Order(Struct, frozen=True, kw_only=True):
    """fields: low bit of the field number first.  lanes: the four bits that choose a word of a vector.
    near: bits that must be registers besides (padded words of a sub-block, words between those of one lane), with no stride of
    their own or a fixed one.  strides: bytes a word-choosing bit adds.  sign: fields of the top bits, if they differ (mode 2)."""

    fields: tuple[str, ...]
    lanes: tuple[str, ...]
    near: tuple[str, ...]
    strides: dict[str, int]
    sign: tuple[str, ...] = ()


def source_order(packing: str, bits: int, pitch: int) -> Order:
    """The order of a stored block. Odd widths: after each 32-code run along k was spread to W padded words (lanes are rows)."""
    w = padded_width(bits)
    inside = log2(32 // w)
    if packing == "awq":
        strides = {f"n{i}": 4 << (i - 3) for i in range(3, TOP)} | {f"k{i}": pitch << i for i in range(TOP)}
        return Order(fields=("n1", "n2", "n0"), lanes=names("n", 3, 7), near=(), strides=strides)
    fields = names("k", 0, inside)
    if w != bits:
        strides = {f"k{i}": (pitch * bits if packing == "gptq" else 4 * bits) << (i - 5) for i in range(5, TOP)}
        strides |= {f"n{i}": (4 if packing == "gptq" else pitch) << i for i in range(TOP)}
        return Order(fields=fields, lanes=names("n", 0, 4), near=names("k", inside, 5), strides=strides)
    if packing == "strips":  # two words of each row
        strides = {f"n{i}": STRIP << i for i in range(TOP)} | {f"k{inside}": 4}
        strides |= {f"k{i}": pitch << (i - inside - 1) for i in range(inside + 1, TOP)}
        return Order(fields=fields, lanes=(f"k{inside}", *names("n", 0, LANE_BITS - 1)), near=(), strides=strides)
    if packing == "gptq":
        strides = {f"n{i}": 4 << i for i in range(TOP)} | {f"k{i}": pitch << (i - inside) for i in range(inside, TOP)}
        return Order(fields=fields, lanes=names("n", 0, 4), near=(), strides=strides)
    strides = {f"k{i}": 4 << (i - inside) for i in range(inside, TOP)} | {f"n{i}": pitch << i for i in range(TOP)}
    return Order(fields=fields, lanes=names("k", inside, inside + LANE_BITS), near=(), strides=strides)


def target_order(recipe: WeightRecipe) -> Order:
    """The order of packed words, found by asking the address formula where each single bit of n and k goes."""
    w, b = padded_width(recipe.bits), recipe.bits
    powers = np.array([0] + [1 << i for i in range(TOP)])
    zeros = np.zeros_like(powers)
    fields, tops, slots, strides = {}, {}, {}, {}
    for letter in "nk":
        bits = packed_bits(recipe, powers if letter == "n" else zeros, powers if letter == "k" else zeros)
        place, slot = bits.rows + bits.columns, bits.row_slot + bits.column_slot
        for i in range(TOP):
            name, step = f"{letter}{i}", place[i + 1] - place[0]
            if slot[i + 1]:
                slots[name] = int(slot[i + 1])
            elif 0 < step[0] < 32:
                fields[name] = int(step[0]) // w
                tops[name] = int(step[-1]) // w
            else:
                strides[name] = int(step[0]) // 8
    jumps = packed_bits(recipe, powers[:1], powers[:1]).jump
    if w == b:  # a padded word is a word: slots are ordinary word bits
        strides |= {name: int(jumps[slot, 0] - jumps[0, 0]) // 8 for name, slot in slots.items()}
        slots = {}
    step = 4 * b if slots else 4  # bytes from lane to lane
    # raw rows of less than 16 words: a bit of n may add what a bit of k beyond the row would; the tile keeps to k and finds no room
    by_stride = {stride: x for x, stride in strides.items()}
    lanes = tuple(by_stride[step << i] for i in range(LANE_BITS))
    near = sorted(slots, key=lambda x: slots[x]) + [x for x in strides if strides[x] < step]
    sign = tuple(sorted(tops, key=lambda x: tops[x])) if tops != fields else ()
    return Order(fields=tuple(sorted(fields, key=lambda x: fields[x])), lanes=lanes, near=tuple(near), strides=strides, sign=sign)


class Tile(Struct, frozen=True, kw_only=True):
    """source, target: all bits of the tile in either order (fields, lanes, registers).  rows, columns: the box that holds the tile.
    rest: bits of the box that are not in the tile, loops inside the box."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    rows: int
    columns: int
    rest: tuple[str, ...]


def tile_of(source: Order, target: Order) -> Tile:
    first = len(source.fields) + LANE_BITS
    s, d = source.fields + source.lanes + source.near, target.fields + target.lanes + target.near
    assert len(target.fields) + LANE_BITS == first
    s += tuple(x for x in d if x not in s)
    d += tuple(x for x in s if x not in d)
    rows, columns = (1 << max((int(x[1:]) + 1 for x in s if x[0] == letter), default=0) for letter in "nk")
    box = names("n", 0, log2(rows)) + names("k", 0, log2(columns))
    return Tile(source=s, target=d, rows=rows, columns=columns, rest=tuple(x for x in box if x not in s))


class Network(Struct, frozen=True, kw_only=True):
    """From one order to another. swaps: pairs of places (a register place, any place) to exchange one after the other.
    final: after them, byte place i of each vector takes the bit of byte place final[i]; () if they are in order."""

    swaps: tuple[tuple[int, int], ...]
    final: tuple[int, ...]


def network(source: tuple[str, ...], target: tuple[str, ...], inside: int, small: int) -> Network:
    """Few exchanges between registers, then one permutation of bytes within each vector, which costs one instruction.

    inside: places within a vector; the first `small` of them are smaller than a byte and are put right by exchanges.
    """
    current, swaps = list(source), []

    def exchange(p: int, q: int) -> None:
        current[p], current[q] = current[q], current[p]
        if p != q:
            swaps.append((max(p, q), min(p, q)))

    for q in range(small):
        p = current.index(target[q])
        if p != q and p < inside:  # by way of a register, best of one whose bit has to go inside anyway
            way = max(range(inside, len(current)), key=lambda r: target.index(current[r]) < inside)
            exchange(way, p)
            p = way
        exchange(p, q)
    for p in range(inside, len(current)):
        exchange(p, current.index(target[p]))
    final = tuple(current[small:inside].index(x) for x in target[small:inside])
    return Network(swaps=tuple(swaps), final=final if final != tuple(range(inside - small)) else ())


def transpositions(source: tuple[str, ...], target: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Exchanges of two places, low first, that turn `source` into `target`."""
    current, out = list(source), []
    for q, name in enumerate(target):
        p = current.index(name)
        if p != q:
            current[p], current[q] = current[q], current[p]
            out.append((q, p))
    return tuple(out)
