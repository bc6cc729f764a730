"""Marlin tiles: 4-bit symmetric codes in the order of one GPU kernel, under the names `qweight` and `scales` or `B` and `s`.

In: one module's tensors.  Out: a StandardLayer with the codes back in order, and a warning that the format is deprecated (D7).
Facts: formats.md 2.9. Checked against autoawq 0.2.9 and auto-gptq 0.7.1 files.
"""

from __future__ import annotations

from humming_convert.findings import Rule
from humming_convert.formats.assemble import FLOATS, Draft
from humming_convert.formats.biases import take_bias
from humming_convert.formats.columns import groups_of
from humming_convert.formats.declared import Declared, read_config
from humming_convert.formats.gptq import scale_expr, scale_form
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import apply
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number

RULES = (
    Rule(230, "marlin-deprecated", "files are not packed for the Marlin kernel (they are read)", "warning"),
    Rule(231, "marlin-form", "Marlin tiles hold symmetric 4-bit codes, N a multiple of 64 and K of 16"),
)


def read(source: Source, module: Module) -> list[StandardLayer]:
    """qweight or B int32 [K/16, 2N], scales or s [groups, N]; `workspace` is dropped."""
    mine = _declared(source).of(module.name)
    d = Draft(source, module, "awq" if source.method == "awq" else "gptq")
    words, factors = ("B", "s") if "B" in module.tensors else ("qweight", "scales")
    qweight, scales = d.need(words, "I32"), d.need(factors, *FLOATS, "F64")
    d.take("workspace")
    if not d.ok or qweight is None or scales is None:
        return []
    for suffix, view in ((words, qweight), (factors, scales)):
        if len(view.shape) != 2 or 0 in view.shape:
            d.bad_shape(suffix, "two dimensions, none of them 0")
            return []
    (tiles, columns), (count, n) = qweight.shape, scales.shape
    k = tiles * 16
    if columns != 2 * n:
        d.bad_shape(words, f"[K / 16, {2 * n}]", f"{factors} are {list(scales.shape)}")
        return []
    if mine.sym is False or mine.bits not in (None, 4) or n % 64:
        d.error(
            "marlin-form",
            f"N {n}, bits {mine.bits or 4}, {'asymmetric' if mine.sym is False else 'symmetric'} in {mine.file}: Marlin tiles are symmetric, "
            "4 bits wide, with N a multiple of 64",
            words,
            advice="convert the original GPTQ or AWQ checkpoint",
        )
        return []
    groups = groups_of(source, module, factors, k, count, mine.group)
    if groups is None:
        return []
    source.findings.warning(
        "marlin-deprecated",
        "Marlin tiles are a deprecated format; they are read, newer tools refuse them",
        file=qweight.file.name,
        advice="keep the checkpoint it was made from",
    )
    take_bias(d, n)
    d.leftovers()
    plain, dtype = scale_expr(d.scale_floats(scales))
    rows = apply("scales_marlin", plain, params=(count == 1,), shape=plain.shape)
    d.tensors["weight_scale"] = groups.spread(apply("transpose", rows, shape=rows.shape[::-1]))
    return d.layer(
        weight=qweight, packing="marlin", number=number("uint4"), n=n, k=k, experts=None, scale=scale_form(groups, dtype), zero_point=False
    )


def _declared(source: Source) -> Declared:
    for key in ("awq", "gptq"):
        found = source.shared.get(key)
        if found is not None:
            declared = found if isinstance(found, Declared) else found.declared
            assert isinstance(declared, Declared)
            return declared
    return Declared(file="config.json") if source.method not in ("awq", "gptq") else read_config(source)
