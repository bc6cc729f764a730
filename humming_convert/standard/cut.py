"""Cuts of lazy tensors along N, K and the experts: what a rank holds of a layer, no byte read.

In: expressions and ranges.  Out: expressions of the ranges alone; a range of a stored tensor is read alone where its bytes are one stretch,
and codes stay in their source packing, so that compiled passes still apply.
Facts: layouts.md 12.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from humming_convert.standard.expr import Apply, Array, Cast, CodeBlock, Expr, Full, Span, Stored, Weight, Window, apply, operation

Spans = tuple[Span, ...]
EACH = ("float32",)  # operations that work number by number: a cut goes through them


@operation("take_spans")
def _take_spans(x: Array, spans: Spans, axis: int) -> Array:
    """Ranges of one axis, one after the other."""
    pieces = [x[(slice(None),) * axis + (slice(a, b),)] for a, b in spans]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis)


def length(spans: Spans) -> int:
    return sum(b - a for a, b in spans)


def scaled(spans: Spans, numerator: int, denominator: int) -> Spans:
    """The ranges in another unit (words, blocks); they must be whole there."""
    assert all(x * numerator % denominator == 0 for s in spans for x in s), (spans, numerator, denominator)
    return tuple((a * numerator // denominator, b * numerator // denominator) for a, b in spans)


def within(spans: Spans, first: int, end: int) -> Spans:
    """The parts of the ranges that lie in first..end, counted from first."""
    cut = ((max(a, first) - first, min(b, end) - first) for a, b in spans)
    return tuple((a, b) for a, b in cut if a < b)


def take(expr: Expr, axis: int, spans: Spans) -> Expr:
    """The ranges of an axis, one after the other. Pushed down to the stored tensors where that is simple."""
    if spans == ((0, expr.shape[axis]),):
        return expr
    shape = (*expr.shape[:axis], length(spans), *expr.shape[axis + 1 :])
    match expr:
        case Stored(view) if axis == 0 and len(spans) == 1:
            return Stored(view.rows(*spans[0]))
        case Full(dtype, _, value):
            return Full(dtype, shape, value)
        case Cast(arg, dtype, step, tensor):
            return Cast(take(arg, axis, spans), dtype, step, tensor)
        case Apply(op, (arg,), params, dtype, _) if op in EACH:
            return Apply(op, (take(arg, axis, spans),), params, dtype, shape)
        case Apply("stack", args, params, dtype, _):
            chosen = [take(a, axis - 1, spans) for a in args] if axis else [args[i] for a, b in spans for i in range(a, b)]
            return Apply("stack", tuple(chosen), params, dtype, shape)
        case Apply("concat", args, (0,), dtype, _) if axis == 0:
            return _of_concat(args, dtype, spans, shape)
        case Apply("concat", args, (0,), dtype, _):
            return Apply("concat", tuple(take(a, axis, spans) for a in args), (0,), dtype, shape)
    return apply("take_spans", expr, params=(spans, axis), shape=shape)


def _of_concat(args: Sequence[Expr], dtype: str, spans: Spans, shape: tuple[int, ...]) -> Expr:
    """Ranges in ascending order or not: each is taken from the parts it lies in."""
    pieces: list[Expr] = []
    for span in spans:
        first = 0
        for a in args:
            mine = within((span,), first, first + a.shape[0])
            if mine:
                pieces.append(take(a, 0, mine))
            first += a.shape[0]
    return pieces[0] if len(pieces) == 1 else Apply("concat", tuple(pieces), (0,), dtype, shape)


# ------------------------------------------------------------------ codes
def take_codes(weight: Weight, *, experts: Span | None, rows: Spans, columns: Span) -> Weight:
    """The weight of some experts (None: it has none), of row ranges of each and of one range of columns."""
    blocks: list[CodeBlock] = []
    for expert in range(*experts) if experts is not None else (0,):
        for span in rows:
            for first, block in weight.of_expert(expert):
                blocks += [_of_block(block, mine, columns) for mine in within((span,), first, first + block.n)]
    return replace(
        weight,
        n=length(rows),
        k=columns[1] - columns[0],
        experts=experts[1] - experts[0] if experts is not None else None,
        blocks=tuple(blocks),
    )


def _of_block(block: CodeBlock, rows: Span, columns: Span) -> CodeBlock:
    if rows == (0, block.n) and columns == (0, block.k):
        return block
    w, recode = block.whole, block.recode
    if recode is not None:
        zeros = recode.zero_point
        if zeros is not None and zeros.shape[-1] > 1 and columns != (0, block.k):
            zeros = take(zeros, len(zeros.shape) - 1, scaled((columns,), zeros.shape[-1], block.k))
        recode = replace(recode, row=recode.row + rows[0], zero_point=zeros)
    return replace(
        block,
        n=rows[1] - rows[0],
        k=columns[1] - columns[0],
        window=Window(n=w.n, k=w.k, row=w.row + rows[0], column=w.column + columns[0]),
        row_order=None if block.row_order is None else take(block.row_order, 0, (rows,)),
        col_order=None if block.col_order is None else take(block.col_order, 0, (columns,)),
        recode=recode,
    )
