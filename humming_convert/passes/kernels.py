"""Kernels: the loops of a pass over tiles, and the general pass over single codes, as LLVM IR.

In: a `Route` (what to read, move and write).  Out: the text of a module with one function `kernel(int64 *parameters) -> int64`.
Parameters by name: `Route.parameters`; tables of tiles come from `plans`, so no kernel knows a shape. Imported only to compile.
Facts: layouts.md 5 by way of `orders` and `positions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from humming_convert.layouts.recipe import CodeMap
from humming_convert.passes import vector as v
from humming_convert.passes.maps import MAPS, Fields, split_for_proof, zero_fields
from humming_convert.passes.orders import LANES
from humming_convert.passes.route import GENERAL, ROW, Purpose, Route
from humming_convert.passes.vector import I8, I32, I64, Words

Value = Any


class Emitter:
    """A kernel under construction: the builder, the parameters by name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.module = ir.Module(name="passes")
        kind = ir.FunctionType(I64, [ir.PointerType()])
        function = ir.Function(self.module, kind, name="kernel")
        self.b: Value = ir.IRBuilder(function.append_basic_block("entry"))
        start = function.args[0]
        self.value = {name: self.b.load(v.at(self.b, start, I64(8 * i)), typ=I64, align=8) for i, name in enumerate(names)}

    def pointer(self, name: str) -> Value:
        return self.b.inttoptr(self.value[name], ir.PointerType())

    def entry(self, table: Value, i: Value, column: int) -> Value:
        where = self.b.add(self.b.mul(i, I64(8 * ROW)), I64(8 * column))
        return self.b.load(v.at(self.b, table, where), typ=I64, align=8)


def _read(e: Emitter, route: Route, at: Value) -> list[Words]:
    """The source's tile, one code a field, in the source's order."""
    b, src, f = e.b, e.pointer("source"), route.fields
    strides = [e.value[f"s:{x}"] for x in route.source_registers[route.near :]]
    out: list[Words] = []
    for place in v.offsets(b, at, strides):
        if route.read == "vectors":
            out.append(v.load(b, src, place))
            continue
        run = []
        for i in range(route.bits):
            if route.read == "runs":
                run.append(v.load(b, src, b.add(place, b.mul(e.value["run"], I64(i)))))
            else:
                run.append(v.gathered(b, src, b.add(place, I64(4 * i)), e.value["lane"]))
        out += v.spread_fields(run, f)
    return [x ^ f.top for x in out] if route.flip else out


def _announce(e: Emitter, route: Route, at: Value) -> None:
    """Fetches a tile's source: of the next entry of `outer` where rows lie pages apart, or `ahead` of this one, since no processor looks
    beyond a page."""
    for place in v.offsets(e.b, at, [e.value[f"s:{x}"] for x in route.source_registers[route.near :]]):
        v.prefetch(e.b, e.pointer("source"), place)


def _aux(e: Emitter, route: Route, at: Value, count: int) -> list[Words | None]:
    """The aux value of each register of the tile."""
    if not route.aux:
        return [None] * count
    b, pointer = e.b, e.pointer("aux")
    strides = [e.value[f"a:{route.source_registers[i]}"] for i in route.aux_registers]
    different = []
    for place in v.offsets(b, at, strides):
        if route.aux == "words":
            different.append(v.load(b, pointer, place))
            continue
        per_word = v.spread_bytes(b, pointer, place, LANES if route.aux == "lanes" else int(route.aux.removeprefix("spread")))
        different.append(per_word * route.fields.one if "int_to_float_zp" in route.maps else per_word)
    return [different[sum((r >> bit & 1) << i for i, bit in enumerate(route.aux_registers))] for r in range(count)]


def _mapped(tile: list[Words], aux: list[Words | None], maps: Sequence[CodeMap], f: Fields, *, back: bool = False) -> list[Words]:
    for name in reversed(maps) if back else maps:
        function = MAPS[name].back if back else MAPS[name].forth
        assert function is not None
        tile = [function(x, a, f) for x, a in zip(tile, aux)]
    return tile


def _stored_runs(route: Route) -> list[tuple[int, list[tuple[int, int]]]]:
    """Odd widths: (byte offset, [(group, word)]) of each run of words that is contiguous; group counts the `fixed` registers."""
    places = []
    for group in range(1 << len(route.fixed)):
        base = sum(stride for i, stride in enumerate(route.fixed) if group >> i & 1)
        places += [(base + jump, (group, word)) for word, jump in enumerate(route.jumps)]
    places.sort()
    runs = [places[i : i + route.bits] for i in range(0, len(places), route.bits)]
    assert all(at == run[0][0] + 4 * i for run in runs for i, (at, _) in enumerate(run)), route
    return [(run[0][0], [x for _, x in run]) for run in runs]


