"""Humming standard checkpoints: `quant_method: humming`, its aliases, `dynamic` overrides and ignore lists.

In: one module's tensors and its fields of the config.  Out: a StandardLayer of the same tensors, or findings.
Facts: formats.md 0, 8; layouts.md 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.assemble import FLOATS, Described, Draft, flat
from humming_convert.formats.excluded import config_invalid, listed, warn_ignored, whole
from humming_convert.formats.expressions import BadExpression, compiled
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, Stored, apply
from humming_convert.standard.forms import InputForm, ScaleForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import STORED_AS, NumberType, number

RULES = (
    Rule(650, "humming-dtype", "number types and modes of a Humming config are ones that Humming has"),
    Rule(651, "humming-scale-2", "weight_scale_2_type stands beside group scales, or tensor beside channel scales"),
    Rule(652, "humming-block", "block scales divide the matrix"),
    Rule(653, "humming-hadamard", "hadamard_block_size is 0"),
    Rule(654, "humming-regex", "the patterns of `dynamic` and `ignore` are regular expressions"),
    Rule(655, "humming-zero-point", "zero points stand beside unsigned integers with group or channel scales"),
    Rule(656, "humming-alias", "aliases that the weight and the input schema share are not used", "warning"),
)

# field -> aliases in the order of their precedence (formats.md 8.1)
WEIGHT_FIELDS: dict[str, tuple[str, ...]] = {
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
INPUT_FIELDS: dict[str, tuple[str, ...]] = {
    "a_dtype": ("input_dtype", "dtype"),
    "input_scale_group_size": ("group_size",),
    "input_scale_dtype": ("scale_dtype",),
    "input_quant_mode": ("quant_mode", "quantization_mode"),
}
SHARED = ("dtype", "group_size", "scale_dtype")  # read by both: a weight's type becomes an activation's (D14)
MODES = ("none", "static_tensor", "dynamic_token", "dynamic_group", "static_tensor_dynamic_group", "dynamic_group_token")
SCALE_KINDS = ("group", "block", "channel", "tensor")


def fields(config: Mapping[str, Any], table: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Canonical name -> value; a canonical name wins over its aliases, an earlier alias over a later one."""
    out = {}
    for name, aliases in table.items():
        said = next((config[key] for key in (name, *aliases) if config.get(key) is not None), None)
        if said is not None:
            out[name] = said
    return out


# ------------------------------------------------------------------ config
def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """Patterns, ignore lists against tensors, shared aliases; leaves `describe` and `settings`."""
    findings, config = source.findings, source.config
    used = [a for a in SHARED if a in config]
    if used:
        findings.warning(
            "humming-alias",
            f"the keys {', '.join(used)} are read by the weight and by the input schema; here they are the weight's",
            file="config.json",
            advice="write b_dtype, weight_scale_group_size, bs_dtype",
        )
    dynamic = config.get("dynamic")
    patterns = dict(dynamic) if isinstance(dynamic, Mapping) else {}
    for at, value in [("dynamic", dynamic), *((f"dynamic {p!r}", v) for p, v in patterns.items() if p[:1] == "+")]:
        if value is not None and not isinstance(value, Mapping):
            config_invalid(source, at, value, "a table")
    ignored = listed(source, "ignore", "ignored_layers", "modules_to_not_convert")
    bad: set[str] = set()
    for text in [*(p[2:] for p in patterns if p[:1] in "+-"), *(str(e)[3:] for e in ignored if str(e).startswith("re:"))]:
        try:
            compiled(text)
        except BadExpression as e:
            findings.error("humming-regex", f"{text!r} {e}", file="config.json", advice="correct the config")
            bad.add(text)
            patterns = {p: v for p, v in patterns.items() if p[2:] != text}
    ignored = [e for e in ignored if str(e)[3:] not in bad or not str(e).startswith("re:")]
    skips = [p[2:] for p in patterns if p.startswith("-")]

    def settings(name: str) -> Mapping[str, Any]:
        """The config as it stands for one module: the first `+` pattern that matches its name or the name of its fused layer."""
        names = (name, *fused_names(name))
        override: Any = next((v for p, v in patterns.items() if p.startswith("+") and any(re.match(p[2:], n) for n in names)), {})
        return {**config, **override} if isinstance(override, Mapping) else config

    names = [m.name for found in modules.values() for m in found]
    for what, test in [(f"-:{s}", lambda n, s=s: re.match(s, n)) for s in skips] + [
        (str(e), lambda n, e=str(e): ignores(e, n)) for e in ignored
    ]:
        warn_ignored(source, what, [n for n in names if test(n)])
    source.shared["settings"] = settings
    source.shared["describe"] = lambda name: Described(declared=_input(source, settings(name)))
    _sound(source, config)
    for override in patterns.values():
        if isinstance(override, Mapping):
            _sound(source, {**config, **override})


