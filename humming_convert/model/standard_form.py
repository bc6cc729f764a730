"""The Humming standard form for stock vLLM: one entry a source module, brought to what vLLM 0.33 can load, and a warning where it cannot.

In: an unfused model (fuse "none").  Out: layers in the model dtype, fused under vLLM's name only where a tensor scale needs it.
Facts: runtimes.md 1.2 to 1.8, architecture.md 9.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.tensors import Read
from humming_convert.checkpoint.weights import natural
from humming_convert.findings import Findings
from humming_convert.model.conform import ModelDtype, check_range, conform
from humming_convert.model.families import Family, expert_of, is_lm_head, own_loader
from humming_convert.model.fuse import Dequantize, FusedModel, OnMixed, fuse_model, groups_of, names_of
from humming_convert.model.options import ModelOptions
from humming_convert.model.stack import INPUT_ROLES, stack
from humming_convert.model.unify import Rejected, rows_of_scale_2, rows_of_tensor, unify
from humming_convert.standard.expr import Context, Expr, apply
from humming_convert.standard.forms import WeightForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.rewrite import absorb_zero_point, to_rows

_KV_SCALE = re.compile(r"\.[kv]_scale$")
CANNOT = "vllm-cannot-load"
_MIXED_ADVICE = "--on-mixed dequantize writes its quantized parts in the model dtype, which vLLM loads; "


class Made(Struct, frozen=True):
    """What one vLLM module is written as. `why`: why vLLM cannot load it.  mixed: its parts cannot share one form, `--on-mixed` decides."""

    layers: Sequence[StandardLayer]
    why: str | None = None
    mixed: bool = False


def standard_model(
    checkpoint: Checkpoint,
    layers: Sequence[StandardLayer],
    plain: Iterable[str],
    options: ModelOptions,
    *,
    read: Read | None,
    excluded: Sequence[StandardLayer] = (),
    findings: Findings,
) -> FusedModel:
    """The layers of a `--standard` run, from those of the formats: checked, act-order folded, heads set aside, then `standard_form`."""
    plain = tuple(plain)
    kept = [name for name in plain if _KV_SCALE.search(name)]
    if kept:
        findings.warning(
            "kv-scales-unread",
            "KV cache scales are passed through; stock vLLM does not read them with quant_method humming",
            tensor=kept[0],
            advice="convert with --target if the KV cache is to use them",
            count=len(kept),
        )
    model = fuse_model(checkpoint, layers, plain, replace(options, fuse="none"), excluded=excluded, findings=findings)
    floats = (*plain, *(f"{x.name}.weight" for x in excluded))
    fuse = model.family.known or options.fuse == "vllm"
    return standard_form(model, floats, dtype=options.dtype, read=read, findings=findings, on_mixed=options.on_mixed, fuse=fuse)


def standard_form(
    model: FusedModel,
    plain: Iterable[str],
    *,
    dtype: ModelDtype,
    read: Read | None,
    findings: Findings,
    on_mixed: OnMixed = "refuse",
    fuse: bool = True,
) -> FusedModel:
    """The model's layers as `--standard` writes them. `plain`: names of unquantized tensors. read: None if data must not be read; tensor
    scales of one fused module then count as different.  on_mixed "dequantize": what vLLM cannot hold in one module becomes plain matrices.
    fuse: whether vLLM is known (or said) to fuse the family's groups."""
    aside = {d.layer.name for d in model.dequantize}
    floats = {name.removesuffix(".weight") for name in plain if name.endswith(".weight")} | aside
    by_name = {layer.name: without_inputs(layer, findings) for layer in model.layers}
    # of an unknown family nothing is fused, and no part is rounded for the sake of its neighbours (formats.md 10.4)
    units = _units(model.family, {*by_name, *floats})
    if not fuse:
        _warn_of_guesses(units, by_name, findings)
        units = []
    out: list[StandardLayer] = []
    dequantize = list(model.dequantize)
    done: set[str] = set()
    for name, parts, moe in units:
        layers = [by_name[p] for p in parts if p in by_name]
        if not layers:
            continue
        done |= {layer.name for layer in layers}
        dense = [p for p in parts if p not in by_name]
        # parts whose siblings were dequantized on request follow them: vLLM has one matrix for all
        follows = bool(dense) and set(dense) <= aside and on_mixed != "unfuse"
        made = (_experts if moe else _linear)(name, layers, read)
        if dense:
            made = Made(made.layers, f"{dense[0]} is not quantized, other parts of the same module are", mixed=True)
        if made.mixed and (follows or on_mixed == "dequantize"):
            step = "act-order-dequantize" if follows and on_mixed == "refuse" else "mixed-dequantize"
            dequantize += [Dequantize(layer, f"{name}: {made.why}", step) for layer in layers]
            continue
        out += made.layers
        own = own_loader(model.family, layers[0].name)
        if (why := own or made.why) is not None:
            where = model.vllm.get(layers[0].name) or layers[0].name
            _warn(findings, where, why, _MIXED_ADVICE if made.mixed and own is None else "")
    for layer in by_name.values():
        if layer.name not in done:
            layer = _fused_on_disk(layer) if fuse else layer
            out.append(layer)
            why = _why_alone(model.family, layer)
            if why is not None:
                _warn(findings, layer.name, why)
    dequantize.sort(key=lambda d: natural(d.layer.name))
    done_layers = sorted((conform(layer, dtype) for layer in out), key=lambda layer: natural(layer.name))
    if read is not None:
        for layer in done_layers:
            check_range(layer, read, findings)
    names = names_of(model.family, done_layers, {*by_name, *floats}, ())
    return replace(model, layers=tuple(done_layers), vllm=names, dequantize=tuple(dequantize))


