"""Layers whose weights are all zero: pruned experts exist, lost layers too, so a person should know.

In: standard layers.  Out: warnings. The first words of a tensor tell almost always that it is not zero; the rest is read only where they are.
FP8 bytes are looked at by their own check, which goes through them anyway (checks.py).  Facts: formats.md 12 row 46.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.formats.source import Source
from humming_convert.standard.expr import CodeBlock, Context, Expr, Weight
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import values
from humming_convert.standard.packing import PACKINGS, Codes, take_words, takes_whole_words
from humming_convert.standard.packing_ct import zero_codes

# packing -> what its first stored rows are: "row": one row of K codes; "columns": 32 codes of every row; "column": 16 codes of every row
LEAST = 16  # weights of a group, at least
ROWS = 64  # rows that are looked at first
COLUMNS = 256  # columns of a row
FIRST = {
    "rows": "row",
    "signed_rows": "row",
    "padded": "row",
    "gptq": "columns",
    "gptq_planar": "columns",
    "awq": "column",
    "awq_stream": "column",
}


def warn_zero_weights(source: Source, layers: Iterable[StandardLayer]) -> None:
    """weight-all-zero, one finding a part."""
    context = Context(source.read, Meter())
    for layer in layers:
        weight = layer.tensors.get("weight")
        if not isinstance(weight, Weight) or layer.form.number.name in ("float8e4m3", "float8e5m2") or layer.form.zero_point == "fp":
            continue
        for i, block in enumerate(weight.blocks):
            if block.packing in FIRST and _zero(layer, block, i if layer.experts is not None else None, context):
                source.findings.warning(
                    "weight-all-zero",
                    f"every weight{f' of expert {i}' if layer.experts is not None else ''} is 0",
                    layer=layer.name,
                    tensor=block.view.name,
                    file=block.view.file.name,
                    advice="compare with the source model; pruned experts exist",
                )


def _zero(layer: StandardLayer, block: CodeBlock, expert: int | None, context: Context) -> bool:
    if layer.form.zero_point == "none":
        nothing = values(layer.form.number.name) == 0
        return bool(nothing[_first(block, context)].all()) and bool(nothing[block.codes(context)].all())
    first = _first(block, context)
    if not (first[:, :LEAST] == first[:, :1]).all():  # within a group zero weights have one code; zero points need not be read to see it
        return False
    zeros = _zero_points(layer.tensors["zero_point"], layer, expert, context)
    each = layer.k // zeros.shape[1]
    columns = np.repeat(zeros, each, 1)
    if not (first == columns[: first.shape[0], : first.shape[1]]).all():
        return False
    return bool((block.codes(context) == columns).all())


def _first(block: CodeBlock, context: Context) -> Codes:
    """Some codes from the beginning of the stored tensor: of row 0, or of column 0 (to 31) and a few rows."""
    kind = FIRST[block.packing]
    view, rows = block.view.at(block.index), {"row": 1, "columns": block.bits, "column": LEAST}[kind]
    # of a whole tensor only these rows are asked for: what is not looked at is not mapped
    stored = context.read(view.rows(0, min(rows, view.shape[0]))) if block.window is None else block.stored(context)[:rows]
    if block.packing in ("gptq", "gptq_planar", "awq") and block.n % ROWS == 0:
        each = block.n // stored.shape[1]  # rows that share a stored column: eight of AWQ
        stored, block = stored[:, : ROWS // each], replace(block, n=ROWS)
    if kind == "row" and takes_whole_words(block.packing, block.bits, 1, block.k, (0, 1), (0, min(COLUMNS, block.k))):
        stored, block = (
            take_words(block.packing, block.bits, stored, 1, (0, 1), (0, min(COLUMNS, block.k))),
            replace(block, k=min(COLUMNS, block.k)),
        )
    n, k = (1, block.k) if kind == "row" else (block.n, min(32 if kind == "columns" else LEAST, block.k))
    return PACKINGS[block.packing](np.ascontiguousarray(stored), block.bits, n, k)


def _zero_points(expr: Expr, layer: StandardLayer, expert: int | None, context: Context) -> NDArray[np.uint8]:
    """Codes [n, groups] of one expert."""
    words = expr.evaluate(context)
    return zero_codes(words if expert is None else words[expert], layer.form.number.bits, layer.n)
