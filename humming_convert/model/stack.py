"""Stack standard layers of one form along N, and experts on top of each other: expressions only, no bytes.

In: layers that `unify` brought to one form, expert-major.  Out: one StandardLayer.
Facts: architecture.md 9.4, formats.md 10.2, 10.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.model.act_order import permute_rows
from humming_convert.standard.expr import Expr, Full, Weight, apply, operation, stack_weights
from humming_convert.standard.layer import Check, StandardLayer
from humming_convert.standard.packing_ct import zero_codes, zero_words

Array = NDArray[Any]
INPUT_ROLES = ("input_scale", "input_scale_2")


# ------------------------------------------------------------------ operations
@operation("concat_zero_words")
def _concat_zero_words(*args: Any) -> Array:
    """Zero point words of parts whose rows do not fill whole words, as words of all rows. Last arguments: bits, rows of every part."""
    *parts, bits, rows = args
    return zero_words(np.concatenate([zero_codes(p, bits, n) for p, n in zip(parts, rows)], axis=-2), bits)


@operation("gate_then_up")
def _gate_then_up(n: int) -> Array:
    """Rows 0 2 4 … then 1 3 5 …: interleaved gate and up rows as two blocks (formats.md 5.1)."""
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)])


# ------------------------------------------------------------------ stacking
def stack(name: str, parts: Sequence[StandardLayer], experts: int | None) -> StandardLayer:
    """One layer of `parts` in stacking order: for experts expert-major, every expert the same number of parts with the same rows.

    parts: of one form, one K, `experts` None each (a stacked tensor of all experts is one layer already).
    """
    each = len(parts) // (experts or 1)
    first = parts[0]
    assert each * (experts or 1) == len(parts) and all(p.experts is None for p in parts), name
    rows = [n for p in parts[:each] for n in p.stack_n]
    assert all([n for p in parts[e * each : (e + 1) * each] for n in p.stack_n] == rows for e in range(experts or 1)), name
    by_expert = [parts[e * each : (e + 1) * each] for e in range(experts or 1)]
    weights = []
    for p in parts:
        weight = p.tensors["weight"]
        assert isinstance(weight, Weight), p.name
        weights.append(weight)
    tensors: dict[str, Expr] = {"weight": stack_weights(weights, experts), "weight_scale": _stacked(by_expert, "weight_scale", experts)}
    if first.form.zero_point == "int":
        tensors["zero_point"] = _stacked_zero_words(by_expert, first.form.number.bits, experts)
    elif first.form.zero_point == "fp":
        tensors["zero_point"] = _stacked(by_expert, "zero_point", experts)
    if first.form.scale_2 != "none":
        tensors["weight_scale_2"] = _stacked(by_expert, "weight_scale_2", experts)
    if any("bias" in p.tensors for p in parts):
        tensors["bias"] = _stacked([[with_bias(p, parts) for p in group] for group in by_expert], "bias", experts)
    facts: dict[str, Any] = {}
    for p in parts:
        facts.update(p.facts)
    for role in INPUT_ROLES:
        lacking = tuple(p.name for p in parts if role not in p.tensors)
        if len(lacking) < len(parts):
            tensors[role] = _largest_inputs(by_expert, role, experts)
            if lacking:
                facts["missing_input_scale"] = {**facts.get("missing_input_scale", {}), role: lacking}
    declared = {p.declared for p in parts}
    recoded = next((p.recoded for p in parts if p.recoded is not None), None)
    checks: dict[Check, None] = dict.fromkeys(c for p in parts for c in p.checks)
    return replace(
        first,
        name=name,
        parts=tuple(x for p in parts for x in p.parts),
        n=sum(rows),
        experts=experts,
        stack_n=tuple(rows),
        tensors=tensors,
        declared=first.declared if len(declared) == 1 else None,
        recoded=recoded,
        checks=tuple(checks),
        source=tuple(v for p in parts for v in p.source),
        facts=facts,
    )


def _stacked(by_expert: Sequence[Sequence[StandardLayer]], role: str, experts: int | None) -> Expr:
    """The role of every expert's parts one after the other along N, experts stacked. A single value a part and one part: [E], not [E, 1]."""
    rows = [_joined([p.tensors[role] for p in group]) for group in by_expert]
    if experts is None:
        return rows[0]
    shape = (experts, *rows[0].shape)
    out = apply("stack", *rows, shape=shape)
    if shape[1:] == (1,):  # the library's own shape of a tensor scale (layouts.md 1)
        return apply("reshape", out, params=((experts,),), shape=(experts,))
    return out


def _joined(parts: Sequence[Expr]) -> Expr:
    if len(parts) == 1:
        return parts[0]
    assert len({p.dtype for p in parts}) == 1 and len({p.shape[1:] for p in parts}) == 1, parts
    return apply("concat", *parts, params=(0,), shape=(sum(p.shape[0] for p in parts), *parts[0].shape[1:]))


def _stacked_zero_words(by_expert: Sequence[Sequence[StandardLayer]], bits: int, experts: int | None) -> Expr:
    """Whole words are concatenated; parts that end inside a word are unpacked and packed again (formats.md 10.5)."""
    group = by_expert[0]
    if all(p.n * bits % 32 == 0 for p in group[:-1]):
        return _stacked(by_expert, "zero_point", experts)
    rows = tuple(p.n for p in group)
    shape = (-(-sum(rows) * bits // 32), group[0].tensors["zero_point"].shape[-1])
    words = [apply("concat_zero_words", *(p.tensors["zero_point"] for p in g), params=(bits, rows), shape=shape) for g in by_expert]
    return words[0] if experts is None else apply("stack", *words, shape=(experts, *shape))


def with_bias(layer: StandardLayer, among: Sequence[StandardLayer]) -> StandardLayer:
    """The layer with a bias; zeros, of the dtype that the others have, if it has none (architecture.md 9.4)."""
    dtypes = {p.tensors["bias"].dtype for p in among if "bias" in p.tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else "F32"
    bias = layer.tensors.get("bias")
    if bias is None:
        bias = Full(dtype, (layer.n,), 0.0)
    elif bias.dtype != dtype:
        bias = apply("float32", bias, dtype="F32", shape=bias.shape)
    return replace(layer, tensors={**layer.tensors, "bias": bias})


def _largest_inputs(by_expert: Sequence[Sequence[StandardLayer]], role: str, experts: int | None) -> Expr:
    """The largest static input scale of the parts of every expert, F32 [1] or [E]; an expert without any gets the largest of all."""
    of_all = [p.tensors[role] for group in by_expert for p in group if role in p.tensors]
    largest = []
    for group in by_expert:
        have = [p.tensors[role] for p in group if role in p.tensors] or of_all
        largest.append(have[0] if len(have) == 1 else apply("maximum", *have, shape=(1,)))
    if experts is None:
        return largest[0]
    return apply("concat", *largest, params=(0,), shape=(experts,))


def contiguous(layer: StandardLayer) -> StandardLayer:
    """Interleaved gate and up rows as a block of gate rows and a block of up rows (D12): exact, rows move as a whole."""
    if layer.row_order != "interleaved":
        return layer
    order = apply("gate_then_up", params=(layer.n,), dtype="I64", shape=(layer.n,))
    return replace(permute_rows(layer, order), row_order="blocks")