def _write(e: Emitter, route: Route, at: Value, tile: list[Words]) -> None:
    b, dst, f = e.b, e.pointer("target"), route.fields
    strides = [e.value[f"d:{x}"] for x in route.target_registers[route.slots + len(route.fixed) :]]
    if route.sign:
        tile = [v.top_bits_moved(x, route.sign, f) for x in tile]
    places = v.offsets(b, at, strides)
    if not route.slots:
        for place, x in zip(places, tile):
            v.store(b, dst, place, x, route.past)
        return
    many = len(tile) // len(places)
    for i, place in enumerate(places):
        part = tile[i * many : (i + 1) * many]
        words = [v.compacted(part[g : g + f.width], f) for g in range(0, many, f.width)]
        for offset, run in _stored_runs(route):
            for j, x in enumerate(v.woven([words[group][word] for group, word in run])):
                v.store(b, dst, b.add(place, I64(offset + 64 * j)), x)


def _read_back(e: Emitter, route: Route, at: Value) -> list[Words]:
    """`_write` turned: the packed words' tile, in the target's order."""
    b, dst, f = e.b, e.pointer("target"), route.fields
    strides = [e.value[f"d:{x}"] for x in route.target_registers[route.slots + len(route.fixed) :]]
    tile: list[Words] = []
    for place in v.offsets(b, at, strides):
        if not route.slots:
            tile.append(v.load(b, dst, place))
            continue
        words: list[dict[int, Words]] = [{} for _ in range(1 << len(route.fixed))]
        for offset, run in _stored_runs(route):
            vectors = [v.load(b, dst, b.add(place, I64(offset + 64 * j))) for j in range(len(run))]
            for (group, word), x in zip(run, v.unwoven(vectors)):
                words[group][word] = x
        for group_words in words:
            tile += v.expanded([group_words[w] for w in range(route.bits)], f)
    return [v.top_bits_moved(x, route.sign[::-1], f) for x in tile] if route.sign else tile


def _pack(e: Emitter, route: Route, at: tuple[Value, Value, Value]) -> None:
    tile = _read(e, route, at[0])
    tile = _mapped(tile, _aux(e, route, at[2], len(tile)), route.maps, route.fields)
    net = route.network
    tile = v.exchanged(tile, net.swaps, route.width)
    _write(e, route, at[1], [v.elements_permuted(x, net.final) for x in tile])


def _differences(e: Emitter, route: Route, at: tuple[Value, Value, Value]) -> Words:
    """Bits in which the packed words, turned back, differ from the source's."""
    ahead, undone = split_for_proof(route.maps)
    want = _read(e, route, at[0])
    aux = _aux(e, route, at[2], len(want))
    want = _mapped(want, aux, ahead, route.fields)
    net = route.network
    have = [v.elements_permuted(x, v.inverse(net.final)) for x in _read_back(e, route, at[1])]
    have = v.exchanged(have, net.swaps[::-1], route.width)
    have = _mapped(have, aux, undone, route.fields, back=True)
    out = v.zero(e.b)
    for x, y in zip(want, have):
        out = out | (x ^ y)
    return out


def _zeros(e: Emitter, route: Route, at: tuple[Value, Value, Value]) -> Words:
    out = v.zero(e.b)
    for x in _read(e, route, at[0]):
        out = out | zero_fields(x, route.fields)
    return out


def tile_kernel(route: Route, purpose: Purpose) -> str:
    """For each entry of `outer`, `inner` and `rest`: one tile, its offsets the sums of the three entries'.

    Returns 1 if a tile differed (`prove`) or held a code 0 (`zeros`). result[0]: codes compared, counted box by box as they
    are done; result[1]: tiles done.
    """
    e = Emitter(route.parameters)
    b = e.b
    tables = {x: e.pointer(x) for x in ("outer", "inner", "rest", "result")}
    found = b.alloca(v.VECTOR)
    compared, tiles = b.alloca(I64), b.alloca(I64)
    b.store(v.zero(b).v, found)
    b.store(I64(0), compared)
    b.store(I64(0), tiles)
    with v.counted(b, e.value["outers"]) as i, v.counted(b, e.value["inners"]) as j:
        with v.counted(b, e.value["rests"]) as r:
            entries = (("outer", i), ("inner", j), ("rest", r))
            s, d, a = (_sum(b, [e.entry(tables[x], at, column) for x, at in entries]) for column in range(3))
            if route.read == "vectors" and route.source[route.inside - 1][0] == "k":
                ahead = b.select(b.icmp_signed("<", b.add(i, I64(1)), e.value["outers"]), b.add(i, I64(1)), i)
                _announce(e, route, b.add(s, b.sub(e.entry(tables["outer"], ahead, 0), e.entry(tables["outer"], i, 0))))
            if purpose == "pack" and route.ahead:  # a proof reads what its packing has read
                _announce(e, route, b.add(s, I64(route.ahead)))
            if purpose == "pack":
                _pack(e, route, (s, d, a))
            else:
                bits = (_differences if purpose == "prove" else _zeros)(e, route, (s, d, a))
                b.store(b.or_(b.load(found, typ=v.VECTOR), bits.v), found)
            b.store(b.add(b.load(tiles, typ=I64), I64(1)), tiles)
        fresh = b.mul(e.entry(tables["outer"], i, 3), e.entry(tables["inner"], j, 3))
        b.store(b.add(b.load(compared, typ=I64), fresh), compared)
    b.store(b.load(compared, typ=I64), tables["result"], align=8)
    b.store(b.load(tiles, typ=I64), v.at(b, tables["result"], I64(8)), align=8)
    b.ret(b.zext(v.any_bit(b, Words(b, b.load(found, typ=v.VECTOR))), I64))
    return str(e.module)


