"""MXFP8: FP8 codes with one E8M0 byte for 32 columns; ModelOpt, MiniMax, compressed-tensors.

In: one module's tensors.  Out: a StandardLayer, or findings.
Facts: formats.md 4.6, 6.1, 7.
"""

from __future__ import annotations

from collections.abc import Mapping

from humming_convert.formats.assemble import Described, Draft, flat, unverified
from humming_convert.formats.excluded import warn_excluded
from humming_convert.formats.fp8 import NUMBERS, WEIGHT_CHECKS
from humming_convert.formats.fp8 import read as read_fp8
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, apply
from humming_convert.standard.forms import InputForm, ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number

GROUP = 32
DECLARED = InputForm(number=number("float8e4m3"), mode="dynamic_group", group=GROUP, scale_dtype="float8e8m0")


def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """`quant_method: mxfp8`: weights and activations in groups of 32."""
    unverified(source, "quant_method mxfp8")
    source.shared["describe"] = lambda name: Described(declared=DECLARED)
    warn_excluded(source, modules, [source.config.get(key) for key in ("ignored_layers", "modules_to_not_convert", "ignore")])


def read(source: Source, module: Module) -> list[StandardLayer]:
    """[N, K] bytes with scales [N, K/32]; rows of scales may be shared by blocks of rows, or the grid be that of block FP8."""
    d = Draft(source, module, "mxfp8")
    weight, scale = d.need("weight", *NUMBERS), d.need("weight_scale", "U8", "F8_E8M0")
    if weight is None or scale is None:
        return []
    if len(weight.shape) not in (2, 3):
        d.bad_shape("weight", "[N, K]")
        return []
    experts = weight.shape[0] if len(weight.shape) == 3 else None
    n, k = weight.shape[-2:]
    lead = () if experts is None else (experts,)
    want = (*lead, n, k // GROUP)
    if d.config.block is not None and scale.shape == (*lead, -(-n // d.config.block[0]), -(-k // d.config.block[1])):
        return read_fp8(source, module)  # the granularity decides, not the dtype of the scale (formats.md 5.2)
    # only this writer shares rows of scales (formats.md 7); elsewhere fewer rows are rows that were lost
    rows = scale.shape[-2] if len(scale.shape) == len(want) and (source.method == "mxfp8" or scale.shape[-2] == n) else 0
    shared = -(-n // rows) if rows else 0
    if k % GROUP:
        d.bad_shape("weight", "[N, K]", f"K = {k} is not a multiple of {GROUP}")
        return []
    if flat(scale) == flat(weight) // GROUP and scale.shape[-1:] == (1,):
        shape, shared = want, 1
    elif len(scale.shape) == len(want) and scale.shape[:-2] == lead and scale.shape[-1] == k // GROUP and rows and -(-n // shared) == rows:
        shape = scale.shape
    else:
        d.bad_shape("weight_scale", str(list(want)), f"one scale for {GROUP} of K = {k} columns")
        return []
    d.check(WEIGHT_CHECKS[weight.dtype], weight)
    expr: Expr = d.scale_bytes(scale, "float8e8m0", weight if shared == 1 else None, bits=8)
    if expr.shape != shape:
        expr = apply("reshape", expr, params=(shape,), shape=shape)
    if shared > 1:
        expr = apply("repeat", expr, params=(shared, len(lead), n), shape=want)
    d.tensors["weight_scale"] = expr
    d.scalar("input_scale", "input_scale", experts)
    d.bias(n, experts)
    d.leftovers()
    form = ScaleForm(kind="group", dtype="float8e8m0", k=GROUP)
    return d.layer(weight=weight, packing="rows", number=number(NUMBERS[weight.dtype]), n=n, k=k, experts=experts, scale=form)
