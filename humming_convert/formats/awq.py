"""AWQ: 4-bit codes along N (gemm) or along K (gemv, gemv_fast), zero points as they are.

In: one module's tensors and the quantizer's config.  Out: a StandardLayer, or findings.
Facts: formats.md 3, 11 (D2, D4, D9), 12.21 to 12.25. The shapes decide the variant, `version` is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.assemble import FLOATS, Draft
from humming_convert.formats.biases import take_bias
from humming_convert.formats.columns import Groups, groups_of
from humming_convert.formats.declared import Declared, read_config
from humming_convert.formats.gptq import scale_expr, scale_form
from humming_convert.formats.neighbours import check_neighbours, check_sections
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, Stored, apply
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number
from humming_convert.standard.packing import stream_unpack
from humming_convert.standard.zero_points import fast_zeros, zeros_awq

RULES = (
    Rule(301, "awq-version-lies", "`version` names the variant of the tensors (else the shapes win)", "warning"),
    Rule(302, "awq-width", "AWQ codes are 4 bits wide, or GPTQModel 7 or later wrote them"),
    Rule(303, "llm-awq", "the tensors are not those of llm-awq (scaled_zeros)"),
    Rule(304, "awq-padding", "entries after the last group of a gemv layer are zero", "warning"),
    Rule(305, "awq-zero-fraction", "the zero points of gemv_fast come out as whole numbers from 0 to 15"),
    Rule(306, "pack-words", "codes are packed in 32-bit words (gemv_fast apart)"),
    Rule(307, "awq-gemv-groups", "the padded width of gemv scales tells how many groups there are"),
)

KINDS = ("awq", "awq-gemv", "awq-fast", "marlin")
VERSION_KINDS: dict[str, tuple[str, ...]] = {
    "gemm": ("awq",),
    "exllama": ("awq",),
    "ipex": ("awq",),
    "gemv": ("awq-gemv",),
    "gemv_fast": ("awq-fast",),
    "marlin": ("marlin",),
    "llm-awq": ("awq-fast",),
}
"""version -> kinds of tensors that it may name (exllama and ipex are names of kernels; their files are gemm)."""


# ------------------------------------------------------------------ the method's hook
def prepare(source: Source, modules: Mapping[str, Sequence[Module]]) -> None:
    """Checks the config, `version` against the kinds that are there, and other configs against the shapes."""
    declared = read_config(source)
    source.shared["awq"] = declared
    if declared.format == "llm-awq" and not modules.get("awq-fast") and any(modules.values()):
        source.findings.warning(
            "awq-version-lies",
            f"version is llm-awq in {declared.file}, the tensors are not",
            file=declared.file,
            advice="correct version in the config",
        )
    check_neighbours(source, modules, declared, KINDS)
    for kind, found in modules.items():
        expected = VERSION_KINDS.get(declared.format)
        if found and kind in KINDS and expected is not None and kind not in expected and declared.format != "llm-awq":
            view = next(iter(found[0].tensors.values()))
            source.findings.warning(
                "awq-version-lies",
                f"version is {declared.format} in {declared.file}, the shapes of {len(found)} modules are {kind}; the shapes are followed",
                layer=found[0].name,
                file=view.file.name,
                advice="correct version in the config",
                count=len(found),
            )
    if len(source.checkpoint.sections) > 1:
        check_sections(source, declared, _widths(modules.get("awq", ())))


def _widths(modules: Sequence[Module]) -> list[tuple[str, int, int]]:
    """(module, bits, group size or -1) of gemm modules, by their shapes alone."""
    out = []
    for m in modules:
        q, s = m.tensors.get("qweight"), m.tensors.get("scales")
        if q is not None and s is not None and len(q.shape) == 2 == len(s.shape) and 0 not in s.shape:
            groups = s.shape[0]
            out.append((m.name, 32 * q.shape[1] // s.shape[1], q.shape[0] // groups if groups > 1 else -1))
    return out


def _declared(source: Source, module: Module) -> Declared:
    """What the config says of a module; nothing if the config is of another method than awq, but for what gptq's says of all."""
    for key in ("awq", "gptq"):
        found = source.shared.get(key)
        if found is not None:
            declared = found if isinstance(found, Declared) else found.declared
            assert isinstance(declared, Declared)
            return declared.of(module.name)
    return Declared(file="config.json")


