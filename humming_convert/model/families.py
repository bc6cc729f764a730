"""Model families as data: what vLLM fuses, how experts are called, where a language model hides, and what its config says of shapes.

In: `model_type` of config.json and module names.  Out: names and groups; no tensors.
Facts: formats.md 10.1 to 10.4, runtimes.md 1.2; vLLM 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct, field


class Fusion(Struct, frozen=True):
    """Siblings that the runtime stacks along N, in this order. `where`: regular expression that the parent's name must contain.

    optional: a model may have the last part alone, which then keeps its own name.
    """

    name: str
    parts: tuple[str, ...]
    where: str = ""
    optional: bool = False

    def of(self, module: str) -> tuple[str, str] | None:
        """(parent, leaf) if a module is a part of this fusion."""
        parent, _, leaf = module.rpartition(".")
        return (parent, leaf) if leaf in self.parts and (not self.where or re.search(self.where, parent)) else None


class ExpertNames(Struct, frozen=True):
    """Leaves of one expert's projections; `gate` None: not gated, w13 is `up` alone."""

    gate: str | None
    up: str
    down: str

    @property
    def w13(self) -> tuple[str, ...]:
        return (self.gate, self.up) if self.gate else (self.up,)


GATE_UP_DOWN = ExpertNames("gate_proj", "up_proj", "down_proj")
W1_W3_W2 = ExpertNames("w1", "w3", "w2")
UP_DOWN = ExpertNames(None, "up_proj", "down_proj")

QKV = Fusion("qkv_proj", ("q_proj", "k_proj", "v_proj"))
GATE_UP = Fusion("gate_up_proj", ("gate_proj", "up_proj"))
QKV_A = Fusion("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa"), optional=True)
DENSE = (QKV, GATE_UP)

# formats.md 10.4, 2: siblings that a reader of an unknown family is likely to fuse
GENERIC = (
    *DENSE,
    Fusion("qkv", ("q", "k", "v")),
    Fusion("gate_up", ("gate", "up")),
    Fusion("w13", ("w1", "w3")),
    QKV_A,
)

# gated MLPs and plain ones: the rows of the producers may be permuted for the consumer (formats.md 2.8)
ACT_ORDER_PRODUCERS: Mapping[str, tuple[str, ...]] = {
    "down_proj": ("gate_proj", "up_proj"),
    "w2": ("w1", "w3"),
    "fc2": ("fc1",),
    "dense_4h_to_h": ("dense_h_to_4h",),
}


class Family(Struct, frozen=True, kw_only=True):
    """One row. `vllm`: ordered prefix renames of vLLM's modules, None where they are not known, () where the names are the checkpoint's.

    `inside`: renames of vLLM inside a name.  ignore_renames: more of them, matched as well where a module is to be left unquantized.
    own_loader: (module pattern, why) of modules that stock vLLM loads by code of this family alone, which takes no standard form.
    dims: leaf -> (N, K) as keys of `dimensions`; () for unknown.
    """

    types: tuple[str, ...]
    fusions: tuple[Fusion, ...] = DENSE
    experts: tuple[ExpertNames, ...] = (GATE_UP_DOWN,)
    vllm: tuple[tuple[str, str], ...] | None = ()
    inside: tuple[tuple[str, str], ...] = ()
    ignore_renames: tuple[tuple[str, str], ...] = ()
    own_loader: tuple[tuple[str, str], ...] = ()
    dims: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    known: bool = True


ATTENTION = {"q_proj": ("heads", "hidden"), "k_proj": ("kv", "hidden"), "v_proj": ("kv", "hidden"), "o_proj": ("hidden", "heads")}
MLP = {"gate_proj": ("inter", "hidden"), "up_proj": ("inter", "hidden"), "down_proj": ("hidden", "inter")}
EXPERTS = {
    **{f"experts.{leaf}": ("moe", "hidden") for leaf in ("gate_proj", "up_proj", "w1", "w3")},
    **{f"experts.{leaf}": ("hidden", "moe") for leaf in ("down_proj", "w2")},
    "experts.gate_up_proj": ("2moe", "hidden"),
}
SHARED = {
    "shared_expert.gate_proj": ("shared", "hidden"),
    "shared_expert.up_proj": ("shared", "hidden"),
    "shared_expert.down_proj": ("hidden", "shared"),
}
MLA = {
    "q_a_proj": ("q_lora", "hidden"),
    "kv_a_proj_with_mqa": ("kv_lora_rope", "hidden"),
    "q_b_proj": ("mla_q", "q_lora"),
    "kv_b_proj": ("mla_kv", "kv_lora"),
    "o_proj": ("hidden", "mla_o"),
}
LLAMA = {**ATTENTION, **MLP, **EXPERTS}

