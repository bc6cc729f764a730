"""FP8 weights with scales for a matrix, a row, a group or a block: DeepSeek, Mistral, fbgemm, ModelOpt FP8, compressed-tensors float.

In: one module's tensors, what the config says of it.  Out: a StandardLayer (block scales float32, or rows where blocks do not fit), or findings.
Facts: formats.md 4.4, 5.3, 7, 9.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.assemble import FLOATS, Described, Draft, flat, unverified
from humming_convert.formats.blocks import DEFAULT_BLOCK, SCALES, Block, fp8_modules, grid_shape, guessed, settle
from humming_convert.formats.excluded import config_invalid, some, warn_excluded, whole
from humming_convert.formats.mimo import chunk_order
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, apply
from humming_convert.standard.forms import InputForm, ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number

RULES = (
    Rule(660, "fp8-fnuz", "FP8 weights are e4m3fn or e5m2, not the fnuz kinds"),
    Rule(661, "fp8-scheme-unknown", "activation_scheme is dynamic or static"),
    Rule(665, "fp8-fmt-lies", "the FP8 weights are of the kind that fmt names", "warning"),
    Rule(662, "fp8-block-unknown", "block scales have the grid of weight_block_size"),
)

INPUTS = ("input_scale", "activation_scale")
NUMBERS = {"F8_E4M3": "float8e4m3", "F8_E5M2": "float8e5m2"}
WEIGHT_CHECKS = {"F8_E4M3": "e4m3-weight", "F8_E5M2": "e5m2-weight"}
E4M3 = number("float8e4m3")


# ------------------------------------------------------------------ config
def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """`fp8` and `fbgemm_fp8`: block size, activation scheme, lists of what is not quantized."""
    config = source.config
    for key in ("fmt", "quant_type", "dtype"):
        if "fnuz" in str(config.get(key, "")).lower():
            source.findings.error(
                "fp8-fnuz",
                f"{key} is {config[key]}: byte 0x80 is NaN there and exponents are one off",
                file="config.json",
                advice="convert the weights to float8_e4m3fn first",
            )
    if source.method == "fbgemm_fp8":
        unverified(source, "fbgemm_fp8")
    _fmt(source, fp8_modules(modules))
    scheme = str(config.get("activation_scheme") or "dynamic")
    if scheme not in ("dynamic", "static"):
        source.findings.error(
            "fp8-scheme-unknown",
            f"activation_scheme {scheme!r} is neither dynamic nor static",
            file="config.json",
            advice="correct the config",
        )
    block = settle(source, "config.json", "weight_block_size", block_size(source), fp8_modules(modules))
    declared = input_form(block, scheme)

    def describe(name: str) -> Described:
        return Described(block=block, static=scheme == "static", declared=declared)

    source.shared["describe"] = describe
    warn_excluded(source, modules, [config.get(key) for key in ("modules_to_not_convert", "ignored_layers", "ignore")])


FMTS = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}


def _fmt(source: Source, modules: list[Module]) -> None:
    """fp8-fmt-lies: the dtype of the tensors is followed."""
    said = str(source.config.get("fmt") or "").lower()
    want = next((dtype for fmt, dtype in FMTS.items() if fmt in said), None)
    wrong = [
        m.name
        for m in modules
        if want is not None and any(v.dtype in NUMBERS and v.dtype != want for v in m.tensors.values() if len(v.shape) > 1)
    ]
    if wrong:
        source.findings.warning(
            "fp8-fmt-lies",
            f"fmt is {source.config['fmt']} in the config, weights of another FP8 kind are there of {some(wrong)}; the tensors are followed",
            file="config.json",
            advice="correct fmt in the config",
            count=len(wrong),
        )


def block_size(source: Source) -> Block | None:
    """weight_block_size: rows, columns; None if it is not given. config-invalid if it is no pair of sizes."""
    said = source.config.get("weight_block_size")
    if said is None:
        return None
    sizes = [whole(x) for x in said] if isinstance(said, (list, tuple)) else []
    if len(sizes) == 2 and all(x is not None and x > 0 for x in sizes):
        return sizes[0] or 0, sizes[1] or 0
    config_invalid(source, "weight_block_size", said, "[rows, columns]")
    return None


def input_form(block: Block | None, scheme: str) -> InputForm:
    """The activation of an FP8 checkpoint: groups as wide as the blocks, else by token, else the stored scale."""
    if block is not None:
        return InputForm(number=E4M3, mode="dynamic_group", group=block[1], scale_dtype="float32")
    return InputForm(number=E4M3, mode="static_tensor" if scheme == "static" else "dynamic_token", scale_dtype="float32")


# ------------------------------------------------------------------ a module
def read(source: Source, module: Module) -> list[StandardLayer]:
    """One FP8 matrix, or experts stacked as [E, N, K]."""
    d = Draft(source, module, "fp8")
    weight = d.need("weight", *NUMBERS)
    suffix = next(
        (s for s in SCALES if s in module.tensors), "weight_scale_inv" if d.config.block and source.method == "fp8" else "weight_scale"
    )
    scale = d.need(suffix, *FLOATS, "F8_E8M0", "U8")
    if weight is None or scale is None:
        return []
    if len(weight.shape) not in (2, 3):
        d.bad_shape("weight", "[N, K]")
        return []
    experts = weight.shape[0] if len(weight.shape) == 3 else None
    n, k = weight.shape[-2:]
    d.check(WEIGHT_CHECKS[weight.dtype], weight)
    if scale.dtype in FLOATS:
        d.check("fp8-plausible", scale)
    for other in SCALES:
        if other != suffix and other in module.tensors:
            d.error("tensor-unknown", f"{other} stands beside {suffix}; one of them is wrong", other, advice="re-export the layer")
            d.take(other)
    order, chunks = chunk_order(source, module, n, scale, d)
    got = _scale(d, suffix, scale, n, k, experts) if chunks is None else chunks(_factor(d, scale), n, k)
    for name in INPUTS:
        d.scalar(name, "input_scale", experts)
    d.take("activation_scale_ub")
    d.take("input_zero_point")
    d.bias(n, experts)
    d.leftovers()
    if got is None:
        return []
    form, d.tensors["weight_scale"] = got
    if experts is not None:
        unverified(source, "stacked FP8 experts")
        if form.kind != "channel" and flat(scale) != experts * n * (k // (form.k or k)):
            d.oriented(n, k)
    return d.layer(
        weight=weight, packing="rows", number=number(NUMBERS[weight.dtype]), n=n, k=k, experts=experts, scale=form, row_order=order
    )


def _factor(d: Draft, scale: TensorView) -> Expr:
    """Block scales as float32: E8M0 bytes are 2^(byte - 127), exact (formats.md 5.2)."""
    if scale.dtype in ("U8", "F8_E8M0"):
        expr: Expr = d.scale_bytes(scale, "float8e8m0")
    else:
        expr = d.scale_floats(scale)
        if scale.dtype == "F32":
            d.check("e8m0-as-number", scale)
    return expr if expr.dtype == "F32" else apply("float32", expr, dtype="F32", shape=expr.shape)


def _scale(d: Draft, suffix: str, scale: TensorView, n: int, k: int, experts: int | None) -> tuple[ScaleForm, Expr] | None:
    """Which of the kinds the shape is; the block first, then matrix, row, 128 x 128 blocks, groups."""
    lead = () if experts is None else (experts,)
    count = experts or 1
    shape = grid_shape(scale)
    block = d.config.block
    want = block or (DEFAULT_BLOCK if suffix == "weight_scale_inv" else None)
    if want and shape == (*lead, -(-n // want[0]), -(-k // want[1])):
        return _blocks(d, scale, shape, n, k, want)
    if block is not None and (flat(scale) != count or len(shape) == len(lead) + 2):
        grid = [*lead, -(-n // block[0]), -(-k // block[1])]
        if shape[: len(lead)] == lead and shape[len(lead) :] == (n // block[0], k // block[1]):
            d.bad_shape(suffix, str(grid), "the grid was rounded down, scales of the last rows or columns are missing")
        else:
            why = f"blocks of {block[0]} x {block[1]}, as {d.config.place} says, and no other size is proved by all of its modules"
            d.bad_shape(suffix, str(grid), why, "re-export the layer, or correct the block size in the config")
        return None
    if scale.dtype in ("U8", "F8_E8M0"):
        d.error(
            "tensor-dtype",
            f"{suffix} is {scale.dtype} of shape {list(shape)}, want float scales, or a grid of blocks",
            suffix,
            advice="re-export the layer",
        )
        return None
    if flat(scale) == count:
        d.lone_scale(suffix, scale, n, experts)
        return ScaleForm(kind="tensor", dtype="float32"), d.scale_of_matrix(scale, experts)
    dtype = FLOATS[scale.dtype]
    if shape in ((*lead, n, 1), (*lead, n)):
        return ScaleForm(kind="channel", dtype=dtype), _shaped(d.scale_floats(scale), (*lead, n, 1))
    if shape == (*lead, -(-n // DEFAULT_BLOCK[0]), -(-k // DEFAULT_BLOCK[1])):
        return _blocks(d, scale, shape, n, k, DEFAULT_BLOCK)
    if shape[:-1] == (*lead, n):
        got = d.resolve_group(suffix, k, shape[-1], d.config.group)
        if got is None:
            return None
        form, expr, _ = d.grouped(d.scale_floats(scale), dtype, k, *got)
        return form, expr
    if lead and shape == (*lead, 1, k):
        d.error(
            "tensor-shape",
            f"{suffix} has one scale for each of the last {k} columns: the experts are stored as [E, K, N], which is not read",
            suffix,
            advice="export the experts one by one",
        )
        return None
    d.error(
        "fp8-block-unknown",
        f"{suffix} has the shape {list(shape)}, which no block size of the config explains for N = {n}, K = {k}",
        suffix,
        advice="give weight_block_size in the config",
    )
    return None


def _blocks(d: Draft, scale: TensorView, shape: tuple[int, ...], n: int, k: int, block: Block) -> tuple[ScaleForm, Expr] | None:
    """A grid of block scales. A size that the config does not say is told, unless one block holds the matrix whatever it is."""
    if d.config.block is None and shape[-2:] != (1, 1):
        guessed(d.source, d.module.name)
    return d.blocked(_shaped(_factor(d, scale), shape), n, k, block)


def _shaped(expr: Expr, shape: tuple[int, ...]) -> Expr:
    return expr if expr.shape == shape else apply("reshape", expr, params=(shape,), shape=shape)


def stacked(source: Source, module: Module, names: tuple[str, ...]) -> list[StandardLayer]:
    """`<experts>.<name>` FP8 [E, N, K] beside `<name>_scale_inv` or `<name>_scale`: each as if it were a module of its own."""
    out: list[StandardLayer] = []
    left: dict[str, Any] = dict(module.tensors)
    for name in names:
        own = {"weight": left.pop(name)}
        for tail, role in (
            ("_scale_inv", "weight_scale_inv"),
            ("_scale", "weight_scale"),
            ("_input_scale", "input_scale"),
            ("_bias", "bias"),
        ):
            if name + tail in left:
                own[role] = left.pop(name + tail)
        out += read(source, Module(name=f"{module.name}.{name}", tensors=own))
    if left:
        Draft(source, Module(name=module.name, tensors=left), "fp8").leftovers()
    return out


def read_stacked(source: Source, module: Module) -> list[StandardLayer]:
    """3-D FP8 experts without a module of their own (Qwen3.5-MoE and others, formats.md 10.2)."""
    return stacked(source, module, tuple(s for s, v in module.tensors.items() if v.dtype in NUMBERS))
