"""Lazy tensors: what an output is made of, without its bytes.

An `Expr` has a dtype (safetensors name), a shape and the tensors it reads; `evaluate` gives an array. It can be planned, costed, pickled
and shipped. `Weight` keeps the codes of a layer as blocks in their source packing, so that one compiled pass can go from
source words to packed words; everything else is small (scales, zero points) and is computed by the named operations below.
Facts: architecture.md 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import DTYPES, NAMES, Read, TensorView
from humming_convert.standard.lossy import Changes, Meter
from humming_convert.standard.packing import PACKINGS, Codes, stream_pack, stream_unpack, take_words, takes_whole_words

Array = NDArray[Any]


LookUp = Callable[[NDArray[np.uint16], NDArray[np.uint16]], tuple[NDArray[np.uint16], NDArray[np.int64]]]


def look_up(codes: NDArray[np.uint16], table: NDArray[np.uint16]) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """`table[codes]`, and how often each code occurs [65536]."""
    return np.take(table, codes), np.bincount(codes.reshape(-1), minlength=1 << 16).astype(np.int64)


class Context(Struct):
    """What evaluation needs from outside: `read` gives a stored tensor, `meter` takes the measures of lossy steps. look_up: `look_up` or a pass
    that does the same."""

    read: Read
    meter: Meter
    look_up: LookUp = look_up


class Expr(Protocol):
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def reads(self) -> tuple[TensorView, ...]: ...
    def evaluate(self, context: Context) -> Array: ...


class Stored(Struct, frozen=True):
    """A tensor as it lies in a file."""

    view: TensorView

    @property
    def dtype(self) -> str:
        return self.view.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    def reads(self) -> tuple[TensorView, ...]:
        return (self.view,)

    def evaluate(self, context: Context) -> Array:
        return context.read(self.view)


class Full(Struct, frozen=True):
    """One value everywhere."""

    dtype: str
    shape: tuple[int, ...]
    value: float

    def reads(self) -> tuple[TensorView, ...]:
        return ()

    def evaluate(self, context: Context) -> Array:
        return np.full(self.shape, self.value, DTYPES[self.dtype])


Operation = Callable[..., Array]
OPERATIONS: dict[str, Operation] = {}
"""name -> function(*arrays, *params): the vocabulary of `Apply`. Pure; shape and dtype follow from those of the arguments."""


def operation(name: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        assert name not in OPERATIONS, name
        OPERATIONS[name] = function
        return function

    return register


class Apply(Struct, frozen=True):
    """`op` of OPERATIONS on the values of `args`, with plain `params`. Made by `apply`, which finds dtype and shape."""

    op: str
    args: tuple[Expr, ...]
    params: tuple[Any, ...]
    dtype: str
    shape: tuple[int, ...]

    def reads(self) -> tuple[TensorView, ...]:
        return tuple(v for a in self.args for v in a.reads())

    def evaluate(self, context: Context) -> Array:
        out = OPERATIONS[self.op](*(a.evaluate(context) for a in self.args), *self.params)
        assert NAMES[out.dtype] == self.dtype and out.shape == self.shape, (self.op, out.dtype, out.shape, self.dtype, self.shape)
        return out


def apply(op: str, *args: Expr, params: tuple[Any, ...] = (), dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Apply:
    """An `Apply`. dtype: of the first argument unless given. shape: found by running `op` on broadcast zeros unless given."""
    if shape is None:
        dummies = [np.broadcast_to(np.zeros((), DTYPES[a.dtype]), a.shape) for a in args]
        shape = OPERATIONS[op](*dummies, *params).shape
    return Apply(op, args, params, dtype or args[0].dtype, shape)


@operation("transpose")
def _transpose(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


@operation("reshape")
def _reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


@operation("index")
def _index(x: Array, i: int) -> Array:
    """Entry i of the first axis (one expert)."""
    return np.asarray(x[i])


@operation("rows")
def _rows(x: Array, start: int, stop: int, step: int) -> Array:
    """A slice of the axis N: the last but one, or the only one."""
    axis = max(x.ndim - 2, 0)
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


@operation("columns")
def _columns(x: Array, start: int, stop: int, step: int) -> Array:
    """A slice of the last axis."""
    return x[..., slice(start, stop, step)]


@operation("concat")
def _concat(*args: Any) -> Array:
    """Parts stacked along an axis: the last argument."""
    return np.concatenate(args[:-1], axis=args[-1])


@operation("stack")
def _stack(*args: Array) -> Array:
    """A new first axis (experts)."""
    return np.stack(args)


@operation("repeat")
def _repeat(x: Array, count: int, axis: int, length: int) -> Array:
    """Each entry along `axis` `count` times, cut to `length`."""
    return np.take(np.repeat(x, count, axis), np.arange(length), axis)


@operation("view")
def _view(x: Array, dtype: str) -> Array:
    """The same bytes read as another dtype of the same width."""
    return np.ascontiguousarray(x).view(DTYPES[dtype])


@operation("reciprocal")
def _reciprocal(x: Array) -> Array:
    """1 / x in float32 (formats.md 4.5: one rounding)."""
    return np.asarray(np.float32(1) / x.astype(np.float32))


@operation("maximum")
def _maximum(*args: Array) -> Array:
    """Elementwise maximum."""
    return np.asarray(np.maximum.reduce(args))


def cast_values(x: Array, dtype: str) -> Array:
    """Values to F16, BF16 or F32, nearest even from their exact value. F64 goes through float32 as the library's loaders do."""
    target = DTYPES[dtype]
    if x.dtype == target:
        return x
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows, and NaN, are findings of the checks
        return np.asarray(x.astype(np.float32).astype(target))


