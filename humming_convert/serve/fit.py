"""Does a module of vLLM fit a packed layer?

In: a layer's entry in the manifest, and the sizes that vLLM gives the module on this rank.  Out: findings; which experts are read.
Facts: runtimes.md 3.2; architecture.md 9.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from humming_convert.findings import Finding
from humming_convert.model.families import expert_of
from humming_convert.serve.folder import EXPERTS, Group
from humming_convert.serve.refusals import refusal

Entry = Mapping[str, Any]
INTERLEAVED = ("swigluoai",)  # vLLM 0.33 activations that read gate and up rows in turn


class LinearModule(Struct, frozen=True, kw_only=True):
    """A linear module on this rank. n: rows of each part.  later_bias: the model adds the bias after the product (skip_bias_add)."""

    n: tuple[int, ...]
    k: int
    dtype: str
    bias: bool
    later_bias: bool = False


class ExpertsModule(Struct, frozen=True, kw_only=True):
    """Routed experts on this rank. gated: w13 is gate and up.  local: global numbers of this rank's experts, in their order here.
    total: experts of the model."""

    hidden: int
    intermediate: int
    gated: bool
    activation: str
    dtype: str
    bias: bool
    local: tuple[int, ...]
    total: int


def linear_findings(group: Group, module: LinearModule) -> Iterator[Finding]:
    if group.experts:
        yield refusal("layer-kind", "the folder has experts, vLLM a linear layer", layer=group.vllm)
        return
    entry = group.one
    shape, name = entry["shape"], entry["name"]
    if shape["experts"]:
        yield refusal("layer-kind", f"the folder has {shape['experts']} experts, vLLM a linear layer", layer=name)
        return
    stack = tuple(shape["stack_n"])
    # a module that is fused on disk is one part, whatever vLLM counts in it
    if shape["n"] != sum(module.n) or (len(stack) == len(module.n) and stack != module.n):
        yield refusal("layer-shape", f"packed rows {list(stack)}, vLLM wants {list(module.n)}", layer=name)
    yield from _common(entry, module.k, module.dtype, module.bias)
    if module.bias and module.later_bias:
        yield refusal("bias", "the model adds this bias after the product, and a packed one is inside it", layer=name)


def _common(entry: Entry, k: int, dtype: str, bias: bool) -> Iterator[Finding]:
    name, config = entry["name"], entry["config"]
    if entry["shape"]["k"] != k:
        yield refusal("layer-shape", f"packed for {entry['shape']['k']} columns, vLLM wants {k}", layer=name)
    if config["c_dtype"] != dtype:
        yield refusal("layer-dtype", f"gives {config['c_dtype']}, vLLM wants {dtype}", layer=name, dtype=config["c_dtype"])
    if config["has_bias"] != bias:
        have, want = ("has a bias" if x else "has none" for x in (config["has_bias"], bias))
        yield refusal("bias", f"the packed layer {have}, the module of vLLM {want}", layer=name)


def experts_findings(group: Group, module: ExpertsModule, parallel: Mapping[str, Any]) -> Iterator[Finding]:
    """parallel: of the manifest."""
    if not group.experts:
        yield refusal("layer-kind", "the folder has a linear layer, vLLM experts", layer=group.vllm)
        return
    w13, w2 = (group.entries[leaf] for leaf in EXPERTS)
    rows = module.intermediate * (2 if module.gated else 1)
    for entry, n, k in ((w13, rows, module.hidden), (w2, module.hidden, module.intermediate)):
        if entry["shape"]["n"] != n:
            yield refusal("layer-shape", f"packed for {entry['shape']['n']} rows an expert, vLLM wants {n}", layer=entry["name"])
        yield from _common(entry, k, module.dtype, module.bias)
        if entry["config"]["input_quant_mode"] in ("static_tensor", "static_tensor_dynamic_group"):
            yield refusal("static-experts", "the layer has static input scales", layer=entry["name"])
        yield from _experts(entry, module, parallel)
    order = "interleaved" if module.activation in INTERLEAVED else "blocks"
    if module.gated and w13["row_order"] != order:
        said = f"rows are in {w13['row_order']}, the activation {module.activation} reads {order}"
        yield refusal("row-order", said, layer=w13["name"])


def _experts(entry: Entry, module: ExpertsModule, parallel: Mapping[str, Any]) -> Iterator[Finding]:
    held = held_experts(entry, parallel, module.total)
    missing = [e for e in module.local if e not in held]
    if missing:
        said = f"experts {missing[0]} to {missing[-1]} are wanted, the folder has {held[0]} to {held[-1]} for this rank"
        yield refusal("experts", said, layer=entry["name"], want=max(1, module.total // len(module.local)))


def held_experts(entry: Entry, parallel: Mapping[str, Any], total: int) -> tuple[int, ...]:
    """Global numbers of the experts along dim 0. parallel: of the manifest.  total: experts of the model.

    Parts are source modules, expert after expert, and tell the numbers. Experts that were stacked in the source have none: then they are
    all experts, or the rank's run of them, as even as can be, the first ranks one more (model/parallel.py).
    """
    experts, parts = int(entry["shape"]["experts"]), entry["parts"]
    each = len(parts) // experts
    found = [expert_of(part) for part in parts[::each]] if each else []
    numbers = [x.index for x in found if x is not None and x.index is not None]
    if len(numbers) == experts:
        return tuple(numbers)
    if parallel["ep_size"] == 1:
        return tuple(range(experts))
    base, more = divmod(total, parallel["ep_size"])
    first = parallel["ep_rank"] * base + min(parallel["ep_rank"], more)
    return tuple(range(first, first + experts))


def rows_of_experts(held: Sequence[int], local: Sequence[int]) -> list[int]:
    """Where in dim 0 of the packed tensors the experts of this rank are, in the rank's order."""
    at = {expert: row for row, expert in enumerate(held)}
    return [at[expert] for expert in local]
