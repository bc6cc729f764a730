"""MiMo V2 Pro: `qkv_proj` stored in chunks [Q0|K0|V0|Q1|K1|V1|...], each with its own grid of block scales.

In: the module, its scale grid.  Out: the order of its rows, and its scales by row; or a finding that asks.
Facts: formats.md 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.assemble import Draft, unverified
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, apply
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.rewrite import even_groups

RULES = (Rule(670, "qkv-layout", "the rows of a MiMo qkv_proj are known to be plain or in chunks"),)

Chunked = Callable[[Expr, int, int], "tuple[ScaleForm, Expr] | None"]


def chunk_order(source: Source, module: Module, n: int, scale: TensorView, d: Draft) -> tuple[Expr | None, Chunked | None]:
    """(row order, reader of the scales) for a chunked qkv_proj, (None, None) for a plain one."""
    config = source.checkpoint.text_config
    if (
        not source.checkpoint.model_type.startswith("mimo")
        or not module.name.endswith(".qkv_proj")
        or d.config.block is None
        or len(scale.shape) != 2
    ):
        return None, None
    sizes = _sizes(config)
    if sizes is None or sum(sizes[1:]) * sizes[0] != n:
        return None, None
    chunks, q, k, v = sizes
    block_n, block_k = d.config.block
    rows, plain, chunked = q + k + v, -(-n // block_n), chunks * -(-(q + k + v) // block_n)
    asked = source.options.qkv_layout
    if scale.shape[0] not in (plain, chunked):
        return None, None  # the grid fits neither: the shape rule says so
    if plain == chunked and asked == "auto":
        d.error(
            "qkv-layout",
            f"{n} rows may be [Q; K; V] or {chunks} chunks of {rows} rows, and the {plain} rows of scales fit both",
            advice="--qkv-layout plain or chunked, as the model's publisher says",
        )
        return None, None
    if (asked if plain == chunked else "plain" if scale.shape[0] == plain else "chunked") == "plain":
        return None, None
    unverified(source, "MiMo qkv_proj in chunks")
    order = apply("chunk_order", params=(chunks, q, k, v), dtype="I64", shape=(n,))

    def scales(expr: Expr, n: int, width: int) -> tuple[ScaleForm, Expr] | None:
        by_row = apply("chunk_rows", expr, params=(chunks, rows, block_n), shape=(n, expr.shape[-1]))
        sorted_rows = apply("take_rows", by_row, order, shape=by_row.shape)
        out, g = even_groups(sorted_rows, width, block_k)
        return ScaleForm(kind="group", dtype="float32", k=g), out

    return order, scales


def _sizes(config: Any) -> tuple[int, int, int, int] | None:
    """(chunks, rows of Q, K and V in one), from the numbers of heads: a chunk for each of `num_key_value_heads` at most 8."""
    heads, kv, dim = (config.get(x) for x in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    value = config.get("v_head_dim") or dim
    if not all(isinstance(x, int) and x > 0 for x in (heads, kv, dim, value)):
        return None
    chunks = min(8, kv)
    if heads % chunks or kv % chunks:
        return None
    return chunks, heads // chunks * dim, kv // chunks * dim, kv // chunks * value