@lru_cache(maxsize=4)
def cast_table(source: str, target: str) -> tuple[Array, Changes]:
    """What each of the 65536 numbers of a 16-bit dtype becomes in another [65536], and how far it moves."""
    before = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[source])
    after = cast_values(before, target)
    return after, Changes.of(before, after)


class Cast(Struct, frozen=True):
    """Values rounded to another dtype; what it changes is measured under `step` for the role `tensor`."""

    arg: Expr
    dtype: str
    step: str
    tensor: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arg.shape

    def reads(self) -> tuple[TensorView, ...]:
        return self.arg.reads()

    def evaluate(self, context: Context) -> Array:
        before = self.arg.evaluate(context)
        if before.dtype.itemsize == 2 and before.size >= 1 << 16:
            # every number there is, once: a table to look up and a count to measure with, ten times faster than arithmetic
            casts, changes = cast_table(self.arg.dtype, self.dtype)
            turned = before.T if before.T.flags.c_contiguous else before  # in the order in which they lie
            after, counts = context.look_up(np.ascontiguousarray(turned).view(np.uint16), casts.view(np.uint16))
            context.meter.record_counts(self.step, self.tensor, changes, counts)
            return after.view(casts.dtype) if turned is before else after.view(casts.dtype).T
        after = cast_values(before, self.dtype)
        context.meter.record(self.step, self.tensor, before, after)
        return after


