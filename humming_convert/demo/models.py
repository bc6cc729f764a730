"""Small models around the packers: which modules there are, their sizes, config.json, and the folder on disk.

N and K are ragged against the pads of 256 and 128.  In: a packer a module and the quantization config.  Out: `Sample`s.
Facts: formats.md 1, 5.1, 10.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from humming_convert.demo.families import Draw, Packer, mxfp4_bytes
from humming_convert.demo.pack import BF16, Array, Real, nibble_bytes, write_safetensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A checkpoint to be. `name`: the folder's, `<family>-<variant>`; `family`: as in the manifest; `fp8`: 8-bit float activations
    are legal (layouts.md 10).

    meaning: source module -> weight [n, k] as float64, the numbers that went in.  biases: module -> [n].
    shards: number of weight files.  side: other files by name.
    """

    name: str
    family: str
    fp8: bool
    config: Mapping[str, Any]
    tensors: Mapping[str, Array]
    meaning: Mapping[str, Real]
    biases: Mapping[str, Real] = field(default_factory=dict)
    shards: int = 1
    side: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    def write(self, folder: Path) -> Path:
        """Makes `folder`/name; returns it."""
        out = folder / self.name
        out.mkdir(parents=True)
        (out / "config.json").write_text(json.dumps(self.config, indent=2))
        for name, body in self.side.items():
            (out / name).write_text(json.dumps(body, indent=2))
        names = list(self.tensors)
        if self.shards == 1:
            write_safetensors(out / "model.safetensors", self.tensors)
            return out
        index: dict[str, str] = {}
        for i in range(self.shards):
            file = f"model-{i + 1:05}-of-{self.shards:05}.safetensors"
            mine = names[i :: self.shards]
            write_safetensors(out / file, {n: self.tensors[n] for n in mine})
            index |= dict.fromkeys(mine, file)
        body = {"metadata": {"total_size": self.nbytes}, "weight_map": index}
        (out / "model.safetensors.index.json").write_text(json.dumps(body, indent=2))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a small decoder. The defaults are ragged: q + k + v is 320 rows, gate + up 640, K is 192 and 320."""

    hidden: int = 192
    intermediate: int = 320
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    experts: int = 0
    expert_intermediate: int = 96

    def attention(self) -> dict[str, tuple[int, int]]:
        """Module -> (n, k)."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = {"q_proj": (q, self.hidden), "k_proj": (kv, self.hidden), "v_proj": (kv, self.hidden), "o_proj": (self.hidden, q)}
        return {f"model.layers.0.self_attn.{name}": size for name, size in rows.items()}

    def mlp(self) -> dict[str, tuple[int, int]]:
        def three(prefix: str, size: int) -> dict[str, tuple[int, int]]:
            rows = {"gate_proj": (size, self.hidden), "up_proj": (size, self.hidden), "down_proj": (self.hidden, size)}
            return {f"{prefix}.{name}": shape for name, shape in rows.items()}

        if not self.experts:
            return three("model.layers.0.mlp", self.intermediate)
        out: dict[str, tuple[int, int]] = {}
        for e in range(self.experts):
            out |= three(f"model.layers.0.mlp.experts.{e}", self.expert_intermediate)
        return out


RAGGED = Shape()
WHOLE_BLOCKS = Shape(hidden=256, intermediate=384, heads=2, kv_heads=1, head_dim=128)
"""Every part is a multiple of 128 rows and columns."""
LARGER = Shape(hidden=1088, intermediate=2112)
"""gate + up has 4.6 million codes; 1088 and 2112 are no multiples of 128."""


def model_config(model_type: str, architecture: str, shape: Shape, dtype: str, quantization: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": dtype,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "quantization_config": dict(quantization),
    }
    if model_type == "qwen3_moe":
        config |= {"num_experts": shape.experts, "num_experts_per_tok": 2, "moe_intermediate_size": shape.expert_intermediate}
    if model_type == "gpt_oss":
        config |= {"num_local_experts": shape.experts, "num_experts_per_tok": 2, "intermediate_size": shape.expert_intermediate}
    return config


