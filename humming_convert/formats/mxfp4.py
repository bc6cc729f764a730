"""MXFP4: E2M1 codes two a byte, low nibble first, one E8M0 byte for 32 of them; gpt-oss, DeepSeek V4, MiMo, ModelOpt.

In: one module's tensors.  Out: StandardLayers (gpt-oss: two, stacked by expert, gate and up rows interleaved), or findings.
Facts: formats.md 5, 9.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.assemble import Draft, flat, unverified
from humming_convert.formats.excluded import warn_excluded
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, apply
from humming_convert.standard.forms import ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number

RULES = (
    Rule(502, "quark-variant", "a quark config says plain MXFP4: fp4, groups of 32, E8M0 scales"),
    Rule(503, "input-scale-unasked", "no static input scale stands where the config asks for 16-bit activations", "warning"),
    Rule(501, "mxfp4-scale-columns", "an E2M1 weight has E8M0 scales for 32 columns or E4M3 scales for 16"),
)

STORED: dict[str, tuple[str, ...]] = {"float8e8m0": ("U8", "F8_E8M0"), "float8e4m3": ("F8_E4M3", "U8")}
E2M1 = number("float4e2m1")


def float4(
    d: Draft,
    weight_suffix: str,
    scale_suffix: str,
    group: int,
    scale_dtype: str,
    *,
    factor: tuple[str, bool] | None = None,
    inputs: tuple[str, bool] | None = None,
    role: str = "input_scale_2",
) -> list[StandardLayer]:
    """An E2M1 layer [N, K/2] bytes with scales [N, K/group]. factor, inputs: suffix of the global scale, True for a divisor."""
    weight = d.need(weight_suffix, "U8", "I8")
    scale = d.need(scale_suffix, *STORED[scale_dtype])
    if weight is None or scale is None:
        return []
    if len(weight.shape) not in (2, 3):
        d.bad_shape(weight_suffix, "[N, K/2]")
        return []
    experts = weight.shape[0] if len(weight.shape) == 3 else None
    n, k = weight.shape[-2], weight.shape[-1] * 2
    expr = _scales(d, weight, scale, weight_suffix, scale_suffix, group, scale_dtype)
    if expr is None:
        return []
    d.tensors["weight_scale"] = expr
    if factor is not None:
        d.scalar(factor[0], "weight_scale_2", experts, inverse=factor[1], needed=True, why="the scales are relative to it")
        if "weight_scale_2" in d.tensors:
            d.check("fp4-plausible", d.module.tensors[factor[0]], (int(factor[1]),), scale)
    if inputs is not None and inputs[0] in d.module.tensors:
        d.scalar(inputs[0], role, experts, inverse=inputs[1])
        if d.config.known and d.config.declared is None and role in d.tensors:  # formats.md 12 row 36
            del d.tensors[role]
            d.source.findings.warning(
                "input-scale-unasked",
                f"{d.config.place} asks for weights only, yet {inputs[0]} tensors are there; they are dropped",
                file="config.json",
                advice="correct the config, or give an activation with --act",
            )
    d.bias(n, experts)
    d.leftovers()
    return d.layer(
        weight=weight, packing="rows", number=E2M1, n=n, k=k, experts=experts, scale=ScaleForm(kind="group", dtype=scale_dtype, k=group)
    )


def _scales(d: Draft, weight: TensorView, scale: TensorView, weight_suffix: str, scale_suffix: str, group: int, dtype: str) -> Expr | None:
    """The scales in the shape [.., N, K/group]; flat ones (ModelOpt's quantizer) by their count."""
    *lead, n, half = weight.shape
    k, want = half * 2, (*lead, n, half * 2 // group)
    if k % group:
        d.bad_shape(weight_suffix, f"[.., a multiple of {group // 2}]", f"K = {k} is not a multiple of {group}")
        return None
    if scale.shape == (*lead, n, k // 16) and group == 32 and k % 16 == 0:
        d.error(
            "mxfp4-scale-columns",
            f"{scale_suffix} has one byte for 16 columns, which is NVFP4, but it is {scale.dtype} and no second scale is there",
            scale_suffix,
            advice="re-export the layer",
        )
        return None
    if scale.shape != want and not (flat(scale) == n * (k // group) and scale.shape[-1:] == (1,) and not lead):
        d.bad_shape(scale_suffix, str(list(want)), f"one scale for {group} of K = {k} columns")
        return None
    out = d.scale_bytes(scale, dtype, weight)
    return out if out.shape == want else apply("reshape", out, params=(want,), shape=want)


def read(source: Source, module: Module) -> list[StandardLayer]:
    """DeepSeek V4 experts (`scale`), MiMo and ModelOpt (`weight_scale`) (formats.md 5.2 to 5.5)."""
    d = Draft(source, module, "mxfp4")
    suffix = "weight_scale" if "weight_scale" in module.tensors else "scale"
    return float4(d, "weight", suffix, 32, "float8e8m0", inputs=("input_scale", False), role="input_scale")


# ------------------------------------------------------------------ gpt-oss
def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """`quant_method: mxfp4` describes nothing that the tensors do not say; modules_to_not_convert is informative (formats.md 5.1)."""


QUARK = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}


def prepare_quark(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """Quark, the one case that is read: plain MXFP4 in every place of its config (formats.md 5.5)."""
    places = {"global_quant_config": source.config.get("global_quant_config")}
    for key in ("layer_quant_config", "layer_type_quant_config"):
        found = source.config.get(key)
        places.update({f"{key}.{k}": v for k, v in found.items()} if isinstance(found, Mapping) else {})
    for place, body in places.items():
        weight = body.get("weight") if isinstance(body, Mapping) else None
        if weight is None and place != "global_quant_config":
            continue
        wrong = (
            [f"{k} {weight.get(k)!r}" for k, v in QUARK.items() if weight.get(k) != v]
            if isinstance(weight, Mapping)
            else ["no weight config"]
        )
        if wrong:
            source.findings.error(
                "quark-variant",
                f"{place} of the quark config is not plain MXFP4 ({', '.join(wrong)})",
                file="config.json",
                advice="export as MXFP4, or as compressed-tensors",
            )
    unverified(source, "quark")
    warn_excluded(source, modules, [source.config.get("exclude")])


def read_gpt_oss(source: Source, module: Module) -> list[StandardLayer]:
    """`<experts>.{gate_up_proj,down_proj}_{blocks,scales,bias}`: one stacked layer each; gate and up rows stay interleaved (D12)."""
    out: list[StandardLayer] = []
    projections = [s[: -len("_blocks")] for s in module.tensors if s.endswith("_blocks")]
    known = {f"{p}{s}" for p in projections for s in ("_blocks", "_scales", "_bias")}
    rest = {s: v for s, v in module.tensors.items() if s not in known}
    for p in projections:
        own = {s: v for s, v in module.tensors.items() if s.startswith(p + "_") and s in known}
        d = Draft(source, Module(name=module.name, tensors=own), "mxfp4")
        out += _gpt_oss_projection(d, p)
    if rest:
        left = Draft(source, Module(name=module.name, tensors=rest), "mxfp4")
        left.leftovers()
    return out


def _gpt_oss_projection(d: Draft, p: str) -> list[StandardLayer]:
    blocks, scales = d.need(f"{p}_blocks", "U8", "I8"), d.need(f"{p}_scales", "U8", "F8_E8M0")
    if blocks is None or scales is None:
        return []
    if len(blocks.shape) != 4 or blocks.shape[-1] != 16:
        d.bad_shape(f"{p}_blocks", "[E, N, K/32, 16]")
        return []
    experts, n, groups, _ = blocks.shape
    if scales.shape != (experts, n, groups):
        d.bad_shape(f"{p}_scales", str([experts, n, groups]))
    d.bias(n, experts, f"{p}_bias")
    d.leftovers()
    if not d.ok:
        return []
    d.tensors["weight_scale"] = d.scale_bytes(scales, "float8e8m0", blocks)
    return d.layer(
        weight=blocks,
        packing="rows",
        number=E2M1,
        n=n,
        k=groups * 32,
        experts=experts,
        scale=ScaleForm(kind="group", dtype="float8e8m0", k=32),
        name=f"{d.module.name}.{p}",
        interleaved=p == "gate_up_proj",
    )
