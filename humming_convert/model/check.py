"""What must be there: every part of a fused layer, every expert, and the sizes that config.json states.

In: unfused standard layers and the checkpoint's headers.  Out: findings; nothing is changed.
Facts: formats.md 12 (rows 53, 54), architecture.md 9.7.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Findings, Rule
from humming_convert.formats.biases import always_biased
from humming_convert.model.families import (
    GATE_UP,
    QKV,
    STACKED,
    Family,
    Fusion,
    dimensions,
    expert_count,
    expert_names,
    expert_of,
    is_embedding,
    is_lm_head,
)
from humming_convert.standard.layer import StandardLayer

RULES = (
    Rule(600, "part-missing", "every projection of an attention or MLP block is in the checkpoint"),
    Rule(601, "expert-missing", "experts are numbered from 0 without gaps, each with all its projections"),
    Rule(602, "expert-count", "there are as many experts as config.json says"),
    Rule(603, "shape-config", "shapes are those that config.json states"),
    Rule(604, "fused-shapes", "parts of a fused layer have the same K"),
    Rule(605, "layer-missing", "there are as many decoder layers as config.json says"),
    Rule(607, "matrix-stacked", "a matrix of a single expert, or of attention or an MLP, has two dimensions"),
    Rule(608, "mlp-shapes", "gate and up have as many rows as down has columns, in every expert alike"),
    Rule(609, "bias-missing", "a projection that always has a bias in its architecture has one"),
    Rule(612, "router-shape", "a router has a row for every expert"),
    Rule(611, "fused-twice", "a fused layer and its parts are not both in the checkpoint"),
    Rule(606, "tied-head-differs", "a head that is tied to the embedding by the config is the embedding", "warning"),
)

TIED = "tie_word_embeddings"
SHOWN = 100  # missing experts that are told one by one
# what stands together in a block: if one is there, all are (the fused spelling counts for its parts)
BLOCKS: tuple[tuple[Fusion, tuple[tuple[str, ...], ...]], ...] = (
    (QKV, (("q_proj", "qkv_proj"), ("k_proj", "qkv_proj"), ("v_proj", "qkv_proj"), ("o_proj",))),
    (GATE_UP, (("gate_proj", "gate_up_proj"), ("up_proj", "gate_up_proj"), ("down_proj",))),
)
# multi-head latent attention has a q_proj without a k_proj
_LATENT = {"kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj"}
# config keys of models that share K and V between layers or heads: a missing k_proj or v_proj is then no damage (formats.md 12, 54)
TIED_KV = ("attention_k_eq_v", "num_kv_shared_layers", "kv_sharing", "use_mla", "cla_share_factor")
_VISION = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|mtp|eagle\w*)(\.|$)")


def check_model(checkpoint: Checkpoint, family: Family, layers: Sequence[StandardLayer], plain: Iterable[str], findings: Findings) -> None:
    """All checks that need no data. `plain`: names of unquantized tensors."""
    shapes = {part: (layer.n, layer.k) for layer in layers for part in layer.parts if len(layer.parts) == 1}
    floats = {name.removesuffix(".weight") for name in plain if name.endswith(".weight")}
    for name in floats:
        view = checkpoint.tensors.get(f"{name}.weight")
        if view is not None and len(view.shape) == 2:
            shapes.setdefault(name, (view.shape[0], view.shape[1]))
    modules = {part for layer in layers for part in layer.parts} | {layer.name for layer in layers} | floats
    quantized = {part for layer in layers for part in layer.parts}
    if family.known:
        _check_blocks(checkpoint, family, modules, quantized, findings)
        _check_depth(checkpoint.text_config, modules, findings)
    _check_doubles(checkpoint, family, {layer.name for layer in layers}, floats, findings)
    _check_experts(checkpoint, family, layers, modules, findings)
    _check_shapes(checkpoint, family, shapes, findings)
    _check_fused_shapes(checkpoint, family, layers, findings)
    _check_stacks(checkpoint, family, layers, findings)
    _check_mlps(checkpoint, shapes, quantized, findings)
    _check_biases(checkpoint, layers, floats, findings)


MLPS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))  # gate, up, down


def _check_mlps(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, int]], quantized: set[str], findings: Findings) -> None:
    """The three matrices of an MLP, or of an expert, belong together; an expert is as large as its neighbours."""
    first: dict[str, tuple[str, int]] = {}  # experts -> (name and inner size of the first)
    for name, (n, _) in shapes.items():
        parent, _, leaf = name.rpartition(".")
        for gate, up, down in MLPS:
            if leaf != gate or f"{parent}.{up}" not in shapes or f"{parent}.{down}" not in shapes:
                continue
            sizes = {gate: n, up: shapes[f"{parent}.{up}"][0], down: shapes[f"{parent}.{down}"][1]}
            expert = expert_of(name)
            other = first.setdefault(expert.prefix, (parent, n)) if expert is not None else (parent, n)
            odd = next((p for p in (up, down, gate) if sizes[p] != n), gate if other[1] != n else None)
            if odd is None or not {f"{parent}.{p}" for p in sizes} & quantized:
                continue
            told = f"{gate} has {n} rows, {up} has {sizes[up]} rows, {down} has {sizes[down]} columns"
            beside = f"; {other[0]} has {other[1]}" if other[1] != n else ""
            findings.error(
                "mlp-shapes",
                f"{told}{beside}: these must be one number",
                layer=f"{parent}.{odd}",
                tensor=_tensor(checkpoint, f"{parent}.{odd}"),
                file=_file(checkpoint, f"{parent}.{odd}"),
                advice="rows or columns were lost, or a tensor is another layer's; export the layer again",
            )


def _check_biases(checkpoint: Checkpoint, layers: Sequence[StandardLayer], floats: set[str], findings: Findings) -> None:
    """Some architectures have a bias in any case (formats.biases), also where a matrix is not quantized; without it the outputs are others."""
    always = always_biased(checkpoint) or frozenset()
    stacks = {layer.name for layer in layers if layer.experts is not None}
    names = stacks | floats | {part for layer in layers if layer.experts is None for part in layer.parts}
    for name in sorted(n for n in names if n.rpartition(".")[2] in always and not _VISION.search(n)):
        stored = f"{name}_bias" if name in stacks and f"{name}.weight" not in checkpoint.tensors else f"{name}.bias"
        if stored not in checkpoint.tensors:
            findings.error(
                "bias-missing",
                "the architecture has a bias here and the checkpoint has none",
                layer=name,
                tensor=stored,
                file=_file(checkpoint, name),
                advice="export the layer again with its bias",
            )


def _check_doubles(checkpoint: Checkpoint, family: Family, quantized: set[str], floats: set[str], findings: Findings) -> None:
    """The fused layer is made of the parts: if both are there, one of them is another layer's or an earlier export's."""
    parts: dict[str, list[str]] = defaultdict(list)  # fused name -> its parts
    modules = quantized | floats
    for name in modules:
        expert = expert_of(name)
        if expert is not None:
            if expert.index is not None:
                for stack in STACKED:
                    parts[f"{expert.prefix}.{stack}"].append(name)
            continue
        for fusion in family.fusions:
            if (at := fusion.of(name)) is not None:
                parts[f"{at[0]}.{fusion.name}" if at[0] else fusion.name].append(name)
    for fused in sorted(parts.keys() & modules):
        found = sorted(parts[fused])
        if not quantized & {fused, *found}:
            continue
        findings.error(
            "fused-twice",
            f"{fused} is in the checkpoint, and so {'is' if len(found) == 1 else 'are'} {', '.join(found[:3])}, which it is made of",
            layer=fused,
            tensor=_tensor(checkpoint, fused),
            file=_file(checkpoint, fused),
            advice="which of them is meant cannot be told: export the checkpoint again, or remove the stale tensors",
        )


def _check_stacks(checkpoint: Checkpoint, family: Family, layers: Sequence[StandardLayer], findings: Findings) -> None:
    """Three dimensions are for all experts together; in a numbered one, or in a part of a linear layer, something was reshaped."""
    for layer in layers:
        expert = expert_of(layer.name)
        single = expert.index is not None if expert is not None else any(f.of(layer.name) for f in family.fusions)
        if layer.experts is not None and single:
            findings.error(
                "matrix-stacked",
                f"{layer.name} has {layer.experts} matrices in one tensor, want one",
                layer=layer.name,
                tensor=_tensor(checkpoint, layer.name),
                file=_file(checkpoint, layer.name),
                advice="export the layer again with a matrix of two dimensions",
            )


def _check_blocks(checkpoint: Checkpoint, family: Family, modules: set[str], quantized: set[str], findings: Findings) -> None:
    """A block with a quantized projection has all of them."""
    blocks: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        parent, _, leaf = module.rpartition(".")
        if expert_of(module) is None and not _VISION.search(module):
            blocks[parent].add(leaf)
    touched = {m.rpartition(".")[0] for m in quantized}
    tied = [key for key in TIED_KV if checkpoint.text_config.get(key)]
    for parent in sorted(touched & set(blocks)):
        have = blocks[parent]
        for fusion, block in BLOCKS:
            if fusion not in family.fusions or have & _LATENT or not any(have & set(spellings) for spellings in block):
                continue
            for spellings in block:
                if have & set(spellings):
                    continue
                name, others = f"{parent}.{spellings[0]}", ", ".join(sorted(have))
                file = _file(checkpoint, f"{parent}.{min(have)}")  # where its neighbours stand
                if tied and spellings[0] in ("k_proj", "v_proj"):
                    findings.warning("part-missing", f"no {spellings[0]} beside {others}; config.json has {tied[0]}", layer=name, file=file)
                else:
                    findings.error(
                        "part-missing",
                        f"{name} is not in the checkpoint, {others} are",
                        layer=name,
                        file=file,
                        advice="the checkpoint is incomplete: download it again or export it again",
                    )


def _check_depth(config: Mapping[str, Any], modules: set[str], findings: Findings) -> None:
    """Decoder layers 0 .. num_hidden_layers-1 are all there; more of them (MTP) are none of our business."""
    count = config.get("num_hidden_layers")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        findings.error(
            "config-invalid",
            f"num_hidden_layers is {count!r}, want a number of layers",
            file="config.json",
            advice="correct config.json: without it nothing tells whether layers are missing",
        )
        return
    found = {int(m[1]) for name in modules if not _VISION.search(name) and (m := re.search(r"(?:^|\.)layers\.(\d+)\.", name))}
    if isinstance(count, int) and found:
        absent = count - len({i for i in found if i < count})
        if absent > 0:
            missing = list(islice((i for i in range(count) if i not in found), 3))
            findings.error(
                "layer-missing",
                f"config.json says num_hidden_layers {count}; layers {', '.join(map(str, missing))} hold no matrix",
                layer=f"layers.{missing[0]}",
                file="config.json",
                count=absent,
                advice="the checkpoint is incomplete: download it again or export it again",
            )


def _check_experts(checkpoint: Checkpoint, family: Family, layers: Sequence[StandardLayer], modules: set[str], findings: Findings) -> None:
    """Numbers without gaps, every projection of each, and as many as config.json says."""
    groups: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in modules:
        expert = expert_of(module)
        if expert is not None and expert.index is not None:
            groups[expert.prefix][expert.index].add(expert.leaf)
    says = expert_count(checkpoint.text_config) or expert_count(checkpoint.config)
    stacked = {e.prefix: layer.experts for layer in layers if layer.experts is not None and (e := expert_of(layer.name)) is not None}
    for prefix in sorted({*groups, *stacked}):
        by_expert = groups.get(prefix, {})
        count = max(max(by_expert, default=-1) + 1, stacked.get(prefix) or 0)
        if says is not None and says.size != count:
            findings.error(
                "expert-count",
                f"config.json says {says.says}, the tensors of {prefix} hold {count} experts" + _gap(says.size, count),
                layer=prefix,
                file="config.json",
                advice="correct config.json, or export the checkpoint with all its experts",
            )
        _check_router(checkpoint, prefix, count, findings)
        if prefix in stacked:
            continue
        names = expert_names(family, {leaf for leaves in by_expert.values() for leaf in leaves})
        want = {*names.w13, names.down}
        seen = set().union(*by_expert.values())
        if not family.known and not want <= seen:
            continue  # an unknown spelling: nothing to hold it against
        absent = islice((i for i in range(count) if i not in by_expert), SHOWN)  # a number in a name can be any
        for index in sorted({*by_expert, *absent}):
            lacks = sorted(want - by_expert.get(index, set()))
            if lacks:
                what = "is not in the checkpoint" if len(lacks) == len(want) else f"has no {', '.join(lacks)}"
                findings.error(
                    "expert-missing",
                    f"expert {index} of {prefix} {what}",
                    layer=f"{prefix}.{index}" + (f".{lacks[0]}" if len(lacks) < len(want) else ""),
                    file="config.json",
                    advice="the checkpoint is incomplete: download it again or export it again",
                )


ROUTERS = ("gate", "router")  # beside `experts`: a row for each


def _check_router(checkpoint: Checkpoint, prefix: str, count: int, findings: Findings) -> None:
    """The router has a row for every expert: with fewer some are never asked, with more tokens go nowhere."""
    for leaf in ROUTERS:
        view = checkpoint.tensors.get(f"{prefix.removesuffix('experts')}{leaf}.weight")
        if view is not None and len(view.shape) == 2 and view.dtype in ("F16", "BF16", "F32") and view.shape[0] != count:
            findings.error(
                "router-shape",
                f"{view.name} has {view.shape[0]} rows, {prefix} holds {count} experts",
                layer=prefix,
                tensor=view.name,
                file=view.file.name,
                advice="rows were lost, or the router is another layer's; export the checkpoint again",
            )


def _gap(want: int, have: int) -> str:
    if want <= have:
        return ""
    missing = [str(i) for i in range(have, min(want, have + 3))]
    return f"; experts {', '.join(missing)}{' …' if want - have > 3 else ''} are missing"


def _dims(family: Family, module: str) -> tuple[str, str] | None:
    """The row of Family.dims for a module: `experts.<leaf>`, `<parent>.<leaf>`, or the bare leaf inside a decoder layer's own blocks."""
    if _VISION.search(module) or not re.search(r"(^|\.)layers\.\d+\.", module):
        return None
    expert = expert_of(module)
    if expert is not None:
        return family.dims.get(f"experts.{expert.leaf}")
    parent, _, leaf = module.rpartition(".")
    parent = parent.rpartition(".")[2]
    if parent in ("self_attn", "mlp", "attn"):
        return family.dims.get(leaf)
    return family.dims.get(f"{parent}.{leaf}")


