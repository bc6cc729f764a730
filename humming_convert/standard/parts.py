"""Which stored matrices a stacked tensor is made of, where it is nothing but these one below the other.

In: an Expr [N, G] or [E, N, G].  Out: its parts, so that each can be read where it lies and go where it belongs, without a copy in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from humming_convert.checkpoint.tensors import DTYPES, TensorView
from humming_convert.standard.expr import Apply, Expr, Stored


class StoredPart(Struct, frozen=True):
    """Rows `row` .. row + n of one expert (0 where there are none), all columns. turned: the matrix is stored as [columns, rows]."""

    expert: int
    row: int
    view: TensorView
    turned: bool

    @property
    def n(self) -> int:
        return self.view.shape[-1 if self.turned else 0]

    @property
    def columns(self) -> int:
        return self.view.shape[0 if self.turned else -1]


def stored_parts(expr: Expr) -> tuple[StoredPart, ...] | None:
    """The parts in stacking order (expert-major); None where the tensor is anything else."""
    if isinstance(expr, Stored):
        return _matrices(expr.view, turned=False)
    if not isinstance(expr, Apply) or not expr.args:
        return None
    if expr.op == "transpose":
        return _matrices(expr.args[0].view, turned=True) if isinstance(expr.args[0], Stored) else None
    if expr.op == "view":
        inside, size = stored_parts(expr.args[0]), DTYPES[expr.dtype].itemsize
        if inside is None or any(DTYPES[p.view.dtype].itemsize != size for p in inside):
            return None
        return tuple(replace(p, view=replace(p.view, dtype=expr.dtype)) for p in inside)
    rank, axis = len(expr.shape), expr.params[-1] if expr.op == "concat" else None
    if expr.op == "stack" and rank == 3:
        return _joined(expr.args, "expert")
    if axis is not None and rank in (2, 3) and axis % rank == rank - 2:
        return _joined(expr.args, "row")
    return None


def _matrices(view: TensorView, turned: bool) -> tuple[StoredPart, ...] | None:
    if len(view.shape) == 2:
        return (StoredPart(0, 0, view, turned),)
    return tuple(StoredPart(e, 0, view.at((e,)), turned) for e in range(view.shape[0])) if len(view.shape) == 3 else None


def _joined(args: Iterable[Expr], along: str) -> tuple[StoredPart, ...] | None:
    """The parts of arrays one after the other: each the next expert, or the next rows."""
    out: list[StoredPart] = []
    before = 0
    for arg in args:
        parts = stored_parts(arg)
        if parts is None:
            return None
        out += [replace(p, **{along: getattr(p, along) + before}) for p in parts]
        before += 1 if along == "expert" else arg.shape[-2]
    return tuple(sorted(out, key=lambda p: (p.expert, p.row)))
