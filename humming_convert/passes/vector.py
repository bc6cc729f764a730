"""Vectors of sixteen words while code is emitted: operators, memory, and the moves of bits that a tile needs.

A `Words` is one vector register; its operators append instructions. The functions below take and give lists of them.
In: a builder and lists of vectors.  Out: lists of vectors.  Portable LLVM IR: the compiler chooses AVX-512, AVX2, SSE or NEON.
Facts: layouts.md 5.3 for `compacted` and `expanded`, by way of `positions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Union

from llvmlite import ir

from humming_convert.passes.maps import Fields
from humming_convert.passes.orders import LANES, log2
from humming_convert.passes.positions import compacted_bits

I1, I8, I32, I64 = (ir.IntType(n) for n in (1, 8, 32, 64))
VECTOR = ir.VectorType(I32, LANES)
Value = Any  # an llvmlite value: the library carries no types
Operand = Union["Words", int]


class Words:
    """Sixteen 32-bit words in a register."""

    __slots__ = ("b", "v")

    def __init__(self, b: Value, v: Value) -> None:
        self.b, self.v = b, v

    def _other(self, other: Operand) -> Value:
        return other.v if isinstance(other, Words) else ir.Constant(VECTOR, [other & 0xFFFFFFFF] * LANES)

    def __and__(self, other: Operand) -> Words:
        return Words(self.b, self.b.and_(self.v, self._other(other)))

    def __or__(self, other: Operand) -> Words:
        return Words(self.b, self.b.or_(self.v, self._other(other)))

    def __xor__(self, other: Operand) -> Words:
        return Words(self.b, self.b.xor(self.v, self._other(other)))

    def __add__(self, other: Operand) -> Words:
        return Words(self.b, self.b.add(self.v, self._other(other)))

    def __sub__(self, other: Operand) -> Words:
        return Words(self.b, self.b.sub(self.v, self._other(other)))

    def __mul__(self, other: Operand) -> Words:
        return Words(self.b, self.b.mul(self.v, self._other(other)))

    def __lshift__(self, by: int) -> Words:
        return Words(self.b, self.b.shl(self.v, self._other(by))) if by else self

    def __rshift__(self, by: int) -> Words:
        return Words(self.b, self.b.lshr(self.v, self._other(by))) if by else self

    def __invert__(self) -> Words:
        return self ^ 0xFFFFFFFF

    def equals(self, value: int) -> Words:
        """All ones in each word that equals `value`."""
        return Words(self.b, self.b.sext(self.b.icmp_unsigned("==", self.v, self._other(value)), VECTOR))


# ---- control and memory


@contextmanager
def counted(b: Value, count: Value) -> Iterator[Value]:
    """A loop body that runs for 0 .. count-1 (not at all for 0)."""
    with b.goto_entry_block():
        place = b.alloca(I64)
    b.store(I64(0), place)
    head, body, end = (b.append_basic_block(x) for x in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    i = b.load(place, typ=I64)
    b.cbranch(b.icmp_signed("<", i, count), body, end)
    b.position_at_end(body)
    yield i
    b.store(b.add(i, I64(1)), place)
    b.branch(head)
    b.position_at_end(end)


def at(b: Value, pointer: Value, offset: Value) -> Value:
    return b.gep(pointer, [offset], source_etype=I8)


def load(b: Value, pointer: Value, offset: Value) -> Words:
    """No alignment needed: tensors of a file lie anywhere."""
    return Words(b, b.load(at(b, pointer, offset), typ=VECTOR, align=1))


def store(b: Value, pointer: Value, offset: Value, words: Words, past: bool = False) -> None:
    """past: by the caches, to a line's start: what is read much later would only be fetched to be written over."""
    stored = b.store(words.v, at(b, pointer, offset), align=4 * LANES if past else 1)
    if past:
        stored.set_metadata("nontemporal", b.module.add_metadata([I32(1)]))


def prefetch(b: Value, pointer: Value, offset: Value) -> None:
    """A hint that the cache line will be read soon."""
    name = "llvm.prefetch.p0"
    function = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(ir.VoidType(), [ir.PointerType(), I32, I32, I32]), name)
    b.call(
        function, [at(b, pointer, offset), I32(0), I32(2), I32(1)]
    )  # read, into the second cache: rows may share one set of the first, data