def _check_shapes(checkpoint: Checkpoint, family: Family, shapes: Mapping[str, tuple[int, int]], findings: Findings) -> None:
    """N and K of every matrix that the family's table knows. An intermediate size that is larger everywhere is the author's padding
    (formats.md 13) and only noted."""
    sizes = dimensions(checkpoint.text_config)
    for module, shape in shapes.items():
        row = _dims(family, module)
        for axis, key, size in zip(("N", "K"), row or (), shape):
            want = sizes.get(key)
            if want is None or want.size == size:
                continue
            text = f"{module} has {axis} {size}, config.json says {want.says}"
            if key in ("inter", "moe", "2moe") and size > want.size:
                findings.warning(
                    "shape-config",
                    f"{text}; taken as padding by the author",
                    layer=module,
                    tensor=_tensor(checkpoint, module),
                    file=_file(checkpoint, module),
                    advice="compare with the model's own config.json",
                )
            else:
                findings.error(
                    "shape-config",
                    text,
                    layer=module,
                    tensor=_tensor(checkpoint, module),
                    file=_file(checkpoint, module),
                    advice="config.json and the tensors must agree",
                )


def _tensor(checkpoint: Checkpoint, module: str) -> str | None:
    """The tensor that holds a module's codes, for the finding."""
    names = (*(f"{module}.{leaf}" for leaf in ("qweight", "weight_packed", "weight", "B")), f"{module}_blocks", module)
    return next((name for name in names if name in checkpoint.tensors), None)


