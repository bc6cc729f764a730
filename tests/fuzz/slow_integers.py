"""The slow reader of integers packed by GPTQ, AWQ and Marlin writers.  Facts: formats.md 2, 3, 11 (D3 to D5, D9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.slow_bits import Array, Meaning, Tensor, bias_of, columns, groups_over, integer, need, planar, real_scale, stream


# ------------------------------------------------------------------ GPTQ
@dataclass
class Gptq:
    codes: Array
    stored: Array | None
    scales: Array
    bits: int
    size: int
    groups: Array | None
    sym: bool | None
    planes: bool
    bias: Array | None


def gptq_settings(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """bits, group_size, sym for one module: `dynamic`, then auto-round's extra_config, then the base (formats.md 2.10, 2.12)."""
    out = {"bits": next((config[k] for k in ("bits", "wbits", "w_bit") if config.get(k) is not None), None)}
    out["group_size"], out["sym"] = config.get("group_size"), config.get("sym")
    for pattern, override in (config.get("dynamic") or {}).items():
        sign, text = (pattern[0], pattern[2:]) if pattern[:2] in ("-:", "+:") else ("+", pattern)
        if re.match(text, name):
            if sign == "+":
                out |= {k: v for k, v in (override or {}).items() if k in out and v is not None}
            break
    if "round" in str(config.get("quant_method")):
        out |= {k: v for k, v in ((config.get("extra_config") or {}).get(name) or {}).items() if k in out and v is not None}
    return out


