"""compressed-tensors: packed integers in two layouts, NVFP4 with divisors, MXFP4; int8 and FP8 modules go to their own readers.

In: one module's tensors and its group of the config.  Out: a StandardLayer, or findings.
Facts: formats.md 4.  Checked against compressed-tensors 0.8 to 0.20 files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding, Rule
from humming_convert.formats.assemble import Described, Draft, flat, matching, same_but_ones
from humming_convert.formats.blocks import fp8_modules, settle
from humming_convert.formats.ct_config import (
    FORMATS,
    NOT_QUANTIZED,
    NUMBERS,
    Group,
    assign,
    input_form,
    is_class,
    named_by,
    odd_class,
    parse_groups,
    refuse,
    spellings,
)
from humming_convert.formats.excluded import Names, check_patterns, listed, some, warn_ignored
from humming_convert.formats.mxfp4 import float4
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Context, Expr, Stored, apply
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import number
from humming_convert.standard.packing_ct import zero_codes

RULES = (
    Rule(370, "ct-bits-lie", "num_bits of the config is the width of the tensors", "warning"),
    Rule(371, "weight-shape-lies", "weight_shape is [N, K] of the tensors", "warning"),
    Rule(373, "ct-words", "the packed words hold K codes in one of the layouts"),
    Rule(374, "ct-symmetric-lies", "a symmetric group has no zero points, or zero ones", "warning"),
    Rule(375, "ct-g-idx", "weight_g_idx holds group numbers, each group its columns"),
    Rule(376, "ct-zero-point-missing", "an asymmetric group has zero points"),
)

SPREAD = (3, 5, 6, 7)  # widths that the two layouts store differently


# ------------------------------------------------------------------ config
def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """Reads the config, compares it with the modules, and leaves `describe` and `groups` in source.shared."""
    findings = source.findings
    groups = parse_groups(source.config, findings)
    refuse(source.config, groups, findings)
    kinds = {m.name: kind for kind, found in modules.items() for m in found}
    ignore = listed(source, "ignore")
    check_patterns(source, [*(str(t) for g in groups for t in g.targets), *ignore])
    names = Names(kinds, spellings)
    of = assign(names, groups)
    used = {g.name for g in of.values() if g is not None}
    for g in groups:
        if g.name not in used:
            findings.warning(
                "ct-group-unused",
                f"{g.name} of config_groups matches no quantized module",
                file="config.json",
                advice="correct its targets",
            )
    _many(source, "ct-group-none", "no group of the config names", [n for n, g in of.items() if g is None])
    for entry in ignore:
        warn_ignored(source, entry, [] if is_class(entry) else named_by(entry, names))
    for g in groups:
        _compare(source, g, {n: kind for n, kind in kinds.items() if of[n] is g})
    inputs: dict[str, Any] = {}
    for g in groups:
        form = input_form(g.inputs, g.name)
        if isinstance(form, Finding):
            findings.add(form)
            form = None
        inputs[g.name] = form

    block_of = {g.name: _block(source, g, [m for m in fp8_modules(modules) if of[m.name] is g]) for g in groups}

    def describe(name: str) -> Described:
        if name not in kinds:  # a stack of a module that holds several
            name = name.rpartition(".")[0]
        g = of.get(name)
        if g is None:
            return Described()
        if kinds.get(name) not in FORMATS.get(g.format, (kinds.get(name),)):
            return Described(place=g.name, declared=inputs[g.name])
        return Described(
            known=True,
            place=g.name,
            bits=g.bits,
            group=g.group_size,
            block=block_of[g.name],
            symmetric=g.symmetric,
            one_scale=g.one_scale,
            static=inputs[g.name] is not None and inputs[g.name].mode.startswith("static"),
            declared=inputs[g.name],
        )

    source.shared["describe"] = describe
    source.shared["groups"] = of
    source.shared["bits_fit"] = _groups_whose_bits_fit(source, [(m, of[m.name]) for m in matching(modules, "ct-pack")])
    source.shared["group_fits"] = {
        (own.name, own.group_size)
        for m in matching(modules, "ct-pack", "int8", "fp8")
        if (own := of[m.name]) is not None and own.group_size is not None and _fits_group(m, own)
    }


def _block(source: Source, g: Group, members: list[Module]) -> tuple[int, int] | None:
    return settle(source, f"{g.name} of config_groups", "block_structure", g.block, members)


def _compare(source: Source, g: Group, members: Mapping[str, str]) -> None:
    """ct-format-lies: format, type and width that a group says against the kinds of its modules. The tensors are followed."""
    format_lies = [n for n, kind in members.items() if kind not in FORMATS.get(g.format, (kind,))]
    _many(source, "ct-format-lies", f"{g.name} says {g.format}, other tensors are there of", format_lies)
    if g.format in NOT_QUANTIZED:
        _many(source, "ct-format-lies", f"{g.name} says {g.format}, which is not packed; packed tensors are there of", list(members))
    numbers = {n: NUMBERS[kind] for n, kind in members.items() if kind in NUMBERS and n not in format_lies}
    said = g.weights.get("type")
    _many(
        source,
        "ct-format-lies",
        f"{g.name} says type {said}, other numbers are there of",
        [n for n, x in numbers.items() if said not in (None, x[0])],
    )
    wide = [n for n, x in numbers.items() if x[1] not in (None, g.bits)]
    _many(source, "ct-format-lies", f"{g.name} says num_bits {g.bits}, other numbers are there of", wide)
    if members and (odd := odd_class(g)) is not None:
        _many(source, "ct-group-unused", f"{g.name} is for the class {odd}, which is none of matrices; it is taken for", list(members))


def _groups_whose_bits_fit(source: Source, members: list[tuple[Module, Group | None]]) -> set[str]:
    """Names of groups that have a module whose words hold as many codes of num_bits as weight_shape says: their config is no lie."""
    fit: set[str] = set()
    for module, g in members:
        if g is None or g.name in fit or g.bits is None or not 1 <= g.bits <= 8:
            continue
        said, packed = _said_shape(source, module), module.tensors["weight_packed"]
        if said is not None and packed.shape and layouts(packed.shape[-1], g.bits, said[1]):
            fit.add(g.name)
    return fit


def _many(source: Source, code: str, what: str, names: list[str]) -> None:
    """One warning about many modules."""
    if names:
        layer = names[0] if len(names) == 1 else None
        message = f"{what} {some(names)}; the tensors are followed"
        source.findings.warning(code, message, layer=layer, file="config.json", count=len(names), advice="correct the config")


def _fits_group(module: Module, g: Group) -> bool:
    """True if the scales of a module have as many columns as the group's size asks for, for any K that its weight can have."""
    packed, weight, scale = (module.tensors.get(x) for x in ("weight_packed", "weight", "weight_scale"))
    if scale is None or not scale.shape or g.bits is None or not 1 <= g.bits <= 8:
        return False
    if packed is not None and packed.shape:
        widths = _columns(packed.shape[-1], g.bits)
    else:
        widths = {weight.shape[-1]} if weight is not None and weight.shape else set()
    return any((-(-k // g.group_size) if g.group_size else 1) == scale.shape[-1] for k in widths)


def _columns(words: int, bits: int) -> set[int]:
    """Every K that `words` words of `bits`-bit codes can hold in one of the layouts."""
    each = 32 // bits
    dense = set(range(-(-(32 * (words - 1) + 1) // bits), 32 * words // bits + 1))
    return dense | set(range((words - 1) * each + 1, words * each + 1)) if bits in SPREAD else dense


# ------------------------------------------------------------------ pack-quantized
def layouts(words: int, bits: int, count: int) -> tuple[str, ...]:
    """Packings in which `count` codes fill `words` words: rows (dense), padded (floor(32/b) a word).

    Both hold for short lengths only (at most 150 codes of 3 bits, D10), and none of these fills whole words, which every row must.
    """
    out = ("rows",) if words == -(-count * bits // 32) else ()
    return (*out, "padded") if bits in SPREAD and words == -(-count // (32 // bits)) else out


def read_pack(source: Source, module: Module) -> list[StandardLayer]:
    """pack-quantized (formats.md 4.3)."""
    d = Draft(source, module, "compressed-tensors")
    packed, scale = d.need("weight_packed", "I32"), d.need("weight_scale", "F16", "BF16", "F32")
    d.take("weight_shape")
    if packed is None or scale is None:
        return []
    if len(packed.shape) not in (2, 3):
        d.bad_shape("weight_packed", "[N, words]")
        return []
    experts = packed.shape[0] if len(packed.shape) == 3 else None
    n, words = packed.shape[-2:]
    found = _width(d, n, words, scale)
    if found is None:
        return []
    bits, k, packing = found
    if packing == "padded":
        d.check("high-bits", packed, params=(bits,))
    lead = () if experts is None else (experts,)
    if d.lone_scale("weight_scale", scale, n, experts):
        d.check("positive", scale)
        kind, group, expr = "tensor", 0, _reshaped(Stored(scale), (*lead, 1))
    else:
        shape = (*lead, n, 1) if same_but_ones(scale.shape, (*lead, n)) else scale.shape
        if len(shape) != len(packed.shape) or shape[:-1] != packed.shape[:-1]:
            d.bad_shape("weight_scale", str([*packed.shape[:-1], max(1, -(-k // (d.config.group or k)))]))
            return []
        got = d.resolve_group("weight_scale", k, shape[-1], d.config.group)
        if got is None:
            return []
        kind, group = got
        expr = _reshaped(d.scale_floats(scale), shape)
    groups = expr.shape[-1] if kind != "tensor" else 1
    zeros = zero_points(d, n, groups, bits, experts, scale, packing)
    if kind == "tensor":
        if zeros is not None:  # Humming has integer zero points by group or row only (layouts.md 1)
            expr, kind = apply("repeat", _reshaped(expr, (*lead, 1, 1)), params=(n, len(lead), n), shape=(*lead, n, 1)), "channel"
        elif scale.dtype != "F32":
            expr = apply("float32", expr, dtype="F32", shape=expr.shape)
    dtype = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}[expr.dtype]
    form, out, zeros = (
        (ScaleForm(kind="tensor", dtype=dtype), expr, zeros) if kind == "tensor" else d.grouped(expr, dtype, k, kind, group, zeros)
    )
    d.tensors["weight_scale"] = out
    if zeros is not None:
        d.tensors["zero_point"] = zeros
    _act_order(d, k, group or k)
    d.bias(n, experts)
    d.scalar("input_scale", "input_scale", experts)
    d.take("input_zero_point")
    d.leftovers()
    return d.layer(
        weight=packed, packing=packing, number=number(f"uint{bits}"), n=n, k=k, experts=experts, scale=form, zero_point=zeros is not None
    )


def _reshaped(expr: Expr, shape: tuple[int, ...]) -> Expr:
    return expr if expr.shape == shape else apply("reshape", expr, params=(shape,), shape=shape)


def _width(d: Draft, n: int, words: int, scale: TensorView) -> tuple[int, int, str] | None:
    """(bits, K, packing): what weight_shape, num_bits and the words agree on; two of them outvote the third (D24, formats.md 12 rows 6, 26)."""
    said, bits, group = _said_shape(d.source, d.module), d.config.bits, d.config.group
    groups = scale.shape[-1] if len(scale.shape) >= 2 else 1

    def agrees(k: int) -> bool:
        return -(-k // group) == groups if group else group == 0 and groups == 1

    k = said[1] if said else None
    if said is None and "weight_shape" in d.module.tensors and not d.source.headers_only:
        message = "weight_shape is not [N, K] in integers; words and scales are followed"
        d.warning("weight-shape-lies", message, "weight_shape", advice="re-export the layer")
    if said and said[0] != n:
        if len(scale.shape) < 2 or scale.shape[-2] != n:
            d.bad_shape("weight_packed", f"[{said[0]}, ..] as weight_shape says")
            return None
        d.warning(
            "weight-shape-lies",
            f"weight_shape says N = {said[0]}, words and scales have {n} rows; the tensors are followed",
            "weight_shape",
            advice="re-export the layer",
        )
    if k is not None and bits is not None and layouts(words, bits, k):
        return bits, k, layouts(words, bits, k)[0]
    if k is None and bits is not None:
        fits = sorted(_columns(words, bits))
        by_group = [x for x in fits if group and x == group * groups]
        # without weight_shape only full words tell K, and only where the number of groups does not contradict it
        whole = [x for x in [32 * words // bits] if agrees(x)] if bits not in SPREAD else []
        for x in by_group or [x for x in whole if x * bits == 32 * words]:
            return bits, x, layouts(words, bits, x)[0]
        d.error(
            "ct-words",
            f"K cannot be told from {words} words of {bits} bits without weight_shape",
            "weight_packed",
            advice="re-export the layer",
        )
        return None
    if k is None:
        d.error(
            "tensor-missing",
            "weight_shape is missing, and no group of the config gives the bits",
            "weight_shape",
            advice="re-export the layer",
        )
        return None
    # the three do not agree: which one is wrong?
    other_bits = [b for b in range(1, 9) if b != bits and layouts(words, b, k)] if bits is None or agrees(k) else []
    other_k = [x for x in _columns(words, bits) if group and x == group * groups] if bits is not None else []
    if bits is not None and group == 0 and bits not in SPREAD and groups == 1 and 32 * words % bits == 0:
        other_k = [32 * words // bits]
    # a group's num_bits that fits other modules is no lie: this module lost words
    lost = bits is not None and d.config.place in d.source.shared.get("bits_fit", ())
    if len(other_bits) == 1 and not other_k and not lost:
        b = other_bits[0]
        if bits is not None:
            d.source.findings.warning(
                "ct-bits-lie",
                f"{d.config.place} says num_bits {bits}, the tensors of its modules have {b} bits; the tensors are followed",
                file="config.json",
                advice="correct num_bits in the config",
            )
        return b, k, layouts(words, b, k)[0]
    if len(other_k) == 1 and not other_bits and bits is not None:
        d.warning(
            "weight-shape-lies",
            f"weight_shape says K = {k}, words and scales have K = {other_k[0]}; the tensors are followed",
            "weight_shape",
            advice="re-export the layer",
        )
        return bits, other_k[0], layouts(words, bits, other_k[0])[0]
    d.error(
        "ct-words",
        f"weight_packed has {words} words a row; K = {k} of weight_shape with num_bits {bits} of {d.config.place} needs {-(-k * (bits or 0) // 32)}",
        "weight_packed",
        advice="weight_packed, weight_shape or the config's bits is damaged; re-export the layer",
    )
    return None


def _said_shape(source: Source, module: Module) -> tuple[int, int] | None:
    """[N, K] of weight_shape, None if it is absent or must not be read."""
    view = module.tensors.get("weight_shape")
    if view is None or view.dtype not in ("I64", "I32") or source.headers_only:
        return None
    stack = module.tensors["weight_packed"].shape[:-2]  # of experts: [E, N, K], or a row for each
    if flat(view) != 2 and (not stack or flat(view) not in (3, 2 * stack[0])):
        return None
    *_, n, k = (int(x) for x in np.asarray(source.read(view)).reshape(-1))
    return (n, k) if n > 0 and k > 0 else None


def zero_points(d: Draft, n: int, groups: int, bits: int, experts: int | None, scale: TensorView, packing: str = "rows") -> Expr | None:
    """Words of the standard form [experts?, ceil(n*b/32), groups], None for a symmetric module (formats.md 4.3).

    packing: of the weight. A short column of zero points can be of both layouts; the writer used one function for both.
    """
    view = d.take("weight_zero_point")
    if view is None:
        if d.config.symmetric is False:
            d.error(
                "ct-zero-point-missing",
                f"weight_zero_point is missing, {d.config.place} says symmetric false",
                "weight_zero_point",
                advice="versions before compressed-tensors#225 dropped zero points that were all zero; export again, or correct the config if it is so",
            )
        return None
    lead = () if experts is None else (experts,)
    dense, padded = -(-n * bits // 32), -(-n // (32 // bits))
    shape, expr = (*lead, dense, groups), Stored(view)
    out: Expr
    both = dense == padded and bits in SPREAD
    if view.dtype == "I32" and view.shape == shape and not (both and packing == "padded"):
        out = expr
    elif view.dtype == "I32" and bits in SPREAD and view.shape == (*lead, padded, groups):
        d.check("high-bits", view, params=(bits,))
        out = apply("zero_words_padded", expr, params=(bits, n), shape=shape)
    elif same_but_ones(view.shape, scale.shape) and view.dtype in ("I8", "I16", "I32", "I64", "F16", "BF16", "F32"):
        d.check("signed-zero-point", view, params=(bits,))
        full = (*lead, n if flat(view) != (experts or 1) else 1, groups)
        signed = _reshaped(expr, full)
        if full[-2] != n:
            signed = apply("repeat", signed, params=(n, len(lead), n), shape=(*lead, n, groups))
        out = apply("zero_words_signed", signed, params=(bits,), dtype="I32", shape=shape)
    else:
        d.bad_shape("weight_zero_point", f"{list(shape)} (packed) or {list(scale.shape)}", f"dtype {view.dtype}")
        return None
    if d.config.symmetric is not False and d.ok:
        return _of_symmetric(d, view, out, n, bits)
    return out


def _of_symmetric(d: Draft, view: TensorView, zeros: Expr, n: int, bits: int) -> Expr | None:
    """Zero points beside `symmetric: true`: dropped if they say the middle everywhere, else the tensors win (D4)."""
    if d.source.headers_only:
        return None
    codes = zero_codes(zeros.evaluate(Context(d.source.read, Meter())), bits, n)
    if (codes == 1 << (bits - 1)).all():
        return None
    if d.config.symmetric is True:
        d.warning(
            "ct-symmetric-lies",
            f"{d.config.place} says symmetric true, weight_zero_point is not zero; the module is read as asymmetric",
            "weight_zero_point",
            advice="correct the config",
        )
    return zeros


def _act_order(d: Draft, k: int, group: int) -> None:
    """weight_g_idx: no effect where it is k // G, -1, or there is one group; else act-order, left to the model room (formats.md 2.8)."""
    view = d.take("weight_g_idx", "I32", "I64")
    if view is None or group >= k or d.source.headers_only:
        return
    index = np.asarray(d.source.read(view)).reshape(-1).astype(np.int64)
    groups = -(-k // group)
    if index.size in (0,) or (index == -1).any():
        return
    if index.size != k:
        d.bad_shape("weight_g_idx", f"[{k}]")
        return
    if (index == np.arange(k) // group).all():
        return
    if index.min() < 0 or index.max() >= groups:
        wrong = int(((index < 0) | (index >= groups)).sum())
        d.error(
            "ct-g-idx",
            f"{wrong} entries of weight_g_idx name groups outside 0..{groups - 1}",
            "weight_g_idx",
            count=wrong,
            advice="re-export the layer",
        )
        return
    counts = np.bincount(index, minlength=groups)
    if (counts != group).any():
        d.error(
            "ct-g-idx",
            f"weight_g_idx gives groups of unequal size ({int(counts.min())} to {int(counts.max())}, want {group})",
            "weight_g_idx",
            advice="re-export the layer",
        )
        return
    d.facts["g_idx"] = Stored(view)


# ------------------------------------------------------------------ FP4
def read_nvfp4(source: Source, module: Module) -> list[StandardLayer]:
    """nvfp4-pack-quantized: the globals are divisors (formats.md 4.5)."""
    d = Draft(source, module, "compressed-tensors")
    d.take("weight_shape")
    out = float4(
        d, "weight_packed", "weight_scale", 16, "float8e4m3", factor=("weight_global_scale", True), inputs=("input_global_scale", True)
    )
    return out


def read_mxfp4(source: Source, module: Module) -> list[StandardLayer]:
    """mxfp4-pack-quantized (formats.md 4.6)."""
    d = Draft(source, module, "compressed-tensors")
    d.take("weight_shape")
    return float4(d, "weight_packed", "weight_scale", 32, "float8e8m0")