def ignores(entry: str, name: str) -> bool:
    """`re:` at the start of the name, else a substring anywhere (formats.md 8.1)."""
    if not entry.startswith("re:"):
        return entry in name
    try:
        return compiled(entry[3:]).match(name) is not None
    except BadExpression:
        return False


FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}


def fused_names(name: str) -> tuple[str, ...]:
    """Names that patterns of a served checkpoint match: of the fused layer, of the experts as one (runtimes.md 1.2)."""
    experts = re.match(r"(.*\.experts)\.\d+\.", name)
    head, _, leaf = name.rpartition(".")
    return (experts[1],) if experts else (f"{head}.{FUSED[leaf]}",) if leaf in FUSED else ()


def _number(source: Source, key: str, said: Any) -> NumberType | None:
    try:
        return number(str(said))
    except ValueError:
        source.findings.error(
            "humming-dtype", f"{key} {said!r} is no number type of Humming", file="config.json", advice="correct the config"
        )
        return None


def _sound(source: Source, config: Mapping[str, Any]) -> None:
    """What is wrong with a set of fields whatever the tensors are."""
    f = fields(config, WEIGHT_FIELDS)
    findings = source.findings
    for key, said in {**f, **fields(config, INPUT_FIELDS)}.items():
        if key in SIZES and ((size := whole(said)) is None or size < -1):
            config_invalid(source, key, said, "a size")
    if f.get("b_dtype") is None:
        findings.error("humming-dtype", "b_dtype is missing", file="config.json", advice="correct the config")
    else:
        b = _number(source, "b_dtype", f["b_dtype"])
        if b is not None and (b.bits > 8 or (b.kind == "float" and not b.signed)):
            findings.error("humming-dtype", f"b_dtype {b} is no type of quantized weights", file="config.json", advice="correct the config")
    if f.get("bs_dtype") is not None and str(f["bs_dtype"]) not in STORED_AS:
        findings.error(
            "humming-dtype", f"bs_dtype {f['bs_dtype']!r} is no scale type of Humming", file="config.json", advice="correct the config"
        )
    if f.get("hadamard_block_size") not in (None, 0):
        findings.error(
            "humming-hadamard",
            f"hadamard_block_size is {f['hadamard_block_size']}: the weights are rotated",
            file="config.json",
            advice="convert a model without it",
        )
    kind, second = scale_kind(f), str(f.get("weight_scale_2_type") or "none")
    if kind not in SCALE_KINDS:
        findings.error(
            "humming-dtype",
            f"weight_scale_type {kind!r} is none of {', '.join(SCALE_KINDS)}",
            file="config.json",
            advice="correct the config",
        )
    if second not in ("none", "channel", "tensor"):
        findings.error(
            "humming-scale-2",
            f"weight_scale_2_type {second!r} is none of none, channel, tensor",
            file="config.json",
            advice="correct the config",
        )
    elif second != "none" and kind != "group" and (kind, second) != ("channel", "tensor"):
        findings.error(
            "humming-scale-2",
            f"weight_scale_2_type {second} beside {kind} scales: weight_scale_2 needs group scales",
            file="config.json",
            advice="correct the config",
        )


SIZES = ("weight_scale_group_size", "weight_scale_group_size_n", "input_scale_group_size", "hadamard_block_size")


def _size(f: Mapping[str, Any], key: str) -> int:
    """A size of the config, 0 where it is not given (or is no number, which `_sound` says)."""
    return max(0, whole(f.get(key)) or 0)


def scale_kind(f: Mapping[str, Any]) -> str:
    """weight_scale_type, derived where it is not given."""
    said = f.get("weight_scale_type")
    if said is not None:
        return str(said)
    if _size(f, "weight_scale_group_size_n") > 1:
        return "block"
    return "group" if _size(f, "weight_scale_group_size") else "channel"


def _input(source: Source, config: Mapping[str, Any]) -> InputForm | None:
    """The activation that a config asks for; shared aliases are left to the weight."""
    f = fields({k: v for k, v in config.items() if k not in SHARED}, INPUT_FIELDS)
    if f.get("a_dtype") is None:
        return None
    a = _number(source, "a_dtype", f["a_dtype"])
    if a is None or a.bits >= 16:
        return None
    group = _size(f, "input_scale_group_size")
    mode = str(f.get("input_quant_mode") or ("dynamic_group" if group else "dynamic_token"))
    if mode not in MODES:
        source.findings.error(
            "humming-dtype", f"input_quant_mode {mode!r} is none of {', '.join(MODES)}", file="config.json", advice="correct the config"
        )
        return None
    return InputForm(number=a, mode=mode, group=group, scale_dtype=str(f.get("input_scale_dtype") or "float32"))  # type: ignore[arg-type]


