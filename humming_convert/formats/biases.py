"""Biases of quantized modules: AutoGPTQ writes zero ones for models that have none.

In: a module's `bias`, the model's config.  Out: the role `bias`, or nothing and a note.
Facts: formats.md D19, 12.58. The table names model types whose biases are known; others keep what is stored.
"""

from __future__ import annotations

import numpy as np

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.findings import Rule
from humming_convert.formats.assemble import Draft

RULES = (
    Rule(225, "bias-zero", "a bias that the architecture does not have and that is zero is dropped", "note"),
    Rule(226, "bias-unexpected", "a bias that is not zero stands where the architecture has one", "warning"),
)

QKV = frozenset({"q_proj", "k_proj", "v_proj"})
ATTENTION = QKV | {"o_proj"}
MLP = frozenset({"gate_proj", "up_proj", "down_proj"})
NONE: frozenset[str] = frozenset()
GPT_OSS = ATTENTION | {"gate_up_proj", "down_proj", "router"}  # attention unless attention_bias is false (formats.md 5.1)

BIASED: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("llama", "mistral", "mistral3", "mixtral", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3", "gemma3_text", "phi3"), NONE
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "olmo2", "granite", "cohere"), NONE),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), QKV),
    "gpt_oss": GPT_OSS,
}
"""model_type -> projections that have a bias, apart from the flags attention_bias and mlp_bias of the config."""


def always_biased(checkpoint: Checkpoint) -> frozenset[str] | None:
    """Projections that every model of this type has a bias for, None if the model type is not known."""
    config = checkpoint.text_config
    known = BIASED.get(str(config.get("model_type") or checkpoint.model_type))
    return known - ATTENTION if known is GPT_OSS and config.get("attention_bias") is False else known


def biased(checkpoint: Checkpoint) -> frozenset[str] | None:
    """Projections of this model that have a bias, None if the model type is not known."""
    config, known = checkpoint.text_config, always_biased(checkpoint)
    if known is None:
        return None
    return known | (ATTENTION if config.get("attention_bias") else NONE) | (MLP if config.get("mlp_bias") else NONE)


def take_bias(draft: Draft, n: int) -> None:
    """The bias [n] of a module, if it has one and needs it. Reads it unless the source is read by headers only."""
    draft.bias(n, None)
    view = draft.used.get("bias")
    expected = biased(draft.source.checkpoint)
    if view is None or not draft.ok or expected is None or draft.module.name.rpartition(".")[2] in expected or draft.source.headers_only:
        return
    where = {"layer": draft.module.name, "tensor": view.name, "file": view.file.name}
    if np.any(np.asarray(draft.source.read(view)).astype(np.float32)):
        draft.source.findings.warning(
            "bias-unexpected",
            "the architecture has no bias here and this one is not zero; it is kept",
            **where,
            advice="the runtime may ignore it",
        )
        return
    del draft.tensors["bias"]
    draft.checks = [c for c in draft.checks if c.view.name != view.name]
    draft.source.findings.note("bias-zero", "the architecture has no bias here and this one is all zero; it is dropped", **where)
