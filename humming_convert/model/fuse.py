"""Fuse and stack standard layers as the runtime does: qkv_proj, gate_up_proj, the experts' w13 and w2.

In: unfused layers of the formats, the names of unquantized tensors, the family's table.  Out: fused layers, vLLM's name of each, and
the layers that are to be written as plain matrices; findings for what is missing or cannot be fused.
Facts: formats.md 2.8, 10, 11 (D6, D8, D12, D22), architecture.md 9.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.weights import natural
from humming_convert.findings import Findings, Rule
from humming_convert.model.act_order import fold_act_order, g_idx_of
from humming_convert.model.check import check_model
from humming_convert.model.families import (
    STACKED,
    Family,
    expert_names,
    expert_of,
    family_of,
    is_embedding,
    is_lm_head,
    is_router,
    renamed,
    vllm_name,
)
from humming_convert.model.options import ModelOptions
from humming_convert.model.requantize import by_columns, requantized
from humming_convert.model.stack import contiguous, stack
from humming_convert.model.unify import Rejected, unify, whole_or_rows
from humming_convert.standard.layer import StandardLayer

RULES = (
    Rule(620, "parts-differ", "parts of a fused layer can be brought to one form exactly"),
    Rule(621, "part-unquantized", "parts of a fused layer are all quantized or none"),
)

Fuse = Literal["auto", "vllm", "none"]
OnMixed = Literal["refuse", "dequantize", "unfuse"]


class Dequantize(NamedTuple):
    """A layer to be written as a plain matrix `<module>.weight`. `step`: a name of standard.lossy.STEPS."""

    layer: StandardLayer
    reason: str
    step: str


class FusedModel(Struct, frozen=True):
    """`layers` in the order of their names (numbers as numbers). `vllm`: layer name -> vLLM's prefix, None where it is not known or the
    part is kept apart."""

    layers: tuple[StandardLayer, ...]
    vllm: Mapping[str, str | None]
    dequantize: tuple[Dequantize, ...]
    family: Family


class Group(Struct, frozen=True):
    """Source modules that the runtime stacks into one layer `name`, in stacking order. `experts`: how many, None for a linear layer."""

    name: str
    parts: tuple[str, ...]
    experts: int | None = None


def groups_of(family: Family, names: Iterable[str]) -> tuple[Group, ...]:
    """The groups that `names` (quantized and plain modules, unfused) form. Linear groups are whole; experts may lack projections."""
    linear: dict[str, dict[str, None]] = {}
    orders: dict[str, tuple[str, ...]] = {}
    experts: dict[str, dict[int, set[str]]] = {}
    for name in sorted(names, key=natural):
        expert = expert_of(name)
        if expert is not None:
            if expert.index is not None:
                experts.setdefault(expert.prefix, {}).setdefault(expert.index, set()).add(expert.leaf)
            continue
        for fusion in family.fusions:
            at = fusion.of(name)
            if at is not None:
                fused = f"{at[0]}.{fusion.name}" if at[0] else fusion.name
                linear.setdefault(fused, {})[name] = None
                orders[fused] = tuple(f"{at[0]}.{p}" if at[0] else p for p in fusion.parts)
                break
    out = [Group(fused, orders[fused]) for fused, have in linear.items() if set(orders[fused]) == set(have)]
    for prefix, by_expert in experts.items():
        leaves = expert_names(family, {leaf for found in by_expert.values() for leaf in found})
        for name, wanted in ((f"{prefix}.w13", leaves.w13), (f"{prefix}.w2", (leaves.down,))):
            parts = tuple(f"{prefix}.{e}.{leaf}" for e in sorted(by_expert) for leaf in wanted if leaf in by_expert[e])
            if parts:
                out.append(Group(name, parts, len(by_expert)))
    return tuple(out)


def names_of(family: Family, layers: Iterable[StandardLayer], siblings: Iterable[str], apart: Iterable[str]) -> dict[str, str | None]:
    """Layer name -> vLLM's prefix. A part without all its siblings has none (or its own name, where the fusion is optional)."""
    whole = {part for group in groups_of(family, siblings) for part in group.parts}
    apart = set(apart)
    out: dict[str, str | None] = {}
    for layer in layers:
        fusion = None if expert_of(layer.name) else next((f for f in family.fusions if f.of(layer.name)), None)
        alone = fusion is not None and layer.name not in whole
        if layer.name in apart or (alone and fusion is not None and not fusion.optional):
            out[layer.name] = None
        else:
            out[layer.name] = renamed(family, layer.name) if alone else vllm_name(family, layer.name)
    return out