def _settings(source: Source) -> Callable[[str], Mapping[str, Any]]:
    """A module's config. Where the config names another method, its fields and `dynamic` count all the same: the tensors say whose they are."""
    if "settings" not in source.shared:
        describe = source.shared.get("describe")
        prepare(source, {})
        if describe is not None:
            source.shared["describe"] = describe
    settings: Callable[[str], Mapping[str, Any]] = source.shared["settings"]
    return settings


# ------------------------------------------------------------------ a module
def read(source: Source, module: Module) -> list[StandardLayer]:
    """One matrix in the standard form (or one [E, ...] of experts); shapes are checked against the config's fields."""
    d = Draft(source, module, "humming")
    config = _settings(source)(module.name)
    return _layer(d, fields(config, WEIGHT_FIELDS), "weight", "weight_scale", "bias")


def read_stacked(source: Source, module: Module) -> list[StandardLayer]:
    """`experts.gate_up_proj`, `experts.gate_up_proj_scale`, ... : the stacked names of the standard form (formats.md 8.2)."""
    out: list[StandardLayer] = []
    projections = [s for s, v in module.tensors.items() if f"{s}_scale" in module.tensors and v.dtype == "I32"]
    rest = dict(module.tensors)
    settings = _settings(source)
    for p in projections:
        own = {}
        for tail, role in (
            ("", "weight"),
            ("_scale", "weight_scale"),
            ("_zero_point", "zero_point"),
            ("_scale_2", "weight_scale_2"),
            ("_bias", "bias"),
        ):
            if p + tail in rest:
                own[role] = rest.pop(p + tail)
        name = f"{module.name}.{p}"
        d = Draft(source, Module(name=name, tensors=own), "humming")
        config = settings(name)
        interleaved = source.checkpoint.model_type == "gpt_oss" and p == "gate_up_proj"
        out += _layer(d, fields(config, WEIGHT_FIELDS), "weight", "weight_scale", "bias", interleaved)
    if rest:
        Draft(source, Module(name=module.name, tensors=rest), "humming").leftovers()
    return out


def _layer(
    d: Draft, f: Mapping[str, Any], weight_suffix: str, scale_suffix: str, bias_suffix: str, interleaved: bool = False
) -> list[StandardLayer]:
    weight, scale = d.need(weight_suffix, "I32"), d.need(scale_suffix)
    try:
        b = number(str(f.get("b_dtype")))
    except ValueError:
        d.ok = False  # `_sound` has said so
        return []
    if weight is None or scale is None:
        return []
    if b.kind == "int":
        b = number(f"uint{b.bits}")
    if len(weight.shape) not in (2, 3) or weight.shape[-1] * 32 % b.bits:
        d.bad_shape(
            weight_suffix,
            f"[N, K*{b.bits}/32]",
            f"{weight.shape[-1] if weight.shape else 0} words a row hold no whole number of {b.bits}-bit codes",
        )
        return []
    experts = weight.shape[0] if len(weight.shape) == 3 else None
    n, k = weight.shape[-2], weight.shape[-1] * 32 // b.bits
    kind = scale_kind(f)
    if kind not in SCALE_KINDS:
        d.ok = False  # `_sound` has said so
        return []
    form = _scales(d, f, kind, scale, scale_suffix, n, k, experts)
    _second(d, f, n, experts)
    zeros = _zeros(d, f, b, kind, n, k, experts, form)
    for name in ("input_scale", "input_scale_2"):
        d.scalar(name, name, experts)
    d.bias(n, experts, bias_suffix)
    d.leftovers()
    if form is None or not d.ok:
        return []
    if b.name in ("float8e4m3", "float8e5m2"):
        d.check("e4m3-weight" if b.name == "float8e4m3" else "e5m2-weight", weight)
    layers = d.layer(
        weight=weight, packing="rows", number=b, n=n, k=k, experts=experts, scale=form, zero_point=zeros == "int", interleaved=interleaved
    )
    second: Any = "none" if "weight_scale_2" not in d.tensors else str(f.get("weight_scale_2_type"))
    return [_with(x, second, zeros) for x in layers]


def _with(layer: StandardLayer, second: Any, zeros: Any) -> StandardLayer:
    return replace(layer, form=replace(layer.form, scale_2=second, zero_point=zeros))