def dense_tensors(draw: Draw, model_type: str, shape: Shape) -> dict[str, Array]:
    """The tensors of a model that nobody quantizes: embedding, norms, router, biases are added elsewhere."""

    def normal(*size: int) -> Array:
        return np.asarray(draw.rng.normal(0, 0.02, size).astype(BF16))

    layer = "model.layers.0"
    out = {
        "model.embed_tokens.weight": normal(64, shape.hidden),
        f"{layer}.input_layernorm.weight": normal(shape.hidden),
        f"{layer}.post_attention_layernorm.weight": normal(shape.hidden),
        "model.norm.weight": normal(shape.hidden),
    }
    if model_type.startswith("qwen3"):
        out |= {f"{layer}.self_attn.{name}_norm.weight": normal(shape.head_dim) for name in "qk"}
    if model_type == "qwen3_moe":
        out[f"{layer}.mlp.gate.weight"] = normal(shape.experts, shape.hidden)
    return out


def decoder(
    *,
    name: str,
    family: str,
    model_type: str,
    architecture: str,
    packer: Packer,
    quantization: Mapping[str, Any],
    fp8: bool = True,
    others: Mapping[str, Packer] | None = None,
    shape: Shape = RAGGED,
    dtype: str = "bfloat16",
    bias: tuple[str, ...] = (),
    shards: int = 1,
    side: Mapping[str, Any] | None = None,
) -> Sample:
    """A decoder of one layer, every linear packed by `packer`; `others`: leaf name -> packer of its own; `bias`: leaf names that have one."""
    tensors = dense_tensors(Draw(name), model_type, shape)
    meaning: dict[str, Real] = {}
    biases: dict[str, Real] = {}
    for module, (n, k) in (shape.attention() | shape.mlp()).items():
        draw, leaf = Draw(f"{name}/{module}"), module.rpartition(".")[2]
        made, meaning[module] = (others or {}).get(leaf, packer)(draw, n, k)
        tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in made.items()}
        if leaf in bias:
            values = draw.rng.normal(0, 1, n).astype(BF16)
            tensors[f"{module}.bias"], biases[module] = values, values.astype(np.float64)
    return Sample(
        name=name,
        family=family,
        fp8=fp8,
        config=model_config(model_type, architecture, shape, dtype, quantization),
        tensors=tensors,
        meaning=meaning,
        biases=biases,
        shards=shards,
        side=side or {},
    )


def gpt_oss(name: str, shape: Shape | None = None, spread: int = 16) -> Sample:
    """Experts stacked on disk, rows of gate and up in turn. The last expert has scales `spread` powers of two apart; more than 11 are more than E4M3 can hold."""
    shape = shape or Shape(experts=3)
    base, experts, half = "model.layers.0", shape.experts, shape.expert_intermediate
    dense = Draw(name)
    tensors = dense_tensors(dense, "gpt_oss", shape)
    for module, (n, k) in shape.attention().items():
        tensors[f"{module}.weight"] = np.asarray(dense.rng.normal(0, 0.02, (n, k)).astype(BF16))
        tensors[f"{module}.bias"] = np.asarray(dense.rng.normal(0, 0.02, n).astype(BF16))
    tensors[f"{base}.self_attn.sinks"] = np.zeros(shape.heads, BF16)
    tensors[f"{base}.mlp.router.weight"] = np.asarray(dense.rng.normal(0, 0.02, (experts, shape.hidden)).astype(BF16))
    tensors[f"{base}.mlp.router.bias"] = np.zeros(experts, BF16)
    meaning: dict[str, Real] = {}
    biases: dict[str, Real] = {}
    for leaf, n, k in (("gate_up_proj", 2 * half, shape.hidden), ("down_proj", shape.hidden, half)):
        blocks, scales, bias = [], [], []
        for e in range(experts):
            part = f"{base}.mlp.experts.{e}.{leaf}"
            draw = Draw(f"{name}/{part}")
            codes, bytes_, meaning[part] = mxfp4_bytes(draw, n, k, spread if e == experts - 1 else 8)
            blocks.append(nibble_bytes(codes).reshape(n, k // 32, 16))
            scales.append(bytes_)
            bias.append(draw.rng.normal(0, 1, n).astype(BF16))
            biases[part] = bias[-1].astype(np.float64)
        stem = f"{base}.mlp.experts.{leaf}"
        tensors |= {f"{stem}_blocks": np.stack(blocks), f"{stem}_scales": np.stack(scales), f"{stem}_bias": np.stack(bias)}
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}
    return Sample(
        name=name,
        family="mxfp4",
        fp8=True,
        config=model_config("gpt_oss", "GptOssForCausalLM", shape, "bfloat16", quantization),
        tensors=tensors,
        meaning=meaning,
        biases=biases,
    )