def _matrices(d: Draft, **views: TensorView | None) -> bool:
    for suffix, view in views.items():
        if view is not None and (len(view.shape) != 2 or 0 in view.shape):
            d.bad_shape(suffix, "two dimensions, none of them 0")
    return _good(d)


def _good(d: Draft) -> bool:
    """No error yet; asked anew after each check."""
    return d.ok


# ------------------------------------------------------------------ gemm
def read(source: Source, module: Module) -> list[StandardLayer]:
    """qweight [K, N*b/32], qzeros [K/G, N*b/32], scales [K/G, N]."""
    d, mine = Draft(source, module, "awq"), _declared(source, module)
    if "g_idx" in module.tensors:
        q, s = module.tensors["qweight"], module.tensors["scales"]
        d.bad_shape(
            "qweight",
            f"[K * bits / 32, {s.shape[-1]}]",
            f"scales are {list(s.shape)} and g_idx is there, as in GPTQ; {list(q.shape)} fits neither",
        )
        return []
    qweight = d.need("qweight", "I32")
    scales = d.need("scales", *FLOATS, "F64")
    qzeros = d.take("qzeros", "I32")
    if qzeros is None and "qzeros" not in module.tensors and mine.sym is not True:
        d.need("qzeros", "I32", why="zero_point is not false in the config")
    if not d.ok or qweight is None or scales is None or not _matrices(d, qweight=qweight, scales=scales, qzeros=qzeros):
        return []
    (k, columns), (groups, n) = qweight.shape, scales.shape
    widths = {b for b in range(2, 9) if columns == -(-n * b // 32)}
    if not widths:
        d.bad_shape("qweight", f"[K, {n} * bits / 32]", f"scales are {list(scales.shape)}", advice="one of the two is damaged")
        return []
    if qzeros is not None and qzeros.shape != (groups, columns):
        d.bad_shape(
            "qzeros",
            f"[{groups}, {columns}]",
            f"qweight is {list(qweight.shape)}, scales are {list(scales.shape)}",
            "one of them is damaged",
        )
        return []
    bits = mine.bits if mine.bits in widths else 4 if 4 in widths else min(widths)
    assert bits is not None
    if mine.bits is not None and mine.bits != bits:
        d.warning(
            "bits-lie",
            f"bits is {mine.bits} in {mine.file}, the shapes say {bits}; the shapes are taken",
            "qweight",
            advice="correct the config",
        )
    if bits != 4 and (mine.producer is None or mine.producer < (7,)):
        d.error(
            "awq-width",
            f"AWQ codes of {bits} bits: three orders are in use, and meta.quantizer names no GPTQModel 7 or later",
            "qweight",
            advice="quantize again with 4 bits, or as GPTQ",
        )
        return []
    if bits != 4:
        source.findings.warning(
            "unverified-variant",
            "AWQ codes other than 4 bits were read from their description only",
            file=mine.file,
            advice="compare a few outputs with the source model",
        )
    if qzeros is None and mine.format == "marlin":
        d.bad_shape("qweight", f"[K/16, {2 * n}]", f"version is marlin in {mine.file}, and no zero points are there")
        return []
    if bits == 4 and n % 8:
        d.bad_shape("qweight", "whole words of eight columns", f"N is {n}")
        return []
    found = groups_of(source, module, "scales", k, groups, mine.group)
    if found is None:
        return []
    take_bias(d, n)
    d.leftovers()
    sym = _symmetric(d, mine, qzeros, bits, n)
    zeros: Expr | None = None
    if not sym and qzeros is not None:
        words: Expr = Stored(qzeros)
        if bits == 4:
            words = apply("zeros_awq", words, shape=qzeros.shape)
        zeros = found.spread(apply("transpose", words, shape=words.shape[::-1]))
    plain, dtype = scale_expr(d.scale_floats(scales))
    return _layer(
        d, qweight, "awq" if bits == 4 else "awq_stream", bits, n, found, apply("transpose", plain, shape=plain.shape[::-1]), dtype, zeros
    )


def _symmetric(d: Draft, mine: Declared, qzeros: TensorView | None, bits: int, n: int) -> bool:
    """D4 for AWQ: `zero_point: false` with other zero points than 2^(b-1) is a lie; constant ones are symmetric if nothing is said."""
    if qzeros is None or mine.sym is False:
        return qzeros is None
    if d.source.headers_only:
        return mine.sym is True
    words = np.asarray(d.source.read(qzeros))
    fields = stream_unpack(zeros_awq(words) if bits == 4 else words, bits, n)
    if (fields == 1 << (bits - 1)).all():
        return True
    if mine.sym:
        d.warning(
            "sym-lies",
            f"zero_point is false in {mine.file} but the zero points vary; the layer is read as asymmetric",
            "qzeros",
            advice="correct zero_point in the config",
        )
    return False


def _layer(
    d: Draft, qweight: TensorView, packing: str, bits: int, n: int, groups: Groups, scale: Expr, dtype: str, zeros: Expr | None
) -> list[StandardLayer]:
    """scale: [n, stored groups]; zeros: of the standard form already."""
    d.tensors["weight_scale"] = groups.spread(scale)
    if zeros is not None:
        d.tensors["zero_point"] = zeros
    return d.layer(
        weight=qweight,
        packing=packing,
        number=number(f"uint{bits}"),
        n=n,
        k=groups.k,
        experts=None,
        scale=scale_form(groups, dtype),
        zero_point=zeros is not None,
    )


# ------------------------------------------------------------------ gemv
def padded_words(groups: int, group: int) -> int:
    """zw: 32-bit words that hold the zero points of a row; the scales have eight entries for each (formats.md 3.3)."""
    multiple = 1 if group >= 128 else 2 if group == 64 else 4
    words = -(-groups // 8)
    return -(-words // multiple) * multiple


def _groups_used(d: Draft, suffix: str, gemv: bool) -> int:
    """Groups up to the last one in which most rows have a scale that is not 0; what follows is padding, with damage here and there."""
    scales = np.asarray(d.source.read(d.module.tensors[suffix])).astype(np.float32)
    filled = np.flatnonzero((scales != 0).mean(axis=0 if gemv else 1) >= 0.5)
    return int(filled[-1]) + 1 if filled.size else 0


def _gemv_group(d: Draft, mine: Declared, suffix: str, k: int, width: int, words: bool) -> Groups | None:
    """The group size whose padded number of groups is `width`. words: width is always padded (else [K/G] is accepted too)."""
    declared = k if mine.group == -1 or (mine.group or 0) > k else mine.group

    def fits(group: int) -> bool:
        count = k // group
        return k % group == 0 and (8 * padded_words(count, group) == width or (not words and count == width))

    candidates = [declared] if declared and fits(declared) else [g for g in dict.fromkeys((32, 64, 128, k)) if g <= k and fits(g)]
    if candidates == [declared] and declared and not d.source.headers_only:
        # padding makes one width of many numbers of groups: only the scales themselves prove the declared one
        used = _groups_used(d, suffix, gemv=words)
        if used and used != k // declared:
            d.error(
                "awq-gemv-groups",
                f"{suffix} holds the scales of {used} groups, K {k} in groups of {mine.group} as {mine.file} says has {k // declared}",
                suffix,
                advice="put the right group_size into the config, or export the layer again",
            )
            return None
    if len(candidates) > 1 and not d.source.headers_only:
        used = _groups_used(d, suffix, gemv=words)
        candidates = [g for g in candidates if k // g == used]
    if len(candidates) != 1 or candidates[0] is None:
        d.error(
            "awq-gemv-groups",
            f"{suffix} has a padded shape of {width} groups for K {k}, which fits group sizes {candidates or 'of no kind'}"
            + (f"; group_size is {mine.group} in {mine.file}" if mine.group else ""),
            suffix,
            advice="put the right group_size into the config",
        )
        return None
    group = candidates[0]
    if mine.group is not None and group != declared:
        d.warning(
            "group-size-lies",
            f"group_size is {mine.group} in {mine.file}, the shape of {suffix} says {group}; the shape is taken",
            suffix,
            advice="correct group_size in the config",
        )
    channel = mine.group == -1 or (mine.group or 0) > k
    return groups_of(d.source, d.module, suffix, k, k // group, -1 if channel else group)


def read_gemv(source: Source, module: Module) -> list[StandardLayer]:
    """qweight [N, K/8], qzeros [N, zw], scales [N, 8*zw]: rows stay rows, groups padded with zeros."""
    d, mine = Draft(source, module, "awq"), _declared(source, module)
    qweight = d.need("qweight", "I32")
    scales = d.need("scales", *FLOATS, "F64")
    qzeros = d.take("qzeros", "I32") if mine.sym is True else d.need("qzeros", "I32", why="zero_point is not false in the config")
    if not d.ok or qweight is None or scales is None or not _matrices(d, qweight=qweight, scales=scales, qzeros=qzeros):
        return []
    n, k = qweight.shape[0], qweight.shape[1] * 8
    if "g_idx" in module.tensors:
        d.bad_shape("qweight", f"[K * bits / 32, {scales.shape[1]}]", "g_idx is there, as in GPTQ")
    if mine.bits not in (None, 4):
        d.error(
            "awq-width",
            f"bits is {mine.bits} in {mine.file}; gemv layers are read with 4 bits only",
            "qweight",
            advice="quantize again with 4 bits",
        )
    if scales.shape[1] % 8 or scales.shape[0] != n:
        d.bad_shape("scales", f"[{n}, a multiple of 8]", f"qweight is {list(qweight.shape)}")
    if qzeros is not None and (qzeros.shape[0] != n or qzeros.shape[1] * 8 != scales.shape[1]):
        d.bad_shape("qzeros", f"[{n}, {scales.shape[1] // 8}]", f"scales are {list(scales.shape)}")
    if not _good(d):
        return []
    groups = _gemv_group(d, mine, "scales", k, scales.shape[1], words=True)
    if groups is None:
        return []
    take_bias(d, n)
    d.leftovers()
    plain, dtype = scale_expr(d.scale_floats(scales))
    sym = qzeros is None
    if not source.headers_only:
        _padding(d, "scales", np.asarray(source.read(scales))[:, groups.count :])
        if qzeros is not None:
            fields = stream_unpack(np.asarray(source.read(qzeros)), 4, scales.shape[1])
            _padding(d, "qzeros", fields[:, groups.count :])
            sym = mine.sym is not False and bool((fields[:, : groups.count] == 8).all())
            if mine.sym and not sym:
                d.warning(
                    "sym-lies",
                    f"zero_point is false in {mine.file} but the zero points vary; the layer is read as asymmetric",
                    "qzeros",
                    advice="correct zero_point in the config",
                )
    zeros = None
    if not sym and qzeros is not None:
        words = apply("zeros_gemv", Stored(qzeros), params=(groups.count,), shape=(groups.count, -(-n // 8)))
        zeros = groups.spread(apply("transpose", words, shape=words.shape[::-1]))
    scale = apply("columns", plain, params=(0, groups.count, 1), shape=(n, groups.count))
    return _layer(d, qweight, "rows", 4, n, groups, scale, dtype, zeros)


def _padding(d: Draft, suffix: str, rest: np.ndarray) -> None:
    full = int(np.count_nonzero(rest))
    if full:
        d.warning(
            "awq-padding",
            f"{full} entries of {suffix} after the last group are not zero; they are left out",
            suffix,
            count=full,
            advice="export the layer again",
        )


# ------------------------------------------------------------------ gemv_fast
def read_fast(source: Source, module: Module) -> list[StandardLayer]:
    """qweight int16 [N/4, K], scales and qzeros F16 [8*zw, N], qzeros = -(scale * zero). llm-awq and 16-bit GPTQ words are refused."""
    d, mine = Draft(source, module, "awq"), _declared(source, module)
    if "scaled_zeros" in module.tensors or mine.format == "llm-awq":
        d.error(
            "llm-awq",
            "llm-awq tensors (scaled_zeros) are not read",
            "scaled_zeros",
            advice="quantize with AutoAWQ or GPTQModel, version gemm",
        )
        return []
    packed = module.tensors.get("qzeros")
    if "g_idx" in module.tensors or (packed is not None and packed.dtype == "I16"):
        d.error(
            "pack-words",
            "qweight is I16: codes in words of 16 bits (pack_dtype int16) are not read",
            "qweight",
            advice="quantize with pack_dtype int32",
        )
        return []
    qweight = d.need("qweight", "I16")
    scales = d.need("scales", "F16")
    qzeros = d.need("qzeros", "F16", why="zero points of gemv_fast are 16-bit products")
    if not d.ok or qweight is None or scales is None or qzeros is None or not _matrices(d, qweight=qweight, scales=scales, qzeros=qzeros):
        return []
    (rows, k), n = qweight.shape, scales.shape[1]
    if mine.bits not in (None, 4):
        d.error(
            "awq-width",
            f"bits is {mine.bits} in {mine.file}; gemv_fast layers are read with 4 bits only",
            "qweight",
            advice="quantize again with 4 bits",
        )
    if rows * 4 != n or k % 64:
        d.bad_shape("qweight", f"[{n // 4}, a multiple of 64]", f"scales are {list(scales.shape)}")
    if qzeros.shape != scales.shape:
        d.bad_shape("qzeros", str(list(scales.shape)), "as scales")
    if not _good(d):
        return []
    groups = _gemv_group(d, mine, "scales", k, scales.shape[0], words=False)
    if groups is None:
        return []
    if groups.count == scales.shape[0] != 8 * padded_words(groups.count, groups.stored or k):
        source.findings.warning(
            "unverified-variant",
            "gemv_fast scales without padding were read from their description only",
            layer=module.name,
            file=scales.file.name,
            advice="compare a few outputs with the source model",
        )
    take_bias(d, n)
    d.leftovers()
    plain, dtype = scale_expr(d.scale_floats(scales))
    if not source.headers_only:
        _fractions(d, np.asarray(source.read(qzeros)), np.asarray(source.read(scales)), groups)
    words = apply("zeros_fast", Stored(qzeros), Stored(scales), params=(groups.count,), dtype="I32", shape=(groups.count, -(-n // 8)))
    zeros = groups.spread(apply("transpose", words, shape=words.shape[::-1]))
    scale = apply("columns", apply("transpose", plain, shape=plain.shape[::-1]), params=(0, groups.count, 1), shape=(n, groups.count))
    return _layer(d, qweight, "awq_fast", 4, n, groups, scale, dtype, zeros)


TOLERANCE = 0.02  # worst deviation over 200,000 random F16 scales and all zero points: 0.0073 (formats.md 3.4)


def _fractions(d: Draft, scaled: np.ndarray, scales: np.ndarray, groups: Groups) -> None:
    _padding(d, "scales", scales[groups.count :])
    _padding(d, "qzeros", scaled[groups.count :])
    rounded, exact = fast_zeros(scaled, scales, groups.count)
    with np.errstate(invalid="ignore"):
        good = (np.abs(exact - rounded) < TOLERANCE) & (rounded >= 0) & (rounded <= 15)
    bad = int((~good).sum())
    if bad:
        d.error(
            "awq-zero-fraction",
            f"{bad} zero points of qzeros / scales are no whole number from 0 to 15",
            "qzeros",
            count=bad,
            advice="qzeros or scales are damaged, or were rounded again; quantize the layer again",
        )
