"""Exact rewrites of standard layers: the same weights in another form, so that parts can be fused or a runtime can read them.

In: a StandardLayer.  Out: a StandardLayer of the same values; nothing is rounded and scales keep their dtype.
Facts: formats.md 2.6, 4.4, 10.5; runtimes.md 1.8.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import DTYPES
from humming_convert.standard.expr import CodeBlock, Expr, Recode, Weight, apply, operation
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number
from humming_convert.standard.packing_ct import padded_unpack, zero_words

Array = NDArray[Any]


# ------------------------------------------------------------------ operations on small tensors
@operation("float32")
def _float32(x: Array) -> Array:
    """Values as float32: exact for every scale dtype but F64 (formats.md 9.3)."""
    return np.asarray(x.astype(np.float32))


@operation("midpoints")
def _midpoints(bits: int, experts: int | None, n: int, groups: int) -> Array:
    """Zero point words that say 2^(bits-1) everywhere."""
    one = zero_words(np.full((n, groups), 1 << (bits - 1), np.uint8), bits)
    return one if experts is None else np.repeat(one[None], experts, 0)


@operation("zero_words_signed")
def _zero_words_signed(x: Array, bits: int) -> Array:
    """Signed zero points [..., n, groups], one a number (int8 or an integral float), to words: code = z + 2^(bits-1) (formats.md 4.3)."""
    return zero_words((x.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8), bits)


@operation("zero_words_padded")
def _zero_words_padded(x: Array, bits: int, n: int) -> Array:
    """Zero points packed along N with floor(32/bits) in a word [..., ceil(n/f), groups] to words of the standard form."""
    codes = padded_unpack(np.swapaxes(x, -1, -2), bits, n)
    return zero_words(np.swapaxes(codes, -1, -2), bits)


@operation("e8m0_zero_nan")
def _e8m0_zero_nan(x: Array) -> Array:
    """E8M0 bytes with 255 (NaN) as 0, the smallest scale: for groups whose codes are all zero (formats.md D15)."""
    raw = np.ascontiguousarray(x).view(np.uint8)
    return np.where(raw == 255, np.uint8(0), raw).view(DTYPES["F8_E8M0"])


@operation("chunk_rows")
def _chunk_rows(x: Array, chunks: int, rows: int, block: int) -> Array:
    """Block scales [chunks * ceil(rows/block), columns], a grid a chunk -> one row a weight row [chunks * rows, columns]."""
    per = -(-rows // block)
    grid = x.reshape(chunks, per, x.shape[-1])
    return np.repeat(grid, block, 1)[:, :rows].reshape(chunks * rows, x.shape[-1])


@operation("chunk_order")
def _chunk_order(chunks: int, q: int, k: int, v: int) -> Array:
    """New row i is old row order[i]: all of Q, then K, then V, from chunks of q + k + v rows."""
    start = np.arange(chunks, dtype=np.int64)[:, None] * (q + k + v)
    parts = [start + at + np.arange(size) for at, size in ((0, q), (q, k), (q + k, v))]
    return np.concatenate([p.reshape(-1) for p in parts])


@operation("take_rows")
def _take_rows(x: Array, order: Array) -> Array:
    return np.asarray(x[order])


# ------------------------------------------------------------------ scales
def _repeat(x: Expr, count: int, axis: int, length: int) -> Expr:
    return apply("repeat", x, params=(count, axis, length), shape=(*x.shape[:axis], length, *x.shape[axis + 1 :]))


def expand_rows(scale: Expr, n: int, k: int, block_n: int, block_k: int) -> tuple[Expr, int]:
    """Block scales [..., ceil(n/block_n), ceil(k/block_k)] as (scales [..., n, k/g], g): one row a weight row, groups that divide k."""
    # a block larger than the matrix ends where the matrix does; a config may say any size
    rows = _repeat(scale, min(block_n, n), len(scale.shape) - 2, n)
    return even_groups(rows, k, min(block_k, k))


def even_groups(scale: Expr, k: int, group: int) -> tuple[Expr, int]:
    """Group scales [..., ceil(k/group)] as (scales [..., k/g], g): g a power of two that divides k and the group (formats.md 2.6, D21)."""
    g = gcd(k, group)
    g &= -g
    return (scale, group) if g == group else (_repeat(scale, group // g, len(scale.shape) - 1, k // g), g)


def to_rows(layer: StandardLayer) -> StandardLayer:
    """A block-scaled layer with a scale for every row: group form, scales still F32. Other layers are returned as they are.

    Exact: repetition only. Block scales must cover the layer as a ceil grid. `facts["scales_from"]` names the lossy step if they are
    rounded later.
    """
    form = layer.form.scale
    if form.kind != "block":
        return layer
    scale, g = expand_rows(layer.tensors["weight_scale"], layer.n, layer.k, form.n, form.k)
    return replace(
        layer,
        form=replace(layer.form, scale=ScaleForm(kind="group", dtype=form.dtype, k=g)),
        tensors={**layer.tensors, "weight_scale": scale},
        facts={**layer.facts, "scales_from": "block"},
    )


def regroup(layer: StandardLayer, g: int) -> StandardLayer:
    """A group- or channel-scaled layer with groups of `g`: scale and zero point columns repeated. g must divide the group and K."""
    form = layer.form.scale
    assert form.kind in ("group", "channel"), form.kind
    group = form.k or layer.k
    if form.kind == "group" and group == g:
        return layer
    assert group % g == 0 and layer.k % g == 0, (group, g, layer.k)
    changed = {
        role: _repeat(e, group // g, len(e.shape) - 1, layer.k // g)
        for role, e in layer.tensors.items()
        if role in ("weight_scale", "zero_point")
    }
    scale = ScaleForm(kind="group", dtype=form.dtype, k=g)
    return replace(layer, form=replace(layer.form, scale=scale), tensors={**layer.tensors, **changed})


# ------------------------------------------------------------------ integer codes
def explicit_zero_point(layer: StandardLayer) -> StandardLayer:
    """A symmetric integer layer with its zero point 2^(b-1) written out, so that it can stand beside asymmetric parts."""
    if layer.form.zero_point != "none":
        return layer
    form = layer.form
    assert form.number.kind == "uint" and form.scale.kind in ("group", "channel"), form
    groups = layer.k // (form.scale.k or layer.k)
    rows = -(-layer.n * form.number.bits // 32)
    shape = (*((layer.experts,) if layer.experts is not None else ()), rows, groups)
    zeros = apply("midpoints", params=(form.number.bits, layer.experts, layer.n, groups), dtype="I32", shape=shape)
    return replace(layer, form=replace(form, zero_point="int"), tensors={**layer.tensors, "zero_point": zeros})


def widen(layer: StandardLayer, bits: int) -> StandardLayer:
    """A symmetric integer layer with wider codes: code + 2^(bits-1) - 2^(b-1). Exact."""
    form = layer.form
    if form.number.bits == bits:
        return layer
    assert form.number.kind == "uint" and form.zero_point == "none" and form.number.bits < bits <= 8, (form, bits)
    add = (1 << (bits - 1)) - (1 << (form.number.bits - 1))
    weight = _recoded(_weight(layer), bits, add, None)
    name = f"{layer.recoded.partition('->')[0] if layer.recoded else form.number.name}->uint{bits}"
    return replace(layer, form=replace(form, number=number(f"uint{bits}")), tensors={**layer.tensors, "weight": weight}, recoded=name)


def absorb_zero_point(layer: StandardLayer) -> StandardLayer:
    """An asymmetric uint b layer as symmetric uint b+1 without zero point: code q - z + 2^b (runtimes.md 1.8). Exact; b <= 7."""
    form = layer.form
    if form.zero_point == "none":
        return layer
    bits = form.number.bits
    assert form.number.kind == "uint" and form.zero_point == "int" and bits <= 7, form
    weight = _recoded(_weight(layer), bits + 1, 1 << bits, layer.tensors["zero_point"])
    return replace(
        layer,
        form=replace(form, number=number(f"uint{bits + 1}"), zero_point="none"),
        tensors={role: weight if role == "weight" else e for role, e in layer.tensors.items() if role != "zero_point"},
        recoded=f"uint{bits}+zp->uint{bits + 1}",
    )


def _weight(layer: StandardLayer) -> Weight:
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight), type(weight)
    return weight


def _recoded(weight: Weight, bits: int, add: int, zeros: Expr | None) -> Weight:
    blocks: list[CodeBlock] = []
    for expert in range(weight.experts or 1):
        for row, block in weight.of_expert(expert):
            before = block.recode
            if zeros is None:
                step = replace(before, bits=bits, add=before.add + add) if before is not None else Recode(bits=bits, add=add)
            else:
                assert before is None or before.zero_point is None, block.part
                step = Recode(
                    bits=bits,
                    add=add + (before.add if before is not None else 0),
                    zero_point=zeros,
                    zero_bits=weight.bits,
                    rows=weight.n,
                    expert=None if weight.experts is None else expert,
                    row=row,
                )
            blocks.append(replace(block, recode=step))
    return replace(weight, bits=bits, blocks=tuple(blocks))