def fuse_model(
    checkpoint: Checkpoint,
    layers: Sequence[StandardLayer],
    plain: Iterable[str],
    options: ModelOptions,
    *,
    excluded: Sequence[StandardLayer] = (),
    findings: Findings,
) -> FusedModel:
    """All of it. layers: unfused, as the formats give them (experts one by one unless stacked on disk); plain: names of unquantized tensors;
    excluded: quantized layers that are passed through: they are checked with the others, and stand for dense parts of a group.

    options.fuse "none": every projection by itself, everything else (checks, act-order, lm_head, row order) the same.
    """
    plain = tuple(plain)
    family = family_of(checkpoint.model_type)
    if not family.known:
        family = _text_family(checkpoint) or family
    check_model(checkpoint, family, [*layers, *excluded], plain, findings)
    layers, dequantize = _set_aside(layers, options.lm_head, findings)
    folded = fold_act_order(layers, on_desc_act=options.on_desc_act, findings=findings)
    dequantize += [Dequantize(by_columns(x), "act-order that cannot be folded", "act-order-dequantize") for x in folded.dequantize]
    requant = options.on_desc_act == "requant"
    plain_groups = [requantized(x, options.dtype) if requant and g_idx_of(x) is not None else x for x in folded.layers]
    ready = {layer.name: whole_or_rows(layer) for layer in plain_groups}
    if options.w13 == "contiguous":
        ready = {name: contiguous(layer) for name, layer in ready.items()}
    if not family.known:
        _propose(ready, options.fuse, checkpoint.model_type, findings)
    apart: set[str] = set()
    floats = {name.removesuffix(".weight") for name in plain if name.endswith(".weight")} | {x.name for x in excluded}
    siblings = {*ready, *floats, *(d.layer.name for d in dequantize)}
    if options.fuse == "vllm" or (options.fuse == "auto" and family.known):
        out, mixed, apart = _fuse_groups(family, ready, floats, {d.layer.name for d in dequantize}, options.on_mixed, findings)
        dequantize += mixed
    else:
        out = list(ready.values())
    out.sort(key=lambda layer: natural(layer.name))
    dequantize.sort(key=lambda d: natural(d.layer.name))
    return FusedModel(tuple(out), names_of(family, out, siblings, apart), tuple(dequantize), family)


def _text_family(checkpoint: Checkpoint) -> Family | None:
    """The family of the language model inside an unknown wrapper; its names inside the wrapper are not known."""
    inner = family_of(str(checkpoint.text_config.get("model_type") or ""))
    return replace(inner, vllm=None) if inner.known else None


def _set_aside(
    layers: Sequence[StandardLayer], lm_head: Literal["dequantize", "keep"], findings: Findings
) -> tuple[list[StandardLayer], list[Dequantize]]:
    """Heads, embeddings and routers: what the runtime keeps as plain matrices (D8, formats.md 13)."""
    kept, aside = [], []
    for layer in layers:
        if is_lm_head(layer.name) and lm_head == "dequantize":
            reason = "a quantized lm_head"
            advice = "--lm-head keep keeps it quantized; stock vLLM cannot load that"
        elif is_embedding(layer.name):
            reason, advice = "a quantized embedding", None
        elif is_router(layer.name):
            reason, advice = "a quantized router", None
        else:
            kept.append(layer)
            continue
        aside.append(Dequantize(by_columns(layer), reason, "lm-head-dequantize"))
        findings.warning("dequantized", f"{reason}: {layer.name} is written in the model dtype", layer=layer.name, advice=advice)
    return kept, aside


