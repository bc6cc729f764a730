"""Integers stored one a byte in two's complement: compressed-tensors int-quantized (8 bits, or 4 in a byte) and plain int8 files.

In: one module's tensors.  Out: a StandardLayer with offset binary codes q + 2^(b-1), or findings.
Facts: formats.md 4.4, 9.1.
"""

from __future__ import annotations

from humming_convert.findings import Rule
from humming_convert.formats.assemble import FLOATS, Draft, flat, unverified
from humming_convert.formats.compressed_tensors import zero_points
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, apply
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number

RULES = (Rule(400, "int8-method", "int8 weights are those of compressed-tensors or of a folder without a config"),)


def read(source: Source, module: Module) -> list[StandardLayer]:
    """[N, K] int8 with scales for the matrix, a row or a group."""
    d = Draft(source, module, "int8")
    if source.method not in ("compressed-tensors", ""):
        d.error(
            "int8-method",
            f"int8 weights under quant_method {source.method!r} are not read",
            "weight",
            advice="export as compressed-tensors int-quantized",
        )
        return []
    weight, scale = d.need("weight", "I8"), d.need("weight_scale", *FLOATS)
    if weight is None or scale is None:
        return []
    if len(weight.shape) not in (2, 3):
        d.bad_shape("weight", "[N, K]")
        return []
    experts = weight.shape[0] if len(weight.shape) == 3 else None
    n, k = weight.shape[-2:]
    lead = () if experts is None else (experts,)
    bits = d.config.bits or 8
    if not 1 <= bits <= 8:
        d.error("code-range", f"num_bits {bits} of {d.config.place} does not fit a byte", "weight", advice="correct the config")
        return []
    if bits < 8:
        d.check("int-range", weight, params=(bits,))
    d.take("weight_shape")
    dtype = FLOATS[scale.dtype]
    zeros: Expr | None = None
    d.lone_scale("weight_scale", scale, n, experts)
    if flat(scale) == (experts or 1) and (n > 1 or scale.shape in ((), (1,))) and "weight_zero_point" not in module.tensors:
        form, d.tensors["weight_scale"] = ScaleForm(kind="tensor", dtype="float32"), d.scale_of_matrix(scale, experts)
    else:
        expr = d.scale_floats(scale)
        if flat(scale) == (experts or 1):
            expr = apply("reshape", expr, params=((*lead, 1, 1),), shape=(*lead, 1, 1))
            expr = apply("repeat", expr, params=(n, len(lead), n), shape=(*lead, n, 1))
        elif scale.shape == (*lead, n):
            expr = apply("reshape", expr, params=((*lead, n, 1),), shape=(*lead, n, 1))
        if expr.shape[:-1] != (*lead, n):
            d.bad_shape("weight_scale", str([*lead, n, max(1, -(-k // (d.config.group or k)))]))
            return []
        got = d.resolve_group("weight_scale", k, expr.shape[-1], d.config.group)
        if got is None:
            return []
        zeros = zero_points(d, n, expr.shape[-1], bits, experts, scale)
        form, d.tensors["weight_scale"], zeros = d.grouped(expr, dtype, k, *got, zeros)
    if zeros is not None:
        d.tensors["zero_point"] = zeros
    if experts is not None:
        unverified(source, "stacked int8 experts")
        if form.kind == "tensor":
            d.oriented(n, k)
    d.scalar("input_scale", "input_scale", experts)
    d.take("input_zero_point")
    d.bias(n, experts)
    d.leftovers()
    return d.layer(
        weight=weight,
        packing="signed_rows",
        number=number(f"uint{bits}"),
        n=n,
        k=k,
        experts=experts,
        scale=form,
        zero_point=zeros is not None,
    )