def gptq_module(name: str, t: Mapping[str, Tensor], config: Mapping[str, Any], label: str) -> Gptq:
    said = gptq_settings(config, name)
    q, s = t["qweight"], t["scales"]
    need(q.dtype == "I32" and len(q.shape) == len(s.shape) == 2 and q.shape[1] == s.shape[1], "shapes")
    n, count, zeros = s.shape[1], s.shape[0], t.get("qzeros")
    g_idx = t.get("g_idx")
    k = g_idx.shape[0] if g_idx is not None and g_idx.shape != (0,) else None
    fits = [b for b in range(2, 9) if zeros is None or zeros.shape == (count, -(-n * b // 32))]
    fits = [b for b in fits if (k is not None and -(-k * b // 32) == q.shape[0]) or (k is None and q.shape[0] * 32 % b == 0)]
    bits = integer(said["bits"]) if integer(said["bits"]) in fits else fits[0] if len(fits) == 1 else None
    need(bits is not None, f"bits {fits}")
    assert bits is not None
    k = q.shape[0] * 32 // bits if k is None else k
    need(k * bits % 32 == 0, "whole words")
    planes = bits in (5, 6, 7) or (bits == 3 and label == "gptq_p")
    unpack: Callable[[Array, int, int], Array] = planar if planes else stream
    stored = None
    if zeros is not None:
        need(zeros.dtype == "I32", "qzeros")
        stored = unpack(zeros.array, bits, n).T
    size = groups_over(k, count, said["group_size"])
    order = None
    if g_idx is not None and k == g_idx.shape[0] and count > 1:
        need(g_idx.dtype in ("I32", "I64"), "g_idx")
        index = g_idx.array.astype(np.int64)
        if not ((index == -1).all() or (index == np.arange(k) // size).all() or (index == 0).all()):
            need(
                index.min() >= 0 and index.max() < count and k % size == 0 and (np.bincount(index, minlength=count) == size).all(), "g_idx"
            )
            order = index
    bias = bias_of(t, n)
    codes = unpack(np.ascontiguousarray(q.array.T), bits, k)
    return Gptq(codes, stored, real_scale(s).T, bits, size, order, said["sym"], planes, bias)


def damaged_3bit(m: Gptq) -> bool:
    if m.bits != 3 or m.stored is None or m.stored.shape[0] % 32:
        return False
    want = stream(np.array([0, 0xB6DB6DB7, 0x49249249], np.uint32), 3, 32)
    return bool((m.stored.T.reshape(m.stored.shape[1], -1, 32) == want).all())


def constant(m: Gptq) -> str | None:
    """v2, v1, zero, damaged: what a symmetric file stores; None if it is none of these."""
    if m.stored is None:
        return "missing"
    mid = 1 << (m.bits - 1)
    for word, value in (("zero", 0), ("v2", mid), ("v1", mid - 1)):
        if (m.stored == value).all():
            return word
    return "damaged" if not m.planes and damaged_3bit(m) else None


def quantizer(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """GPTQModel's version."""
    meta = config.get("meta")
    said = meta.get("quantizer") if isinstance(meta, Mapping) else None
    for entry in said if isinstance(said, list) else [said]:
        found = re.match(r"gptqmodel:(\d+(?:\.\d+)*)", str(entry).strip().lower())
        if found:
            return tuple(int(x) for x in found[1].split("."))
    return None


def gptq_all(modules: Mapping[str, Gptq], config: Mapping[str, Any], label: str) -> dict[str, Meaning]:
    sym: dict[str, bool] = {}
    for name, m in modules.items():
        kind = constant(m)
        if m.sym is False:
            sym[name] = False
        else:
            sym[name] = kind in ("v1", "v2", "damaged") or (kind in ("zero", "missing") and m.sym is True)
        need(sym[name] or m.stored is not None, "zero points missing")
    asym = [m for name, m in modules.items() if not sym[name] and not m.planes]
    version = "v2" if label in ("gptq_v2", "gptq_p") else "v1"
    judged = [float(m.codes.mean() - m.stored.mean()) for m in asym if m.bits != 8 and m.stored is not None]
    if judged:
        d = float(np.median(judged))
        need(abs(d - 0.5) < 0.2 or (d > 0.5) == (version == "v1"), f"label {label!r} and d {d:.2f}")
    out = {}
    for name, m in modules.items():
        zero: Array = np.full((1, 1), 1 << (m.bits - 1), np.int64)
        if not sym[name]:
            assert m.stored is not None
            zero = m.stored
            if version == "v1" and not m.planes:
                zero = v1_undone(m, quantizer(config))
        k = m.codes.shape[1]
        index = np.arange(k) // m.size if m.groups is None else m.groups
        full = zero[:, index] if zero.size > 1 else zero
        out[name] = Meaning(m.codes - full.astype(np.float64), m.scales[:, index], bias=m.bias, columns=m.groups)
    return out


def v1_undone(m: Gptq, version: tuple[int, ...] | None) -> Array:
    """Zero points of a v1 file (formats.md 2.3, D5)."""
    assert m.stored is not None
    top = (1 << m.bits) - 1
    need(not (m.bits == 3 and version is not None and (0, 9) <= version < (7, 7)), "3-bit zero points of old GPTQModel")
    if not (m.stored == top).any():
        return np.asarray(m.stored + 1)
    need(m.bits in (2, 4, 8) and version is not None and version >= (0, 9), "a stored 2^b-1")
    # one was taken from the whole word, so borrows ran: fields of one word from the lowest up
    each = 32 // m.bits
    out = np.empty_like(m.stored)
    for start in range(0, m.stored.shape[0], each):
        carry = np.zeros(m.stored.shape[1], np.int64)
        for i in range(start, min(start + each, m.stored.shape[0])):
            total = m.stored[i] + 1 + carry
            out[i], carry = total & top, total >> m.bits
    return out


# ------------------------------------------------------------------ Marlin tiles, AWQ
def marlin(t: Mapping[str, Tensor], names: tuple[str, str]) -> Meaning:
    q, s = t[names[0]].array.view(np.uint32), real_scale(t[names[1]])
    rows, n = q.shape[0], s.shape[1]
    k, count = rows * 16, s.shape[0]
    need(q.shape[1] == 2 * n and n % 64 == 0, "tiles")
    stored = np.stack([q >> np.uint32(4 * e) & 15 for e in range(8)], -1).reshape(rows, n // 64, 1024).astype(np.int64)
    p = np.zeros(1024, np.int64)
    for lane in range(32):
        for j in range(4):
            for e in range(8):
                block, r = divmod(e, 4)
                row = 2 * (lane % 4) + (0, 1, 8, 9)[r]
                p[lane * 32 + j * 8 + e] = 16 * row + lane // 4 + 8 * block + 256 * j
    p = p.reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
    ordered = np.zeros_like(stored)
    ordered[:, :, p] = stored  # position p[x] of a row of tiles holds what is stored at x
    # a row of 1024: four tiles of 16 x 16, (n tile, k, n)
    tiles = ordered.reshape(rows, n // 64, 4, 16, 16)
    codes = tiles.transpose(1, 2, 4, 0, 3).reshape(n, k)
    order = (
        [i + 8 * j for i in range(8) for j in range(8)]
        if count > 1
        else [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    )
    back = np.argsort(order)
    scales = s.reshape(count, -1, len(order))[:, :, back].reshape(count, n)
    need(k % count == 0, "groups")
    return Meaning(codes - 8.0, columns(scales.T, k // count, k), bias=bias_of(t, n))


def awq_zero(config: Mapping[str, Any], zeros: Array | None) -> Array:
    """With `zero_point: false` zero points that say something else than 8 still count (D4)."""
    if zeros is None:
        need(config.get("zero_point") is False or config.get("sym") is True, "zero points missing")
        return np.full((1, 1), 8, np.int64)
    return zeros


def awq(t: Mapping[str, Tensor], config: Mapping[str, Any], kind: str) -> Meaning:
    q, s = t["qweight"], t["scales"]
    zeros = t.get("qzeros")
    if kind == "gemm":
        k, n = q.shape[0], s.shape[1]
        if q.shape[1] * 8 != n:  # GPTQModel's plain stream
            said = integer(config.get("bits"))
            need(said is not None and (quantizer(config) or (0,)) >= (7,) and q.shape[1] == -(-n * said // 32), "AWQ width")
            assert said is not None
            need(zeros is not None, "zero points missing")
            assert zeros is not None
            codes, zero = stream(q.array, said, n).T, stream(zeros.array, said, n).T
            size = groups_over(k, s.shape[0], config.get("group_size"))
            return Meaning(codes - columns(zero, size, k), columns(real_scale(s).T, size, k), bias=bias_of(t, n))
        nibble = np.array([0, 4, 1, 5, 2, 6, 3, 7])

        def unpack(x: Tensor) -> Array:
            words = x.array.view(np.uint32)
            need(words.shape[1] * 8 == n, "words")
            return np.stack([words[:, c // 8] >> np.uint32(4 * nibble[c % 8]) & 15 for c in range(n)]).astype(np.int64)

        zero = awq_zero(config, None if zeros is None else unpack(zeros))
        size = groups_over(k, s.shape[0], config.get("group_size", config.get("q_group_size")))
        need(zero.size == 1 or zero.shape[1] == s.shape[0], "zero points")
        full = columns(zero, size, k) if zero.size > 1 else zero
        return Meaning(unpack(q) - full.astype(np.float64), columns(real_scale(s).T, size, k), bias=bias_of(t, n))
    said = config.get("group_size", config.get("q_group_size"))
    if integer(said) is None and said != -1:  # nothing after the last group has a scale
        used = np.flatnonzero(s.real.any(axis=0 if kind == "gemv" else 1))
        need(used.size, "scales")
        k = q.shape[1] * 8 if kind == "gemv" else q.shape[1]
        said = k // (int(used[-1]) + 1)
    if kind == "gemv":
        n, k = q.shape[0], q.shape[1] * 8
        count = k // int(said) if integer(said) and int(said) > 0 else 1
        need(zeros is not None and count and k % count == 0 and s.shape[1] >= count, "groups")
        assert zeros is not None
        size = k // count
        zw = -(-(-(-count // 8)) // {64: 2, 32: 4}.get(size, 1)) * {64: 2, 32: 4}.get(size, 1)
        need(s.shape == (n, 8 * zw) and zeros.shape == (n, zw), "gemv width")
        zero = stream(zeros.array, 4, count)
        return Meaning(stream(q.array, 4, k) - columns(zero, size, k), columns(real_scale(s)[:, :count], size, k), bias=bias_of(t, n))
    n, k = q.shape[0] * 4, q.shape[1]
    words = q.array.view(np.uint16)
    codes, row = np.zeros((n, k), np.int64), np.arange(n)
    for col in range(k):
        k32 = col % 32
        kp = col // 32 * 32 + 8 * ((k32 // 2) % 4) + 4 * (k32 % 2) + k32 // 8
        flat = (row % 4) * 64 + kp % 64
        codes[:, col] = words[row // 4, kp // 64 * 64 + flat // 4] >> (4 * (flat % 4)) & 15
    count = k // int(said) if integer(said) and int(said) > 0 else 1
    need(zeros is not None and count and k % count == 0 and s.shape[0] >= count and s.shape[1] == n, "groups")
    assert zeros is not None
    scales, scaled = real_scale(s)[:count].T, zeros.real[:count].T
    ratio = np.divide(-scaled, scales, out=np.zeros_like(scales), where=scales != 0)
    zero = np.rint(ratio)
    need((np.abs(ratio - zero) < 0.02).all() and (zero >= 0).all() and (zero <= 15).all(), "zero points")
    return Meaning(codes - columns(zero, k // count, k), columns(scales, k // count, k), bias=bias_of(t, n))