# formats.md 10.3
NESTED = (
    ("model.language_model.", "language_model.model."),
    ("language_model.model.", "language_model.model."),
    ("model.visual.", "visual."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("visual.", "visual."),
    ("vision_tower.", "vision_tower."),
    ("lm_head.", "language_model.lm_head."),
    ("model.layers.", "language_model.model.layers."),
    ("model.embed_tokens.", "language_model.model.embed_tokens."),
    ("model.norm.", "language_model.model.norm."),
)
TEXT_ONLY = (("model.language_model.", "model."), ("model.visual.", "visual."), ("lm_head.", "lm_head."), ("model.", "model."))

FAMILIES: tuple[Family, ...] = (
    Family(types=("llama", "mistral", "qwen2", "qwen3", "gemma2"), dims=LLAMA),
    Family(
        types=("gemma", "granite", "phi3", "glm4", "gemma3_text"), dims={**MLP, **{k: v for k, v in ATTENTION.items() if k != "o_proj"}}
    ),
    Family(types=("qwen2_moe",), dims={**LLAMA, **SHARED}),
    Family(types=("qwen3_moe",), dims=LLAMA),
    Family(types=("mixtral",), experts=(W1_W3_W2, GATE_UP_DOWN), dims=LLAMA),
    Family(
        types=("gpt_oss",),
        ignore_renames=((".self_attn.", ".attn."),),
        own_loader=((r"\.experts\.", "gpt-oss has a loader of its own"),),
        dims=LLAMA,
    ),
    Family(types=("glm4_moe", "ernie4_5_moe"), dims=EXPERTS),
    Family(types=("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"), fusions=(*DENSE, QKV_A), dims={**MLA, **MLP, **EXPERTS}),
    Family(
        types=("deepseek_v4",),
        fusions=(Fusion("fused_wqa_wkv", ("wq_a", "wkv")), Fusion("gate_up_proj", ("w1", "w3"), where="shared_experts$")),
        experts=(W1_W3_W2,),
        vllm=(("layers.", "model.layers."), ("mtp.", "model.mtp."), ("model.", "model.")),
        inside=((".shared_experts.w2", ".shared_experts.down_proj"),),
        # vLLM 0.33 models/deepseek_v4: E8M0 scales of experts are handed on as uint8, wo_a is multiplied past its quantization method,
        # and on some platforms weight_scale is renamed to weight_scale_inv
        own_loader=(("", "DeepSeek V4 has a loader of its own, for its own scales"),),
    ),
    Family(types=("internlm2",), fusions=(*DENSE, Fusion("gate_up_proj", ("w1", "w3"), where="feed_forward$"))),
    Family(types=("minimax", "minimax_m2", "phimoe"), experts=(W1_W3_W2, GATE_UP_DOWN)),
    Family(types=("qwen3_next",)),
    Family(types=("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "mistral3", "gemma3", "glm4v"), vllm=NESTED, dims={**ATTENTION, **MLP}),
    Family(types=("qwen3_vl_moe", "glm4v_moe"), vllm=NESTED, dims={**ATTENTION, **EXPERTS}),
    Family(types=("qwen3_5", "qwen3_5_moe"), vllm=TEXT_ONLY),
    Family(types=("nemotron_h",), fusions=(QKV,), experts=(UP_DOWN,), vllm=None),
)
UNKNOWN = Family(types=(), fusions=GENERIC, experts=(GATE_UP_DOWN, W1_W3_W2), vllm=None, known=False)


def family_of(model_type: str) -> Family:
    """The row of a model type; UNKNOWN (generic groups, formats.md 10.4) if there is none. A text part's type (`…_text`) is its model's."""
    short = model_type.removesuffix("_text")
    return next((f for f in FAMILIES if model_type in f.types), None) or next((f for f in FAMILIES if short in f.types), UNKNOWN)


# ------------------------------------------------------------------ experts
class ExpertModule(Struct, frozen=True):
    """`<prefix>.<index>.<leaf>`, prefix ending in `experts`; index None: all experts in one tensor."""

    prefix: str
    index: int | None
    leaf: str


_EXPERT = re.compile(r"(.*\bexperts)(?:\.(\d+))?\.([^.]+)")
STACKED = {"gate_up_proj": "w13", "w13": "w13", "down_proj": "w2", "w2": "w2"}


@lru_cache(maxsize=1 << 17)  # asked several times a module, of which there can be 25,000
def expert_of(module: str) -> ExpertModule | None:
    """Where a module stands among experts, None if it is none. `shared_experts.up_proj` is a linear layer."""
    m = _EXPERT.fullmatch(module)
    if m is None or (m[2] is None and (m[1].rpartition(".")[2] != "experts" or m[3] not in STACKED)):
        return None
    if m[1].rpartition(".")[2] != "experts":
        return None
    return ExpertModule(m[1], None if m[2] is None else int(m[2]), m[3])


def expert_names(family: Family, leaves: Iterable[str]) -> ExpertNames:
    """Which of the family's spellings a set of leaves uses; the first if it is undecided."""
    found = set(leaves)
    return max(family.experts, key=lambda names: len(found & {*names.w13, names.down}))


# ------------------------------------------------------------------ vLLM's names
def fused_name(family: Family, module: str) -> str:
    """The module's name with vLLM's fused leaf: part of a linear fusion -> fused; anything of experts -> `<…>.experts`."""
    expert = expert_of(module)
    if expert is not None:
        return expert.prefix
    for fusion in family.fusions:
        at = fusion.of(module)
        if at is not None:
            return f"{at[0]}.{fusion.name}" if at[0] else fusion.name
    return module


def vllm_name(family: Family, module: str) -> str | None:
    """The prefix that vLLM 0.33 asks for when it makes this module, None if it is not known (architecture.md 9.4)."""
    return renamed(family, fused_name(family, module))


def renamed(family: Family, name: str) -> str | None:
    """A module's name (fused already) as vLLM spells it."""
    if family.vllm is None:
        return None
    for ours, theirs in family.inside:
        name = name.replace(ours, theirs)
    if not family.vllm:
        return name
    for ours, theirs in family.vllm:
        if f"{name}.".startswith(ours):
            return (theirs + f"{name}."[len(ours) :]).removesuffix(".")
    return None


def own_loader(family: Family, module: str) -> str | None:
    """Why stock vLLM reads a module by the family's own code, None if it does not."""
    return next((why for pattern, why in family.own_loader if re.search(pattern, module)), None)


# ------------------------------------------------------------------ shapes by config.json
_NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size",),
    "inter": ("intermediate_size",),
    "moe": ("moe_intermediate_size", "intermediate_size"),
    "shared": ("shared_expert_intermediate_size",),
    "q_lora": ("q_lora_rank",),
    "kv_lora": ("kv_lora_rank",),
}
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


class Dimension(Struct, frozen=True):
    """A size that config.json states; `says`: its keys and values, for messages."""

    size: int
    says: str


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def dimensions(config: Mapping[str, Any]) -> dict[str, Dimension]:
    """The sizes that the language model's config states, by the keys of Family.dims; what it does not state is left out."""
    out: dict[str, Dimension] = {}
    for name, keys in _NAMES.items():
        for key in keys:
            value = _number(config, key)
            if value is not None:
                out[name] = Dimension(value, f"{key} {value}")
                break
    if "moe" in out:
        out["2moe"] = Dimension(2 * out["moe"].size, f"2 x {out['moe'].says}")
    heads, kv, head = _number(config, "num_attention_heads"), _number(config, "num_key_value_heads"), _number(config, "head_dim")
    hidden = _number(config, "hidden_size")
    if head is None and heads is not None and hidden is not None and hidden % heads == 0:
        head = hidden // heads
    if heads is not None and head is not None:
        out["heads"] = Dimension(heads * head, f"num_attention_heads {heads} x head_dim {head}")
        kv = heads if kv is None else kv
        out["kv"] = Dimension(kv * head, f"num_key_value_heads {kv} x head_dim {head}")
    nope, rope, value_dim = (_number(config, k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    kv_lora = _number(config, "kv_lora_rank")
    if heads is not None and nope is not None and rope is not None and value_dim is not None:
        out["mla_q"] = Dimension(heads * (nope + rope), f"num_attention_heads {heads} x (qk_nope {nope} + qk_rope {rope})")
        out["mla_kv"] = Dimension(heads * (nope + value_dim), f"num_attention_heads {heads} x (qk_nope {nope} + v_head_dim {value_dim})")
        out["mla_o"] = Dimension(heads * value_dim, f"num_attention_heads {heads} x v_head_dim {value_dim}")
        if kv_lora is not None:
            out["kv_lora_rope"] = Dimension(kv_lora + rope, f"kv_lora_rank {kv_lora} + qk_rope_head_dim {rope}")
    return out


def expert_count(config: Mapping[str, Any]) -> Dimension | None:
    """How many routed experts config.json states."""
    for key in EXPERT_COUNTS:
        value = _number(config, key)
        if value is not None:
            return Dimension(value, f"{key} {value}")
    return None


def is_lm_head(module: str) -> bool:
    return module.rpartition(".")[2] == "lm_head"


def is_embedding(module: str) -> bool:
    return module.rpartition(".")[2] in ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed")


_ROUTER = re.compile(r"(mlp|block_sparse_moe|ffn|moe)\.(gate|router)$")


def is_router(module: str) -> bool:
    """The matrix that chooses experts; a quantizer run by hand may have quantized it (formats.md 13)."""
    return _ROUTER.search(module) is not None