def _propose(ready: Mapping[str, StandardLayer], fuse: Fuse, model_type: str, findings: Findings) -> None:
    """The groups that a fusing reader of an unknown family would make (formats.md 10.4)."""
    groups = groups_of(family_of(""), ready)
    told = f"model_type {model_type!r} is not in the table of families"
    if fuse == "vllm":
        findings.note("unknown-architecture", f"{told}; {len(groups)} groups are fused by the generic names", count=len(groups))
        return
    shown = "; ".join(f"{g.name} from {len(g.parts)}" for g in groups[:3])
    findings.note(
        "unknown-architecture",
        f"{told}: nothing is fused" + (f"; possible: {shown}{' …' if len(groups) > 3 else ''}" if groups else ""),
        advice="--fuse vllm fuses these groups" if groups else None,
        count=len(groups),
    )


def _fuse_groups(
    family: Family,
    ready: dict[str, StandardLayer],
    floats: set[str],
    aside: set[str],
    on_mixed: OnMixed,
    findings: Findings,
) -> tuple[list[StandardLayer], list[Dequantize], set[str]]:
    """(layers, those to be dequantized, names kept apart). floats: plain modules; aside: modules already dequantized."""
    left = dict(ready)
    out: list[StandardLayer] = []
    dequantize: list[Dequantize] = []
    apart: set[str] = set()
    for group in groups_of(family, {*ready, *floats, *aside}):
        parts = [ready[p] for p in group.parts if p in ready]
        if not parts:
            continue
        dense = [p for p in group.parts if p not in ready]
        fused = _mixed(group, dense, aside) if dense else _fused(group, parts)
        for p in parts:
            del left[p.name]
        if isinstance(fused, StandardLayer):
            out.append(fused)
        elif on_mixed == "dequantize" or (dense and set(dense) <= aside and on_mixed != "unfuse"):
            # parts whose siblings were dequantized on request follow them: the runtime has one matrix for all
            step = "act-order-dequantize" if dense and set(dense) <= aside and on_mixed == "refuse" else "mixed-dequantize"
            dequantize += [Dequantize(p, f"{group.name}: {fused.reason}", step) for p in parts]
        elif on_mixed == "unfuse":
            out += parts
            apart |= {p.name for p in parts}
        else:
            findings.error(
                "part-unquantized" if dense else "parts-differ",
                f"{group.name} cannot be fused: {fused.reason}",
                layer=group.name,
                advice="--on-mixed dequantize writes its quantized parts in the model dtype, --on-mixed unfuse keeps all parts apart",
            )
    for layer in left.values():
        out.append(_stacked_on_disk(layer))
    return out, dequantize, apart


def _mixed(group: Group, dense: Sequence[str], aside: set[str]) -> Rejected:
    first = dense[0]
    more = f" and {len(dense) - 1} more" if len(dense) > 1 else ""
    return Rejected(
        f"{first}{more} is {'written as a plain matrix' if first in aside else 'not quantized'}, the other parts are", tuple(dense)
    )


def _fused(group: Group, parts: Sequence[StandardLayer]) -> StandardLayer | Rejected:
    """One layer of all parts, in their stacking order."""
    stacked = next((p for p in parts if p.experts is not None), None)
    if stacked is not None:
        return Rejected(f"{stacked.name} holds {stacked.experts} matrices in one tensor", tuple(p.name for p in parts))
    if group.experts is not None and len(parts) % group.experts:
        return Rejected("experts have different projections", tuple(p.name for p in parts))
    each = len(parts) // (group.experts or 1)
    shapes = {tuple(p.n for p in parts[e * each : (e + 1) * each]) for e in range(group.experts or 1)}
    if len(shapes) > 1:
        return Rejected(f"experts have different rows: {sorted(shapes)[:3]}", tuple(p.name for p in parts))
    alike = unify(parts)
    return alike if isinstance(alike, Rejected) else stack(group.name, alike, group.experts)


def _stacked_on_disk(layer: StandardLayer) -> StandardLayer:
    """Experts that are one tensor already get the name of their stack; all else stays (D22)."""
    expert = expert_of(layer.name)
    if expert is None or layer.experts is None:
        return layer
    return replace(layer, name=f"{expert.prefix}.{STACKED[expert.leaf]}")