def _sum(b: Value, values: Sequence[Value]) -> Value:
    out = values[0]
    for x in values[1:]:
        out = b.add(out, x)
    return out


# ---- one code at a time


def general_kernel(bits: int, purpose: Purpose) -> str:
    """Every code by the address formula: read bit by bit, mapped by table, written bit by bit into words that others may share.

    `prove` compares instead of writing: result[0] codes compared, [1] differing, [2..5] row, column, got, want of the first.
    Returns the number that differ.
    """
    e = Emitter(GENERAL)
    b = e.b
    p = {x: e.pointer(x) for x in GENERAL if x not in ("aux_pitch", "rows", "columns")}
    compared, wrong = b.alloca(I64), b.alloca(I64)
    b.store(I64(0), compared)
    b.store(I64(0), wrong)

    def long(name: str, index: Value) -> Value:
        return b.load(v.at(b, p[name], b.mul(index, I64(8))), typ=I64, align=8)

    def bit_index(i: Value, bit: int) -> Value:
        return b.add(b.mul(i, I64(bits)), I64(bit))

    with v.counted(b, e.value["rows"]) as n, v.counted(b, e.value["columns"]) as k:
        code = I32(0)
        for i in range(bits):
            at = b.add(long("source_rows", bit_index(n, i)), long("source_columns", bit_index(k, i)))
            byte = b.zext(b.load(v.at(b, p["source"], b.lshr(at, I64(3))), typ=I8, align=1), I32)
            one = b.and_(b.lshr(byte, b.trunc(b.and_(at, I64(7)), I32)), I32(1))
            code = b.or_(code, b.shl(one, I32(i)))
        aux_at = b.add(b.mul(n, e.value["aux_pitch"]), long("aux_columns", k))
        aux = b.zext(b.load(v.at(b, p["aux"], aux_at), typ=I8, align=1), I64)
        row = b.add(b.mul(aux, I64(1 << bits)), b.zext(code, I64))
        new = b.zext(b.load(v.at(b, p["table"], row), typ=I8, align=1), I32)
        slot = b.add(long("row_slot", n), long("column_slot", k))
        have = I32(0)
        for i in range(bits):
            at = _sum(b, [long("target_rows", bit_index(n, i)), long("target_columns", bit_index(k, i)), long("jump", bit_index(slot, i))])
            word_at = v.at(b, p["target"], b.shl(b.lshr(at, I64(5)), I64(2)))
            shift = b.trunc(b.and_(at, I64(31)), I32)
            word = b.load(word_at, typ=I32, align=4)
            if purpose == "pack":
                mask = b.shl(I32(1), shift)
                bit = b.shl(b.and_(b.lshr(new, I32(i)), I32(1)), shift)
                b.store(b.or_(b.and_(word, b.not_(mask)), bit), word_at, align=4)
            else:
                have = b.or_(have, b.shl(b.and_(b.lshr(word, shift), I32(1)), I32(i)))
        if purpose == "prove":
            _note_difference(b, p["result"], wrong, (n, k), have, new)
        b.store(b.add(b.load(compared, typ=I64), I64(1)), compared)
    b.store(b.load(compared, typ=I64), p["result"], align=8)
    count = b.load(wrong, typ=I64)
    b.store(count, v.at(b, p["result"], I64(8)), align=8)
    b.ret(count)
    return str(e.module)


def _note_difference(b: Value, result: Value, wrong: Value, at: tuple[Value, Value], have: Value, want: Value) -> None:
    with b.if_then(b.icmp_unsigned("!=", have, want)):
        count = b.load(wrong, typ=I64)
        with b.if_then(b.icmp_unsigned("==", count, I64(0))):
            for i, value in enumerate((*at, b.zext(have, I64), b.zext(want, I64))):
                b.store(value, v.at(b, result, I64(16 + 8 * i)), align=8)
        b.store(b.add(count, I64(1)), wrong)
