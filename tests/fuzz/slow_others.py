"""The slow reader of compressed-tensors, FP8, FP4 and Humming's own form.  Facts: formats.md 4 to 8, 11 (D1, D2, D10, D24)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tests.fuzz.slow_bits import (
    E2M1,
    FLOATS,
    Array,
    Meaning,
    Tensor,
    Unreadable,
    bias_of,
    columns,
    e4m3_scale,
    e8m0,
    factor,
    float_value,
    fp8_values,
    groups_over,
    integer,
    need,
    nibbles,
    padded,
    real_scale,
    stream,
)

Tensors = Mapping[str, Tensor]


# ------------------------------------------------------------------ compressed-tensors
def ct_group(config: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """`weights` of the group of a module: explicit targets in file order, then classes (formats.md 4.2)."""
    groups = config.get("config_groups")
    found = [g for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []

    def explicit(target: str) -> bool:
        return bool(re.match(target[3:], name)) if target.startswith("re:") else target == name

    def matrices(target: str) -> bool:
        return bool(re.search("Linear|Experts|MoE|Conv1D|LMHead", target)) and not target.startswith("re:") and "." not in target

    for test in (explicit, matrices, lambda target: not target.startswith("re:") and "." not in target):
        for g in found:
            targets = g.get("targets")
            if any(test(str(target)) for target in (targets if isinstance(targets, list) else [])):
                weights = g.get("weights")
                return weights if isinstance(weights, Mapping) else {}
    return None


def ct_pack(t: Tensors, said: Mapping[str, Any]) -> Meaning:
    """pack-quantized, both layouts of odd widths (formats.md 4.3)."""
    packed, scale, shape = t["weight_packed"], t["weight_scale"], t.get("weight_shape")
    need(len(packed.shape) == 2, "shape")
    n, words = packed.shape
    bits, group = integer(said.get("num_bits")), integer(said.get("group_size"))
    told = [int(x) for x in shape.array.reshape(-1)] if shape is not None and shape.dtype in ("I64", "I32") else []
    k = told[1] if len(told) == 2 and told[1] > 0 else None
    groups = scale.shape[-1] if len(scale.shape) > 1 else 1

    def layout(b: int, columns_: int) -> str | None:
        if words == -(-columns_ * b // 32):
            return "dense"
        return "padded" if b in (3, 5, 6, 7) and words == -(-columns_ // (32 // b)) else None

    if k is None and bits in (1, 2, 4, 8) and not group:
        k = words * 32 // bits  # words are full in every row
    if bits is None or k is None or layout(bits, k) is None:
        by_config = (
            None if bits is None else groups * group if group else words * 32 // bits if groups == 1 and words * 32 % bits == 0 else None
        )
        by_config = by_config if by_config and layout(bits or 0, by_config) else None
        agrees = k is not None and bits is not None and (-(-k // group) == groups if group else groups == 1)
        others = [b for b in range(1, 9) if k and layout(b, k)] if bits is None or agrees else []
        need((by_config is not None) != (len(others) == 1), "bits, weight_shape and words do not agree")
        bits, k = (bits, by_config) if by_config is not None else (others[0], k)
    assert bits is not None and k is not None
    which = layout(bits, k)
    codes = stream(packed.array, bits, k) if which == "dense" else padded(packed.array, bits, k)
    mid = 1 << (bits - 1)
    scales = real_scale(scale)
    per_row = [d for d in scale.shape if d != 1] == [n] or scales.size == 1
    need(scales.size > 1 or n == 1 or scales.reshape(-1)[0] > 0, "a factor")
    grid = scales.reshape(-1, 1) if per_row else scales
    need(grid.shape[0] in (1, n) and len(grid.shape) == 2, "scales")
    size = k if per_row and grid.shape[1] == 1 else groups_over(k, grid.shape[1], group)
    zero = ct_zero(t.get("weight_zero_point"), said, n, grid.shape[1], bits, scale, which == "padded")
    values = codes - (mid if zero is None else columns(zero, size, k) if zero.shape[1] > 1 else zero)
    index = np.arange(k) // size
    order = None
    g_idx = t.get("weight_g_idx")
    if g_idx is not None and size < k and g_idx.array.size and not (g_idx.array == -1).any():
        told_groups = g_idx.array.astype(np.int64).reshape(-1)
        need(told_groups.size == k, "g_idx")
        if not (told_groups == index).all():
            need(told_groups.min() >= 0 and told_groups.max() < grid.shape[1], "g_idx")
            need((np.bincount(told_groups, minlength=grid.shape[1]) == size).all(), "g_idx")
            order = index = told_groups
            if zero is not None:
                values = codes - zero[:, index]
    full = np.broadcast_to(grid, (n, grid.shape[1]))[:, index]
    return Meaning(np.asarray(values, np.float64), full, bias=bias_of(t, n), columns=order)


def ct_zero(z: Tensor | None, said: Mapping[str, Any], n: int, groups: int, bits: int, scale: Tensor, is_padded: bool) -> Array | None:
    """Zero points as codes [n, groups]; None: the middle."""
    if z is None:
        need(said.get("symmetric") is not False, "zero points missing")
        return None
    dense, wide = -(-n * bits // 32), -(-n // (32 // bits))
    if z.dtype == "I32" and z.shape == (dense, groups) and not (is_padded and dense == wide):
        return stream(np.ascontiguousarray(z.array.T), bits, n).T
    if z.dtype == "I32" and bits in (3, 5, 6, 7) and z.shape == (wide, groups):
        return padded(np.ascontiguousarray(z.array.T), bits, n).T
    need([d for d in z.shape if d != 1] == [d for d in scale.shape if d != 1], "zero points")
    low = -(1 << (bits - 1))
    value = z.real.reshape(-1, groups)
    need((value == np.floor(value)).all() and (value >= low).all() and (value <= -low - 1).all(), "zero points outside the range")
    return np.broadcast_to(value - low, (n, groups)).astype(np.int64)


def int8(t: Tensors, said: Mapping[str, Any]) -> Meaning:
    weight, scale = t["weight"], t["weight_scale"]
    need(len(weight.shape) == 2, "shape")
    n, k = weight.shape
    bits = integer(said.get("num_bits")) or 8
    values = weight.real
    need((values >= -(1 << (bits - 1))).all() and (values < 1 << (bits - 1)).all(), "range")
    grid = real_scale(scale)
    grid = grid.reshape(-1, 1) if grid.size in (1, n) else grid
    need(len(grid.shape) == 2 and grid.shape[0] in (1, n), "scales")
    size = groups_over(k, grid.shape[1], said.get("group_size")) if grid.shape[1] > 1 else k
    z = t.get("weight_zero_point")
    if z is not None:
        need(z.array.size == grid.size and (z.real == np.floor(z.real)).all(), "zero points")
        values = values - np.broadcast_to(z.real.reshape(grid.shape), (n, grid.shape[1]))[:, np.arange(k) // size]
    else:
        need(said.get("symmetric") is not False, "zero points missing")
    return Meaning(values, np.broadcast_to(grid, (n, grid.shape[1]))[:, np.arange(k) // size], bias=bias_of(t, n))


# ------------------------------------------------------------------ FP8
def one_block(said: tuple[int, int] | None, modules: Iterable[Tensors]) -> tuple[int, int] | None:
    """The declared size, or the one that every grid fits; no reading where several would spread the scales otherwise."""
    grids = []
    for t in modules:
        scale = next((t[s] for s in ("weight_scale_inv", "weight_scale", "scale") if s in t), None)
        if scale is None or len(t["weight"].shape) != 2:
            continue
        (n, k), shape = t["weight"].shape, scale.shape
        shape = (shape[0], shape[2]) if len(shape) == 4 else shape
        if len(shape) == 2 and not (scale.dtype in ("U8", "F8_E8M0") and shape == (n, k // 32)):
            grids.append(((n, k), shape))

    def fits(axis: int, size: int) -> bool:
        return all(-(-lengths[axis] // size) == shape[axis] for lengths, shape in grids)

    if said is None or (fits(0, said[0]) and fits(1, said[1])):
        return said
    found = []
    for axis in (0, 1):
        exact = [1 << i for i in range(24) if any(lengths[axis] == shape[axis] << i and shape[axis] > 1 for lengths, shape in grids)]
        right = [size for size in (said[axis], 128, *exact) if fits(axis, size)]
        need(right, "no block size for all grids")
        found.append(right[0])
    if fits(0, 128) and fits(1, 128):
        for axis in (0, 1):
            need(found[axis] == 128 or all(shape[axis] == 1 for _, shape in grids), "two block sizes for all grids")
    return found[0], found[1]


def fp8(t: Tensors, block: tuple[int, int] | None, group: Any) -> Meaning:
    """Scales of a matrix, rows, blocks or groups, by their shape (formats.md 4.4, 7)."""
    weight = t["weight"]
    need(len(weight.shape) == 2, "shape")
    n, k = weight.shape
    present = [s for s in ("weight_scale_inv", "weight_scale", "scale") if s in t]
    need(len(present) == 1, "one scale")
    scale = t[present[0]]
    shape = scale.shape
    if len(shape) == 4 and shape[1] == shape[3] == 1:
        shape = (shape[0], shape[2])
    is_bytes = scale.dtype in ("U8", "F8_E8M0")
    values = fp8_values(weight)
    for size in [block or (128, 128)] if block or present[0] == "weight_scale_inv" else []:
        if shape == (-(-n // size[0]), -(-k // size[1])):
            return Meaning(values, blocks(scale, shape, size, n, k), bias=bias_of(t, n))
    need(block is None or scale.array.size == 1, "the grid of weight_block_size")
    if is_bytes:
        flat = shape[-1:] == (1,) and scale.array.size == n * k // 32
        need((shape == (n, k // 32) or flat) and k % 32 == 0 and present[0] == "weight_scale", "E8M0 scales")
        return Meaning(values, columns(e8m0(scale).reshape(n, k // 32), 32, k), bias=bias_of(t, n))
    if scale.array.size == 1:
        value = real_scale(scale).reshape(())
        need(1e-30 <= value <= 1e30, "a factor")
        return Meaning(values, np.full((n, k), value), bias=bias_of(t, n))
    if shape in ((n, 1), (n,)):
        return Meaning(values, np.broadcast_to(real_scale(scale).reshape(n, 1), (n, k)), bias=bias_of(t, n))
    if shape == (-(-n // 128), -(-k // 128)):
        return Meaning(values, blocks(scale, shape, (128, 128), n, k), bias=bias_of(t, n))
    need(len(shape) == 2 and shape[0] == n, "scales")
    return Meaning(values, columns(real_scale(scale), groups_over(k, shape[1], group), k), bias=bias_of(t, n))


def blocks(scale: Tensor, shape: tuple[int, ...], size: tuple[int, int], n: int, k: int) -> Array:
    if scale.dtype in ("U8", "F8_E8M0"):
        grid = e8m0(scale).reshape(shape)
    else:
        grid = real_scale(scale).reshape(shape)
        numbers = grid[(grid >= 100) & (grid <= 140) & (grid == np.floor(grid))]
        need(scale.dtype != "F32" or grid.size < 2 or numbers.size != grid.size, "E8M0 bytes as numbers")
    return np.asarray(np.repeat(np.repeat(grid, min(size[0], n), 0), min(size[1], k), 1)[:n, :k])


# ------------------------------------------------------------------ FP4
def fp4(t: Tensors, weight: str, group: int, divisor: str | None = None, multiplier: str | None = None) -> Meaning:
    q = t[weight]
    need(len(q.shape) == 2 and q.dtype in ("U8", "I8"), "shape")
    n, k = q.shape[0], q.shape[1] * 2
    scale = t["weight_scale"] if "weight_scale" in t else t["scale"]
    grid = e4m3_scale(scale) if group == 16 else e8m0(scale)
    need(k % group == 0, "K")
    if grid.shape[-1:] == (1,) and grid.size == n * k // group:
        grid = grid.reshape(n, k // group)
    need(grid.shape == (n, k // group), "scales")
    second = 1.0
    if divisor is not None:
        second = float(np.float32(1) / np.float32(factor(t[divisor])))
    elif multiplier is not None:
        second = factor(t[multiplier])
    return Meaning(E2M1[nibbles(q.bytes)], columns(grid, group, k), np.full(1, second), bias=bias_of(t, n))


def gpt_oss(t: Tensors) -> Iterator[tuple[str, Meaning]]:
    """`<expert>.<projection>` -> meaning (formats.md 5.1)."""
    for suffix in [s for s in t if s.endswith("_blocks")]:
        name = suffix.removesuffix("_blocks")
        q, scale, bias = t[suffix], t[f"{name}_scales"], t.get(f"{name}_bias")
        need(q.dtype in ("U8", "I8") and len(q.shape) == 4 and q.shape[3] == 16 and scale.shape == q.shape[:3], "blocks")
        experts, n, groups, _ = q.shape
        factors = e8m0(scale)
        for e in range(experts):
            one = Meaning(E2M1[nibbles(q.bytes[e].reshape(n, groups * 16))], columns(factors[e], 32, groups * 32))
            if bias is not None:
                need([d for d in bias.shape if d != 1] == [d for d in (experts, n) if d != 1] and np.isfinite(bias.real).all(), "bias")
                one.bias = bias.real.reshape(experts, n)[e]
            yield f"{e}.{name}", one


# ------------------------------------------------------------------ Humming
ALIASES = {
    "b_dtype": ("weight_dtype", "dtype"),
    "bs_dtype": ("weight_scale_dtype", "scale_dtype"),
    "weight_scale_group_size": ("group_size",),
    "weight_scale_group_size_n": ("group_size_n",),
    "weight_scale_type": ("scale_type",),
    "weight_scale_2_type": ("scale_2_type",),
    "has_zero_point": (),
    "is_fp_zero_point": (),
    "hadamard_block_size": (),
}
FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}


def humming_settings(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    head, _, leaf = name.rpartition(".")
    experts = re.match(r"(.*\.experts)\.\d+\.", name)
    names = [name, experts[1] if experts else f"{head}.{FUSED[leaf]}" if leaf in FUSED else name]
    for pattern, override in (config.get("dynamic") or {}).items():
        if pattern.startswith("+") and any(re.match(pattern[2:], x) for x in names):
            config = {**config, **(override or {})}
            break
    return {key: next((config[a] for a in (key, *also) if config.get(a) is not None), None) for key, also in ALIASES.items()}


def humming_scale(t: Tensor, dtype: Any) -> Array:
    if dtype in (None, "float16", "bfloat16", "float32"):
        need(t.dtype in FLOATS, "scale dtype")
        return real_scale(t)
    if dtype == "float8e8m0":
        return e8m0(t)
    if dtype == "float8e4m3":
        return e4m3_scale(t)
    if dtype == "float8e5m2":
        need(t.dtype in ("U8", "F8_E5M2") and ((t.bytes & 0x7C) != 0x7C).all() and (t.bytes <= 0x80).all(), "e5m2 scales")
        return float_value(t.bytes.astype(np.int64), 5, 2)
    need(dtype == "float8e5m3" and t.dtype == "U8" and t.bytes.any(), "scale dtype")
    code = t.bytes.astype(np.int64)
    return np.asarray(np.where(code >> 3 == 0, (code & 7) * 2.0**-17, (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 15.0)))


def humming(t: Tensors, f: Mapping[str, Any], role: Mapping[str, str], expert: int | None) -> Meaning:
    """One matrix; role: role -> suffix in t; expert: entry of the first axis."""

    def take(name: str) -> Tensor | None:
        found = t.get(role[name])
        if found is None or expert is None:
            return found
        rows = found.array[expert]
        return Tensor(found.dtype, rows.shape, rows.tobytes())

    need(f["hadamard_block_size"] in (None, 0), "hadamard")
    form = re.fullmatch(r"u?int([1-8])|float(\d)e(\d)m(\d)", str(f["b_dtype"]))
    need(form, "b_dtype")
    assert form is not None
    bits = int(form[1] or form[2])
    weight, scale, zero, second, bias = (take(r) for r in ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias"))
    need(weight is not None and scale is not None and len(weight.shape) == 2, "shape")
    assert weight is not None and scale is not None
    n, k = weight.shape[0], weight.shape[1] * 32 // bits
    need(weight.shape[1] * 32 % bits == 0, "words")
    codes = stream(weight.array, bits, k)
    if form[1]:
        values = codes - float(1 << (bits - 1))
    else:
        need(int(form[3]) + int(form[4]) + 1 == bits, "b_dtype")
        need(bits < 8 or (int(form[3]), int(form[4])) not in ((4, 3), (5, 2)) or nan_free(codes, int(form[4])), "NaN")
        values = float_value(codes, int(form[3]), int(form[4]))
    group, rows = integer(f["weight_scale_group_size"]) or 0, integer(f["weight_scale_group_size_n"]) or 1
    kind = f["weight_scale_type"] or ("block" if rows > 1 else "group" if group else "channel")
    grid = humming_scale(scale, "float32" if kind == "block" else f["bs_dtype"])
    size = k
    if kind == "block":
        need(n % rows == 0 and group and k % group == 0 and grid.shape == (n // rows, k // group), "blocks")
        full = np.repeat(np.repeat(grid, rows, 0), group, 1)
    elif kind == "tensor":
        need(grid.size == 1, "one scale")
        full = np.full((n, k), grid.reshape(()))
    else:
        need(
            kind in ("group", "channel")
            and (grid.shape in ((n, 1), (n,)) if kind == "channel" else len(grid.shape) == 2 and grid.shape[0] == n),
            "scales",
        )
        grid = grid.reshape(n, -1)
        size = k if grid.shape[1] == 1 else groups_over(k, grid.shape[1], group)
        full = columns(grid, size, k)
    if zero is not None:
        if zero.dtype == "I32":
            need(form[1] and zero.shape == (-(-n * bits // 32), k // size), "zero points")
            zeros = stream(np.ascontiguousarray(zero.array.T), bits, n).T.astype(np.float64)
        else:
            raise Unreadable("float zero points")
        values = codes - columns(zeros, size, k)
    else:
        need(not f["has_zero_point"], "zero points missing")
    factors = np.ones(1)
    if second is not None:
        factors = second.real.reshape(-1)
        need(factors.size in (1, n) and np.isfinite(factors).all() and f["weight_scale_2_type"] in ("tensor", "channel"), "weight_scale_2")
    else:
        need(f["weight_scale_2_type"] in (None, "none"), "weight_scale_2")
    own_bias = None
    if bias is not None:
        need(bias.array.size == n and np.isfinite(bias.real).all(), "bias")
        own_bias = bias.real.reshape(n)
    return Meaning(np.asarray(values, np.float64), full, factors, own_bias)


def nan_free(codes: Array, mantissa: int) -> bool:
    return bool(((codes & 0x7F) != 0x7F).all() if mantissa == 3 else ((codes & 0x7C) != 0x7C).all())
