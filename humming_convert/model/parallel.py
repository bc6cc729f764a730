"""What each rank holds of a layer: attention by heads, gate and up each, row-parallel layers along K, whole experts.

In: a fused standard layer, the head counts of config.json, a rank.  Out: the rank's layer, None where it has none, or a Rejected with the
reason; the cut is made before anything is padded or packed, and never rounded down.
Facts: architecture.md 9.4 (Tensor parallel), layouts.md 12, runtimes.md 1.5, 1.6, 3.2; vLLM 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from humming_convert.model.families import expert_count, expert_of
from humming_convert.model.unify import Rejected
from humming_convert.standard.cut import Spans, length, scaled, take, take_codes
from humming_convert.standard.expr import Expr, Full, Span, Weight
from humming_convert.standard.layer import StandardLayer

MOST = 256  # ranks that `max_tp` looks at

Axis = Literal["query", "key_value", "query_key_value", "latent", "rows", "halves", "columns", "attention_columns", "whole"]

AXES: Mapping[str, Axis] = {
    "q_proj": "query",
    "k_proj": "key_value",
    "v_proj": "key_value",
    "qkv_proj": "query_key_value",
    "o_proj": "attention_columns",
    "q_b_proj": "latent",
    "kv_b_proj": "latent",
    "q_a_proj": "whole",
    "kv_a_proj_with_mqa": "whole",
    "fused_qkv_a_proj": "whole",
    "gate_proj": "rows",
    "up_proj": "rows",
    "w1": "rows",
    "w3": "rows",
    "gate_up_proj": "halves",
    "w13": "halves",
    "down_proj": "columns",
    "w2": "columns",
    "shared_expert_gate": "whole",
}
"""Leaf of a source module -> how vLLM shares it out. query, key_value, latent: rows by heads; halves: gate rows and up rows in one matrix."""
_TOWER = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|image\w*|speech\w*)\.")  # their heads are not those of the language model


# ------------------------------------------------------------------ ranks
class Rank(Struct, frozen=True, kw_only=True):
    """One process of the runtime. ep_size > 1: experts are whole, one run of them a rank (vLLM: ranks of all data-parallel replicas)."""

    tp_size: int = 1
    tp_rank: int = 0
    ep_size: int = 1
    ep_rank: int = 0

    @property
    def label(self) -> str:
        """In file names, counted from 1: `tp2of4`; with more expert ranks than tensor ranks also `-ep3of8`."""
        tp = f"tp{self.tp_rank + 1}of{self.tp_size}"
        return tp if self.ep_size in (1, self.tp_size) else f"{tp}-ep{self.ep_rank + 1}of{self.ep_size}"


def ranks(tp: int, ep: int) -> tuple[Rank, ...]:
    """All ranks. ValueError unless ep is 1 or a multiple of tp: experts are spread over the tensor ranks of every replica."""
    if ep > 1 and ep % tp:
        raise ValueError(
            f"--ep {ep} is no multiple of --tp {tp}: experts are spread over all tensor-parallel ranks of one or more replicas"
        )
    return tuple(Rank(tp_size=tp, tp_rank=r % tp, ep_size=ep, ep_rank=r if ep > 1 else 0) for r in range(max(tp, ep)))


# ------------------------------------------------------------------ heads
class Heads(Struct, frozen=True, kw_only=True):
    """Head counts of the language model and the rows that a head can have, 0 and () where config.json does not say. `experts`: routed ones."""

    query: int = 0
    key_value: int = 0
    query_sizes: tuple[int, ...] = ()
    key_sizes: tuple[int, ...] = ()
    latent_sizes: tuple[int, ...] = ()
    value_size: int = 0
    experts: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Heads:
        """config: of the language model."""

        def number(key: str) -> int:
            value = config.get(key)
            return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

        query = number("num_attention_heads")
        key_value = number("num_key_value_heads") or query
        size = number("head_dim") or (number("hidden_size") // query if query and number("hidden_size") % query == 0 else 0)
        nope, rope, value = number("qk_nope_head_dim"), number("qk_rope_head_dim"), number("v_head_dim")
        latent = (nope + rope, nope + value) if nope and rope and value else ()
        known = expert_count(config)
        return cls(
            query=query,
            key_value=key_value,
            # a gated attention has its gate's rows beside the query's, head by head
            query_sizes=tuple(x for x in (size, 2 * size, *latent[:1]) if x),
            key_sizes=tuple(x for x in (size, value) if x),
            latent_sizes=latent,
            value_size=value or size,
            experts=known.size if known is not None else 0,
        )


# ------------------------------------------------------------------ where to cut
class Cut(Struct, frozen=True):
    """Of one rank: row ranges of every expert, rows of each part there, one column range, a run of experts (None: all)."""

    rows: Spans
    stack_n: tuple[int, ...]
    columns: Span
    experts: Span | None = None


def _even(first: int, n: int, tp: int, rank: int) -> Span:
    return first + n // tp * rank, first + n // tp * (rank + 1)


def _part_rows(axis: Axis, name: str, first: int, n: int, heads: Heads, interleaved: bool, tp: int, rank: int) -> Spans | Rejected:
    """The rows of one source matrix, counted in the stack that begins it at `first`."""
    if axis in ("columns", "attention_columns", "whole"):
        return ((first, first + n),)
    if axis == "rows" or (axis == "halves" and interleaved):
        # interleaved: rows in pairs of a gate and an up row
        unit = 2 * tp if axis == "halves" else tp
        return Rejected(f"{name} has {n} rows, no multiple of {unit}") if n % unit else (_even(first, n, tp, rank),)
    if axis == "halves":
        if n % (2 * tp):
            return Rejected(f"{name} has {n} rows for gate and up, no multiple of 2 x {tp}")
        return _even(first, n // 2, tp, rank), _even(first + n // 2, n // 2, tp, rank)
    if not heads.query:
        return Rejected(f"config.json does not state num_attention_heads, which decide how {name} is cut")
    if heads.query % tp:
        return Rejected(f"num_attention_heads {heads.query} is no multiple of {tp}")
    if axis in ("query", "latent"):
        sizes = heads.query_sizes if axis == "query" else heads.latent_sizes
        if n % heads.query or n // heads.query not in sizes:
            return Rejected(f"{name} has {n} rows, which are not {heads.query} heads of {' or '.join(map(str, sizes)) or 'a known size'}")
        return (_even(first, n, tp, rank),)
    if axis == "key_value":
        if n % heads.key_value or n // heads.key_value not in heads.key_sizes:
            wanted = " or ".join(map(str, heads.key_sizes)) or "a known size"
            return Rejected(f"{name} has {n} rows, which are not {heads.key_value} key-value heads of {wanted}")
        return _key_value(first, n, heads, tp, rank)
    size = heads.key_sizes[0] if heads.key_sizes else 0
    q, k, v = heads.query * size, heads.key_value * size, heads.key_value * heads.value_size
    if n != q + k + v:
        return Rejected(f"{name} has {n} rows; {heads.query} query and {heads.key_value} key-value heads of {size} are {q + k + v}")
    keys, values = _key_value(first + q, k, heads, tp, rank), _key_value(first + q + k, v, heads, tp, rank)
    if isinstance(keys, Rejected) or isinstance(values, Rejected):
        return keys if isinstance(keys, Rejected) else values
    return _even(first, q, tp, rank), *keys, *values


def _key_value(first: int, n: int, heads: Heads, tp: int, rank: int) -> Spans | Rejected:
    """Each rank its key-value heads, or each head on several ranks where there are fewer heads than ranks."""
    count = heads.key_value
    if count % tp == 0:
        return (_even(first, n, tp, rank),)
    if tp % count:
        return Rejected(f"num_key_value_heads {count} and {tp} ranks: neither is a multiple of the other")
    return (_even(first, n, count, rank // (tp // count)),)


def axis_of(module: str) -> Axis | None:
    """How the runtime shares out a source module, None if it is not known here."""
    return None if _TOWER.search(module) else AXES.get(module.rpartition(".")[2])


def where(layer: StandardLayer, rank: Rank, heads: Heads) -> Cut | Rejected | None:
    """What the rank takes of a layer; None: nothing (another rank has this expert). Rejected: the layer cannot be cut so."""
    everything = Cut(((0, layer.n),), layer.stack_n, (0, layer.k))
    if rank.ep_size > 1 and (expert := expert_of(layer.name) or expert_of(layer.parts[0])) is not None:
        return _of_experts(layer, rank, heads, expert.index)
    if rank.tp_size == 1:
        return everything
    names = layer.parts[: len(layer.stack_n)]
    axes = [axis_of(name) for name in names]
    if None in axes:
        return Rejected(f"how the runtime shares out {names[axes.index(None)]} is not known")
    known = [a for a in axes if a is not None]
    along = {a in ("columns", "attention_columns") for a in known}
    if len(along) > 1 or ("whole" in known and set(known) != {"whole"}):
        return Rejected(f"{', '.join(names)} are shared out in different ways")
    tp, first = rank.tp_size, 0
    rows: list[Span] = []
    stack_n: list[int] = []
    for axis, name, n in zip(known, names, layer.stack_n, strict=True):
        mine = _part_rows(axis, name, first, n, heads, layer.row_order == "interleaved", tp, rank.tp_rank)
        if isinstance(mine, Rejected):
            return mine
        rows += mine
        stack_n.append(length(mine))
        first += n
    columns = (0, layer.k)
    if True in along:
        if "attention_columns" in known and (not heads.query or heads.query % tp):
            return Rejected(f"num_attention_heads {heads.query or 'not stated'}: no multiple of {tp}")
        if layer.k % tp:
            return Rejected(f"{layer.k} columns are no multiple of {tp}")
        columns = _even(0, layer.k, tp, rank.tp_rank)
    cut = Cut(_merged(rows), tuple(stack_n), columns)
    return _not_whole(layer, cut, tp) or cut


def _merged(spans: Sequence[Span]) -> Spans:
    """Neighbours as one range."""
    out: list[Span] = []
    for a, b in spans:
        if out and out[-1][1] == a:
            out[-1] = (out[-1][0], b)
        else:
            out.append((a, b))
    return tuple(out)


def _of_experts(layer: StandardLayer, rank: Rank, heads: Heads, index: int | None) -> Cut | Rejected | None:
    """A run of whole experts, as even as can be, the first ranks one more (vLLM's linear placement)."""
    count = layer.experts or heads.experts
    if not count:
        return Rejected("config.json does not state how many experts there are")
    if count < rank.ep_size:
        return Rejected(f"{count} experts are fewer than {rank.ep_size} ranks")
    base, more = divmod(count, rank.ep_size)
    first = rank.ep_rank * base + min(rank.ep_rank, more)
    mine = (first, first + base + (rank.ep_rank < more))
    everything = Cut(((0, layer.n),), layer.stack_n, (0, layer.k))
    if layer.experts is None:
        return everything if index is not None and mine[0] <= index < mine[1] else None
    return replace(everything, experts=mine)


def _not_whole(layer: StandardLayer, cut: Cut, tp: int) -> Rejected | None:
    """A cut inside a stored word, a group or a block (runtimes.md 1.5: vLLM itself does not look, and reads wrong numbers)."""
    form, bits = layer.form, layer.form.number.bits
    start, end = cut.columns
    if (start, end) != (0, layer.k):
        unit = 32 if 32 % bits else 32 // bits
        if start % unit or end % unit:
            return Rejected(f"{layer.k} columns over {tp} ranks are {end - start} each, which do not fill whole words of {unit} codes")
        group = form.scale.k
        if group and (start % group or end % group):
            return Rejected(f"{layer.k} columns over {tp} ranks are {end - start} each, no multiple of the group of {group}")
    if cut.rows != ((0, layer.n),):
        ends = [x for span in cut.rows for x in span] + list(cut.stack_n)
        if form.zero_point == "int" and any(x * bits % 32 for x in ends):
            return Rejected(f"rows of a rank do not fill whole words of zero points ({bits} bits)")
        if form.scale.kind == "block" and any(x % form.scale.n for x in ends):
            return Rejected(f"rows of a rank are no multiple of the block of {form.scale.n}")
    return None


def max_tp(layer: StandardLayer, heads: Heads, *, stock: bool = False) -> int | None:
    """The largest number of ranks that the layer can be cut for; None: any, it is not cut. stock: vLLM itself cuts the standard form."""
    axes = [axis_of(name) for name in layer.parts[: len(layer.stack_n)]]
    if set(axes) == {"whole"}:
        return None
    if stock and layer.form.scale.kind == "channel" and layer.form.zero_point != "none" and {"columns", "attention_columns"} & set(axes):
        return 1  # vLLM 0.33 cuts the one column of zero points as if it were many, and stops
    # every cut divides these; the other numbers need not be tried (there are layers by the ten thousand)
    divided = (
        layer.k if a in ("columns", "attention_columns") else n if a in ("rows", "halves") else heads.query
        for a, n in zip(axes, layer.stack_n, strict=True)
        if a not in (None, "whole")
    )
    common = gcd(*divided)
    for tp in (x for x in range(min(MOST, common), 1, -1) if common % x == 0):
        if not isinstance(where(layer, Rank(tp_size=tp, tp_rank=tp - 1), heads), Rejected):
            return tp
    return 1


# ------------------------------------------------------------------ cutting
def cut_layer(layer: StandardLayer, rank: Rank, heads: Heads) -> StandardLayer | Rejected | None:
    """The rank's layer: the same roles and form, fewer rows, columns or experts."""
    cut = where(layer, rank, heads)
    if cut is None or isinstance(cut, Rejected):
        return cut
    if (cut.rows, cut.columns, cut.experts) == (((0, layer.n),), (0, layer.k), None):
        return layer
    each = len(layer.parts) // (layer.experts or 1)
    experts = layer.experts if cut.experts is None else cut.experts[1] - cut.experts[0]
    parts = layer.parts
    if cut.experts is not None and each * (layer.experts or 1) == len(layer.parts) and len(layer.parts) > each:
        parts = layer.parts[cut.experts[0] * each : cut.experts[1] * each]
    return replace(
        layer,
        parts=parts,
        n=length(cut.rows),
        k=cut.columns[1] - cut.columns[0],
        experts=experts,
        stack_n=cut.stack_n,
        tensors={role: _tensor(layer, role, expr, cut, rank) for role, expr in layer.tensors.items()},
    )


def _tensor(layer: StandardLayer, role: str, expr: Expr, cut: Cut, rank: Rank) -> Expr:
    form, experts = layer.form, cut.experts or ((0, layer.experts) if layer.experts is not None else None)
    if isinstance(expr, Weight):
        return take_codes(expr, experts=experts, rows=cut.rows, columns=cut.columns)
    first = 0 if layer.experts is None else 1  # the axis of N
    if layer.experts is not None and experts is not None and expr.shape[0] == layer.experts:
        expr = take(expr, 0, (experts,))
    per_row = (
        role == "bias"
        or (role == "weight_scale" and form.scale.kind != "tensor")
        or role == "zero_point"
        or (role == "weight_scale_2" and form.scale_2 == "channel")
    )
    if not per_row:
        return expr
    rows = cut.rows
    if role == "zero_point" and form.zero_point == "int":
        rows = scaled(rows, form.number.bits, 32) if rows != ((0, layer.n),) else ((0, expr.shape[first]),)
    elif role == "weight_scale" and form.scale.kind == "block":
        rows = scaled(rows, 1, form.scale.n) if rows != ((0, layer.n),) else ((0, expr.shape[first]),)
    expr = take(expr, first, rows)
    if role in ("weight_scale", "zero_point") and expr.shape[-1] > 1 and cut.columns != (0, layer.k):
        expr = take(expr, first + 1, scaled((cut.columns,), expr.shape[-1], layer.k))
    if role == "bias" and cut.columns != (0, layer.k) and rank.tp_rank:
        return Full(expr.dtype, expr.shape, 0.0)  # the bias is added once: ranks are summed (layouts.md 12)
    return expr