def _scales(
    d: Draft, f: Mapping[str, Any], kind: str, scale: TensorView, suffix: str, n: int, k: int, experts: int | None
) -> ScaleForm | None:
    lead = () if experts is None else (experts,)
    group, rows = _size(f, "weight_scale_group_size"), _size(f, "weight_scale_group_size_n")
    said = str(f["bs_dtype"]) if f.get("bs_dtype") is not None else None
    if kind in ("tensor", "block"):
        said = "float32"
    if kind == "block" and (rows < 1 or group < 1 or n % rows or k % group):
        d.error(
            "humming-block",
            f"{suffix}: blocks of {rows} x {group} do not divide N = {n}, K = {k}",
            suffix,
            advice="correct weight_scale_group_size in the config",
        )
        return None
    if kind == "group" and (group < 1 or k % group):
        d.error(
            "tensor-shape",
            f"weight has a shape that makes K = {k}, which groups of {group} do not divide; {suffix} has the shape {list(scale.shape)}",
            "weight",
            advice="re-export the layer, or correct weight_scale_group_size in the config",
        )
        return None
    shapes = {"group": (*lead, n, k // (group or k)), "channel": (*lead, n, 1), "block": (*lead, n // (rows or 1), k // (group or k))}
    if kind == "tensor":
        if flat(scale) != (experts or 1):
            d.bad_shape(suffix, "[1]" if experts is None else f"[{experts}]")
            return None
    elif scale.shape != shapes[kind]:
        d.bad_shape(suffix, str(list(shapes[kind])), f"{kind} scales for N = {n}, K = {k}")
        return None
    if said is not None and said.startswith("float8"):
        allowed: tuple[str, ...] = (STORED_AS[said], "U8")
    else:
        allowed = tuple(FLOATS)
    if scale.dtype not in allowed:
        d.error(
            "tensor-dtype",
            f"{suffix} is {scale.dtype}, want {' or '.join(allowed)} for bs_dtype {said or 'unset'}",
            suffix,
            advice="re-export the layer",
        )
        return None
    if kind == "tensor":
        d.tensors["weight_scale"] = d.scale_of_matrix(scale, experts)
        return ScaleForm(kind="tensor", dtype="float32")
    expr: Expr
    if said == "float8e5m3":  # no sign bit, no NaN: every byte is a number
        d.check("scale-not-all-zero", scale)
        expr, dtype = Stored(scale), said
    elif said is not None and said.startswith("float8"):
        expr, dtype = d.scale_bytes(scale, said), said
    else:
        expr, dtype = d.scale_floats(scale), FLOATS[scale.dtype]
        if kind == "block" and scale.dtype != "F32":
            expr, dtype = apply("float32", expr, dtype="F32", shape=expr.shape), "float32"
    d.tensors["weight_scale"] = expr
    return ScaleForm(kind=kind, dtype=dtype, k=group if kind in ("group", "block") else 0, n=rows if kind == "block" else 0)  # type: ignore[arg-type]


def _second(d: Draft, f: Mapping[str, Any], n: int, experts: int | None) -> None:
    kind = str(f.get("weight_scale_2_type") or "none")
    if kind == "none":
        if "weight_scale_2" in d.module.tensors:
            d.take("weight_scale_2")
            d.error(
                "humming-scale-2", "weight_scale_2 is there, weight_scale_2_type says none", "weight_scale_2", advice="correct the config"
            )
    elif kind == "tensor":
        d.scalar("weight_scale_2", "weight_scale_2", experts, needed=True)
    else:
        view = d.need("weight_scale_2", *FLOATS)
        shape = (n,) if experts is None else (experts, n)
        if view is not None and flat(view) != n * (experts or 1):
            d.bad_shape("weight_scale_2", str(list(shape)))
        elif view is not None:
            expr = d.scale_floats(view)
            d.tensors["weight_scale_2"] = expr if view.shape == shape else apply("reshape", expr, params=(shape,), shape=shape)


def _zeros(d: Draft, f: Mapping[str, Any], b: NumberType, kind: str, n: int, k: int, experts: int | None, form: ScaleForm | None) -> str:
    """none, int or fp."""
    if not f.get("has_zero_point"):
        if "zero_point" in d.module.tensors:
            d.take("zero_point")
            d.error("humming-zero-point", "zero_point is there, has_zero_point is not set", "zero_point", advice="correct the config")
        return "none"
    floating = bool(f.get("is_fp_zero_point"))
    view = d.need("zero_point", *(FLOATS if floating else ("I32",)))
    if (b.kind != "uint" and not floating) or kind not in ("group", "channel"):
        d.error("humming-zero-point", f"has_zero_point beside {b.name} with {kind} scales", "zero_point", advice="correct the config")
        return "none"
    if view is None or form is None:
        return "none"
    lead = () if experts is None else (experts,)
    groups = k // (form.k or k)
    want = (*lead, n, groups) if floating else (*lead, -(-n * b.bits // 32), groups)
    if view.shape != want:
        d.bad_shape("zero_point", str(list(want)))
        return "none"
    if floating:
        d.check("finite", view)
    d.tensors["zero_point"] = Stored(view)
    return "fp" if floating else "int"