def _warn(findings: Findings, where: str, why: str, first: str = "") -> None:
    """first: an advice that comes before the general one."""
    findings.warning(
        CANNOT,
        f"stock vLLM 0.33 cannot load this: {why}",
        layer=where,
        advice=first + "convert with --target for the packed form, or load this folder with humming_convert",
    )


def _warn_of_guesses(units: Sequence[tuple[str, tuple[str, ...], bool]], by_name: dict[str, StandardLayer], findings: Findings) -> None:
    """Of an unknown family: modules that are likely to be fused, and could not be as they are. 5 bits would even load wrong."""
    for name, parts, moe in units:
        forms = {by_name[p].form for p in parts if p in by_name}
        if moe or not forms:
            continue
        form = next(iter(forms))
        if len(forms) > 1 or any(p not in by_name for p in parts):
            why: str | None = "they have different forms"
        elif "tensor" in (form.scale.kind, form.scale_2):
            why = "a tensor scale for each part"
        else:
            why = "a block scale on a fused module" if form.scale.kind == "block" else _unsupported(form)
        if why is not None:
            _warn(
                findings, name, f"{why}, if it fuses {' and '.join(p.rpartition('.')[2] for p in parts)}", "--fuse vllm says that it does; "
            )


def without_inputs(layer: StandardLayer, findings: Findings) -> StandardLayer:
    """Static activation scales are no part of this form: vLLM quantizes activations as it runs (runtimes.md 1.5)."""
    dropped = [role for role in INPUT_ROLES if role in layer.tensors]
    if not dropped:
        return layer
    findings.note("input-scale-dropped", "static input scales are not used by the standard form", layer=layer.name)
    return replace(layer, tensors={role: e for role, e in layer.tensors.items() if role not in dropped})


def _units(family: Family, names: set[str]) -> list[tuple[str, tuple[str, ...], bool]]:
    """(fused name, source modules, is it a mixture of experts): what vLLM makes one module of. w13 and w2 share every key, so they are
    one unit (runtimes.md 1.2)."""
    units: dict[str, tuple[tuple[str, ...], bool]] = {}
    for group in groups_of(family, names):
        if group.experts is None:
            units[group.name] = (group.parts, False)
        else:
            prefix = group.name.rpartition(".")[0]
            units[prefix] = ((*units.get(prefix, ((), True))[0], *group.parts), True)
    return [(name, parts, moe) for name, (parts, moe) in units.items()]


# ------------------------------------------------------------------ linear layers
def _linear(name: str, parts: Sequence[StandardLayer], read: Read | None) -> Made:
    """q/k/v, gate/up, ….

    Zero points: exact re-coding where parts differ, and for 5 bits, whose factor 6.4 vLLM cuts off (runtimes.md 1.5).
    """
    asymmetric = [p for p in parts if p.form.zero_point != "none"]
    absorb = bool(asymmetric) and (len(asymmetric) < len(parts) or any(p.form.number.bits == 5 for p in asymmetric))
    absorb = absorb or len({p.form.number.bits for p in asymmetric}) > 1
    # blocks first: a fused module with block scales ends in an assertion, whole or not
    alike = unify([to_rows(p) for p in parts], zeros="absorb" if absorb else "explicit")
    if isinstance(alike, Rejected):
        return Made(parts, f"its parts have different forms: {alike.reason}", mixed=True)
    form = alike[0].form
    role = "weight_scale" if form.scale.kind == "tensor" else "weight_scale_2" if form.scale_2 == "tensor" else None
    if role is None:
        return Made(alike, _unsupported(form))
    if read is not None and _equal([p.tensors[role] for p in alike], read):
        fused = stack(name, alike, None)
        one = apply("columns", fused.tensors[role], params=(0, 1, 1), shape=(1,))
        return Made([replace(fused, tensors={**fused.tensors, role: one})], _unsupported(form))
    spread = rows_of_tensor if role == "weight_scale" else rows_of_scale_2
    return Made([spread(p) for p in alike], _unsupported(form))