class Recode(Struct, frozen=True, kw_only=True):
    """An exact change of integer codes after they are unpacked and ordered: code + add - zero point, as a code of `bits` bits.

    zero_point: words of the layer [experts?, ceil(rows*zero_bits/32), groups], None for none; `expert`, `row`: the block's place in it.
    Made by standard/rewrite.py (runtimes.md 1.8).
    """

    bits: int
    add: int
    zero_point: Expr | None = None
    zero_bits: int = 0
    rows: int = 0
    expert: int | None = None
    row: int = 0

    def apply(self, codes: Codes, context: Context) -> Codes:
        """codes [n, k] -> codes [n, k] of `bits` bits."""
        out = codes.astype(np.int16) + np.int16(self.add)
        if self.zero_point is not None:
            words = self.zero_point.evaluate(context)
            words = words if self.expert is None else words[self.expert]
            zeros = stream_unpack(np.ascontiguousarray(words.T), self.zero_bits, self.rows).T[self.row : self.row + codes.shape[0]]
            out -= np.repeat(zeros.astype(np.int16), codes.shape[1] // zeros.shape[1], 1)
        assert out.min(initial=0) >= 0 and out.max(initial=0) < 1 << self.bits, (self.bits, int(out.min()), int(out.max()))
        return out.astype(np.uint8)


Span = tuple[int, int]  # first, end


class Window(Struct, frozen=True, kw_only=True):
    """What a block was cut from: `n`, `k` of the stored part, and the block's first `row` and `column` in it."""

    n: int
    k: int
    row: int = 0
    column: int = 0


class CodeBlock(Struct, frozen=True, kw_only=True):
    """The codes of one part (one projection, or one expert's) in a stored tensor, or of a window of it.

    `index`: entry of the leading axes of the stored tensor ((): none), e.g. the expert of a 3-D tensor.
    `packing`: a name of PACKINGS; `n`, `k`: of the block.  `row_order`, `col_order`: integer exprs [n], [k]: new row i is
    old row row_order[i] (act-order folding); None: as stored.  `bits`: of the stored codes; `recode`: what is done to them afterwards
    (then the bits of the weight are recode.bits).  `window`: None where the block is all of the part; an axis with an order of its own
    is picked by that order, of the whole part.
    """

    part: str
    view: TensorView
    packing: str
    bits: int
    n: int
    k: int
    index: tuple[int, ...] = ()
    row_order: Expr | None = None
    col_order: Expr | None = None
    recode: Recode | None = None
    window: Window | None = None

    @property
    def whole(self) -> Window:
        """The stored part, and where the block begins in it."""
        return self.window or Window(n=self.n, k=self.k)

    def place(self, rows: Span, columns: Span) -> tuple[Span, Span]:
        """Rows and columns of the block as those of the stored part."""
        w = self.whole
        return (rows[0] + w.row, rows[1] + w.row), (columns[0] + w.column, columns[1] + w.column)

    @property
    def taken(self) -> tuple[Span, Span]:
        """Rows and columns of the stored part that the codes are made of: all of them along an axis with an order of its own."""
        w = self.whole
        rows, columns = self.place((0, self.n), (0, self.k))
        return (0, w.n) if self.row_order is not None else rows, (0, w.k) if self.col_order is not None else columns

    @property
    def whole_words(self) -> bool:
        """Whether the block can be taken from the stored array without cutting a stored word."""
        w = self.whole
        return self.taken == ((0, w.n), (0, w.k)) or takes_whole_words(self.packing, self.bits, w.n, w.k, *self.taken)

    def stored(self, context: Context) -> Array:
        """The block's stored array, the leading axes taken away; all of the part where the window cuts stored words."""
        w, part = self.whole, context.read(self.view.at(self.index))
        if not self.whole_words or self.taken == ((0, w.n), (0, w.k)):
            return part
        return take_words(self.packing, self.bits, part, w.n, *self.taken)

    def codes(self, context: Context) -> Codes:
        """[n, k] uint8."""
        (r0, r1), (c0, c1) = self.taken
        if self.whole_words:
            out = PACKINGS[self.packing](self.stored(context), self.bits, r1 - r0, c1 - c0)
        else:
            out = PACKINGS[self.packing](self.stored(context), self.bits, self.whole.n, self.whole.k)[r0:r1, c0:c1]
        if self.row_order is not None:
            out = out[self.row_order.evaluate(context)]
        if self.col_order is not None:
            out = out[:, self.col_order.evaluate(context)]
        return out if self.recode is None else self.recode.apply(out, context)

    def some_codes(self, context: Context, rows: NDArray[np.intp]) -> Codes:
        """[len(rows), k]: the codes of some rows, read without the others where the packing allows it."""
        if self.straight and self.packing in ("rows", "signed_rows"):
            stored = self.stored(context).reshape(self.n, -1)[rows]
            return PACKINGS[self.packing](np.ascontiguousarray(stored), self.bits, len(rows), self.k)
        if self.straight and self.packing == "gptq":
            return PACKINGS["gptq"](self.stored(context)[:, rows], self.bits, len(rows), self.k)
        if self.straight and self.packing == "awq":
            eights = rows // 8
            stored = self.stored(context)[:, eights]  # the word of each row: eight columns, of which one is wanted
            every = PACKINGS["awq"](np.ascontiguousarray(stored), self.bits, 8 * len(rows), self.k)
            return np.ascontiguousarray(every.reshape(len(rows), 8, self.k)[np.arange(len(rows)), rows % 8])
        return self.codes(context)[rows]

    @property
    def straight(self) -> bool:
        """The layer's codes are the stored ones in whole stored words: no other order, no recoding."""
        return self.row_order is None and self.col_order is None and self.recode is None and self.whole_words

    def words(self, context: Context) -> NDArray[np.int32]:
        """[n, k*bits/32]: the standard form. Whole words are moved where the source packing is the same stream."""
        if self.straight and self.k * self.bits % 32 == 0:
            if self.packing == "rows":
                return np.ascontiguousarray(self.stored(context)).view(np.uint8).reshape(self.n, -1).view("<i4")
            if self.packing == "gptq":
                return np.ascontiguousarray(self.stored(context).T).view("<i4")
            if self.packing == "signed_rows" and self.bits == 8:
                flipped = np.ascontiguousarray(self.stored(context)).view(np.uint8) ^ np.uint8(0x80)
                return flipped.reshape(self.n, -1).view("<i4")
        return stream_pack(self.codes(context), self.bits if self.recode is None else self.recode.bits)


class Weight(Struct, frozen=True, kw_only=True):
    """The role `weight` of a layer: blocks in stacking order (expert-major), every expert the same stack of rows.

    Evaluates to the standard form: int32 [n, k*bits/32], with experts [E, n, k*bits/32] (layouts.md 1).
    """

    bits: int
    n: int
    k: int
    experts: int | None
    blocks: tuple[CodeBlock, ...]

    @property
    def dtype(self) -> str:
        return "I32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*((self.experts,) if self.experts is not None else ()), self.n, self.k * self.bits // 32)

    def reads(self) -> tuple[TensorView, ...]:
        zeros = (b.recode.zero_point for b in self.blocks if b.recode is not None and b.recode.zero_point is not None)
        return (*(b.view for b in self.blocks), *(v for z in dict.fromkeys(zeros) for v in z.reads()))

    def of_expert(self, expert: int) -> tuple[tuple[int, CodeBlock], ...]:
        """(first row, block) of one expert (0 where there are none)."""
        each = len(self.blocks) // (self.experts or 1)
        out, row = [], 0
        for block in self.blocks[expert * each : (expert + 1) * each]:
            out.append((row, block))
            row += block.n
        assert row == self.n
        return tuple(out)

    def expert_codes(self, context: Context, expert: int) -> Codes:
        """[n, k] uint8 of one expert."""
        return np.concatenate([b.codes(context) for _, b in self.of_expert(expert)])

    def expert_words(self, context: Context, expert: int) -> NDArray[np.int32]:
        """[n, k*bits/32] of one expert."""
        parts = [b.words(context) for _, b in self.of_expert(expert)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def evaluate(self, context: Context) -> Array:
        out = np.stack([self.expert_words(context, e) for e in range(self.experts or 1)])
        return out if self.experts is not None else out[0]


def stack_weights(weights: list[Weight], experts: int | None) -> Weight:
    """One weight from parts in stacking order (expert-major), all of the same K and bits."""
    first = weights[0]
    blocks = tuple(b for w in weights for b in w.blocks)
    n = sum(w.n for w in weights) // (experts or 1)
    return replace(first, n=n, experts=experts, blocks=blocks)