def offsets(b: Value, start: Value, strides: Sequence[Value]) -> list[Value]:
    """Entry r is start + the strides of the set bits of r."""
    out = [start]
    for stride in strides:
        out += [b.add(x, stride) for x in out]
    return out


def gathered(b: Value, pointer: Value, offset: Value, stride: Value, type_: Value = I32) -> Words:
    """Lane l is the value at offset + l * stride, widened to 32 bits."""
    out = ir.Constant(VECTOR, ir.Undefined)
    for lane in range(LANES):
        one = b.load(at(b, pointer, b.add(offset, b.mul(stride, I64(lane)))), typ=type_, align=1)
        out = b.insert_element(out, b.zext(one, I32) if type_ is not I32 else one, I32(lane))
    return Words(b, out)


def spread_bytes(b: Value, pointer: Value, offset: Value, count: int) -> Words:
    """`count` bytes in a row, each widened over LANES / count lanes."""
    few = ir.VectorType(I32, count)
    read = b.load(at(b, pointer, offset), typ=ir.VectorType(I8, count), align=1)
    wide = b.zext(read, few)
    lanes = [lane * count // LANES for lane in range(LANES)]
    return Words(b, b.shuffle_vector(wide, ir.Constant(few, ir.Undefined), ir.Constant(VECTOR, lanes)))


def any_bit(b: Value, words: Words) -> Value:
    whole = ir.IntType(32 * LANES)
    return b.icmp_unsigned("!=", b.bitcast(words.v, whole), whole(0))


def zero(b: Value) -> Words:
    return Words(b, ir.Constant(VECTOR, [0] * LANES))


# ---- bits between registers, lanes and fields


def shuffled(x: Words, y: Words, lanes: Sequence[int]) -> Words:
    """Lane i is lane lanes[i] of x and y in a row."""
    return Words(x.b, x.b.shuffle_vector(x.v, y.v, ir.Constant(VECTOR, list(lanes))))


def _exchanged(x: Words, y: Words, q: int, width: int) -> tuple[Words, Words]:
    """Exchange the register bit that tells x from y with field bit q, or with lane bit q - (number of field bits)."""
    inside = log2(32 // width)
    if q >= inside:
        bit = 1 << (q - inside)
        low = [i if not i & bit else (i ^ bit) + LANES for i in range(LANES)]
        high = [i | bit if not i & bit else i + LANES for i in range(LANES)]
        return shuffled(x, y, low), shuffled(x, y, high)
    mask = sum(((1 << width) - 1) << (f * width) for f in range(32 // width) if not f >> q & 1)
    by = width << q
    other = mask ^ 0xFFFFFFFF  # selections by one mask and its complement: one instruction each where there are ternary ones
    return (x & mask) | ((y << by) & other), ((x >> by) & mask) | (y & other)


def exchanged(regs: Sequence[Words], swaps: Sequence[tuple[int, int]], width: int) -> list[Words]:
    """The tile after the exchanges of a network, in the given order."""
    r = list(regs)
    inside = log2(32 // width) + log2(LANES)
    for p, q in swaps:
        p_bit = 1 << (p - inside)
        for i in (i for i in range(len(r)) if not i & p_bit):
            if q < inside:
                r[i], r[i | p_bit] = _exchanged(r[i], r[i | p_bit], q, width)
            elif i >> (q - inside) & 1:
                j = i ^ (1 << (q - inside)) | p_bit
                r[i], r[j] = r[j], r[i]
    return r


def elements_permuted(x: Words, places: Sequence[int]) -> Words:
    """The bits of an element's number in the vector permuted: bit i of the new number is bit places[i] of the old.

    Six places: elements are bytes; five: halves of a word.
    """
    if not places:
        return x
    count = 1 << len(places)
    old = [sum((new >> i & 1) << place for i, place in enumerate(places)) for new in range(count)]
    parts = x.b.bitcast(x.v, ir.VectorType(ir.IntType(32 * LANES // count), count))
    moved = x.b.shuffle_vector(parts, parts, ir.Constant(ir.VectorType(I32, count), old))
    return Words(x.b, x.b.bitcast(moved, VECTOR))


def inverse(places: Sequence[int]) -> list[int]:
    return [places.index(i) for i in range(len(places))]


def top_bits_moved(x: Words, exchanges: Sequence[tuple[int, int]], f: Fields) -> Words:
    """The top bits of the codes go to other fields (mode 2), by exchanges of two field bits; the low bits stay."""
    tops = x & f.top
    for low, high in exchanges:
        by = ((1 << high) - (1 << low)) * f.width
        mask = sum(1 << (field * f.width + f.bits - 1) for field in range(32 // f.width) if field >> low & 1 and not field >> high & 1)
        moved = (tops ^ (tops >> by)) & mask
        tops = tops ^ moved ^ (moved << by)
    return (x & ~f.top) | tops


# ---- odd widths


def spread_fields(run: Sequence[Words], f: Fields) -> list[Words]:
    """B words that hold 32 codes one after the other -> W words of 32/W fields."""
    length = 32 // f.width
    taken = length * f.bits
    out = []
    for j in range(f.width):
        word, shift = divmod(j * taken, 32)
        x = run[word] >> shift
        if shift + taken > 32:
            x = x | (run[word + 1] << (32 - shift))
        x = x & ((1 << taken) - 1)
        half = length // 2
        while half:  # halves apart, then quarters, ..
            low = sum(((1 << half * f.bits) - 1) << i for i in range(0, 32, 2 * half * f.width))
            x = (x & low) | ((x & (low << half * f.bits)) << half * (f.width - f.bits))
            half //= 2
        out.append(x)
    return out


def _moves(f: Fields) -> dict[tuple[int, int, int], int]:
    """(padded word, packed word, shift to the left) -> mask of the bits of a code that move so."""
    word, bit = compacted_bits(f.bits, f.width)
    out: dict[tuple[int, int, int], int] = {}
    for j in range(f.width):
        for i in range(f.bits):
            key = (j, int(word[j, i]), int(bit[j, i]) - i)
            out[key] = out.get(key, 0) | 1 << i
    return out


def _shifted(x: Words, by: int) -> Words:
    return x << by if by >= 0 else x >> -by


def compacted(padded: Sequence[Words], f: Fields) -> list[Words]:
    """W padded words -> B words."""
    out: list[Words | None] = [None] * f.bits
    for (j, word, by), mask in _moves(f).items():
        part = _shifted(padded[j] & f.every(mask), by)
        have = out[word]
        out[word] = part if have is None else have | part
    return [x for x in out if x is not None]


def expanded(packed: Sequence[Words], f: Fields) -> list[Words]:
    """B words -> W padded words."""
    out: list[Words | None] = [None] * f.width
    for (j, word, by), mask in _moves(f).items():
        part = _shifted(packed[word], -by) & f.every(mask)
        have = out[j]
        out[j] = part if have is None else have | part
    return [x for x in out if x is not None]


def _picked(vectors: Sequence[Words], wanted: Sequence[tuple[int, int]]) -> Words:
    """Lane i is lane wanted[i][1] of vector wanted[i][0]."""
    used = sorted({v for v, _ in wanted})
    out = shuffled(vectors[used[0]], vectors[used[0]], [lane if v == used[0] else 0 for v, lane in wanted])
    for one in used[1:]:
        out = shuffled(out, vectors[one], [lane + LANES if v == one else i for i, (v, lane) in enumerate(wanted)])
    return out


def woven(vectors: Sequence[Words]) -> list[Words]:
    """Lane 0 of each, lane 1 of each, .. as one run of words."""
    m = len(vectors)
    return [_picked(vectors, [((o + i) % m, (o + i) // m) for i in range(LANES)]) for o in range(0, m * LANES, LANES)]


def unwoven(run: Sequence[Words]) -> list[Words]:
    m = len(run)
    return [_picked(run, [divmod(lane * m + one, LANES) for lane in range(LANES)]) for one in range(m)]