def _equal(values: Sequence[Expr], read: Read) -> bool:
    """Are all these scales one number? A few bytes each."""
    context = Context(read, Meter())
    numbers = np.concatenate([np.asarray(v.evaluate(context), np.float64).reshape(-1) for v in values])
    return bool((numbers == numbers[0]).all())


def _unsupported(form: WeightForm) -> str | None:
    if form.zero_point == "int" and form.number.bits == 5:
        return "5 bits with zero points on a fused module come out too short"
    return None


# ------------------------------------------------------------------ experts
def _experts(name: str, parts: Sequence[StandardLayer], read: Read | None) -> Made:
    """All experts, w13 and w2 alike: no zero points, no tensor scales, one set of keys."""
    absorb = any(p.form.zero_point != "none" for p in parts)
    alike = unify(parts, zeros="absorb" if absorb else "explicit", keep_tensor=False, same_k=False)
    if isinstance(alike, Rejected):
        return Made(parts, f"its parts have different forms: {alike.reason}", mixed=True)
    return Made(alike, _why_not_experts(alike[0].form))


# accepted by the experts classes (runtimes.md 1.6): (scale kind, scale dtype or None for the model dtype, group, secondary scale)
_ACCEPTED_FLOATS: dict[str, tuple[tuple[str, str | None, int, str], ...]] = {
    "float4e2m1": (("group", "float8e8m0", 32, "none"), ("group", "float8e4m3", 16, "channel")),
    "float8e4m3": (("channel", None, 0, "none"), ("block", "float32", 128, "none"), ("group", "float8e8m0", 32, "none")),
}


def _why_not_experts(form: WeightForm) -> str | None:
    """Why the experts classes have no kernel for a form, or None."""
    if form.zero_point != "none":
        return "experts with zero points"
    if form.number.kind == "uint":
        fits = form.scale.kind in ("group", "channel") and not form.scale.dtype.startswith("float8") and form.scale_2 == "none"
        return None if fits and form.number.bits >= 2 else f"experts of {form.number.name} with {form.scale.kind} {form.scale.dtype} scales"
    for kind, dtype, group, scale_2 in _ACCEPTED_FLOATS.get(form.number.name, ()):
        same_dtype = form.scale.dtype == dtype if dtype is not None else not form.scale.dtype.startswith("float8")
        if (form.scale.kind, form.scale.k, form.scale_2) == (kind, group, scale_2) and same_dtype:
            return None
    return f"experts of {form.number.name} with {form.scale.kind} scales of {form.scale.dtype}"


def _why_alone(family: Family, layer: StandardLayer) -> str | None:
    """Why a layer of no group cannot be loaded."""
    if is_lm_head(layer.name):
        return "a quantized lm_head is always read as a plain matrix"
    own = own_loader(family, layer.name)
    if own is not None:
        return own
    if layer.experts is not None:
        return "the experts are one tensor, whose name with .weight has no target"  # formats.md 8.2
    if expert_of(layer.name) is None:
        return _why_fused_on_disk(layer)
    if layer.form.zero_point != "none":
        return "experts with zero points"
    if "tensor" in (layer.form.scale.kind, layer.form.scale_2):
        return "a tensor scale for each part"
    return _why_not_experts(layer.form)


# leaves that vLLM 0.33 makes of several parts, and that some families have as one tensor on disk already
FUSED_ON_DISK = ("qkv_proj", "gate_up_proj", "fused_qkv_a_proj", "query_key_value", "Wqkv", "wqkv", "W_pack", "c_attn")


def _is_fused_on_disk(layer: StandardLayer) -> bool:
    return expert_of(layer.name) is None and layer.name.rpartition(".")[2] in FUSED_ON_DISK


def _fused_on_disk(layer: StandardLayer) -> StandardLayer:
    """A module that the source has as one tensor is loaded as it is, but for the cases of runtimes.md 1.5: these as `_linear` has them."""
    if not _is_fused_on_disk(layer):
        return layer
    layer = to_rows(layer)
    return absorb_zero_point(layer) if layer.form.zero_point == "int" and layer.form.number.bits == 5 else layer


def _why_fused_on_disk(layer: StandardLayer) -> str | None:
    if not _is_fused_on_disk(layer):
        return None
    return "a block scale on a fused module" if layer.form.scale.kind == "block" else _unsupported(layer.form)