def _file(checkpoint: Checkpoint, module: str) -> str | None:
    """The file of a module's codes; config.json, which says that there should be one, if it is nowhere."""
    name = _tensor(checkpoint, module)
    return checkpoint.tensors[name].file.name if name is not None else "config.json"


def _check_fused_shapes(checkpoint: Checkpoint, family: Family, layers: Sequence[StandardLayer], findings: Findings) -> None:
    """Parts that the runtime stacks along N share their input: the same K."""
    groups: dict[str, list[StandardLayer]] = defaultdict(list)
    for layer in layers:
        for fusion in family.fusions:
            at = fusion.of(layer.name)
            if at is not None and expert_of(layer.name) is None:
                groups[f"{at[0]}.{fusion.name}"].append(layer)
    for name, parts in groups.items():
        if len({p.k for p in parts}) > 1:
            told = ", ".join(f"{p.name.rpartition('.')[2]} has K {p.k}" for p in parts)
            findings.error(
                "fused-shapes",
                f"{told}; they share one input",
                layer=name,
                tensor=_tensor(checkpoint, parts[0].name),
                file=_file(checkpoint, parts[0].name),
                advice="export the layer again; one of its parts is another model's or was reshaped",
            )


def check_tied_head(checkpoint: Checkpoint, read: Read | None, findings: Findings) -> None:
    """A head on disk that the config ties to the embedding: kept, and untied in the output if it differs (formats.md D18).

    read: None if data must not be read; then only what headers prove is told.
    """
    if not (checkpoint.text_config.get(TIED) or checkpoint.config.get(TIED)):
        return
    heads = {n.rpartition(".")[2]: v for n, v in checkpoint.tensors.items() if is_lm_head(n.rpartition(".")[0])}
    embedding = next((v for n, v in checkpoint.tensors.items() if n.endswith(".weight") and is_embedding(n.removesuffix(".weight"))), None)
    if not heads or embedding is None:
        return
    head = heads.get("weight")
    alike = head is not None and (head.dtype, head.shape) == (embedding.dtype, embedding.shape)
    if alike and head is not None and (read is None or _same_bytes(read, head, embedding)):
        return
    view = head or next(iter(heads.values()))
    findings.warning(
        "tied-head-differs",
        f"config.json says {TIED}, and {view.name} on disk is not the embedding; the head is kept and the output's config says it is not tied",
        layer=view.name.rpartition(".")[0],
        tensor=view.name,
        file=view.file.name,
    )


def _same_bytes(read: Read, a: TensorView, b: TensorView) -> bool:
    """Row by row, so that no copy of either is made."""
    rows = max(1, (1 << 22) // max(1, a.nbytes // a.shape[0]))
    one, other = read(a).view(np.uint8), read(b).view(np.uint8)
    return all(np.array_equal(one[i : i + rows], other[i : i + rows]) for i in range(0, a.shape[0], rows))
