"""CPU seconds of `plan --headers-only` on a generated checkpoint of very many tensors and per-layer settings.

    python benchmarks/plan_headers.py [--layers 64] [--entries 22000] [--profile]

Writes a sparse mixture-of-experts GPTQ checkpoint (64 layers: 99,000 tensors) with an index and `--entries` entries of `dynamic`,
then prints tensors, entries, and CPU and wall seconds of the command. The data are holes: only headers are read.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HIDDEN, EXPERT, EXPERTS, SHARDS = 256, 128, 128, 16


def modules(layer: int) -> dict[str, tuple[int, int]]:
    """name -> N, K"""
    at = f"model.layers.{layer}"
    out = {f"{at}.self_attn.{p}_proj": (HIDDEN, HIDDEN) for p in "qkvo"}
    for e in range(EXPERTS):
        out |= {f"{at}.mlp.experts.{e}.{p}_proj": (EXPERT, HIDDEN) for p in ("gate", "up")}
        out[f"{at}.mlp.experts.{e}.down_proj"] = (HIDDEN, EXPERT)
    return out


def tensors(layer: int) -> dict[str, tuple[str, list[int]]]:
    out: dict[str, tuple[str, list[int]]] = {}
    for name, (n, k) in modules(layer).items():
        out[f"{name}.qweight"] = "I32", [k // 8, n]
        out[f"{name}.qzeros"] = "I32", [k // 128, n // 8]
        out[f"{name}.scales"] = "F16", [k // 128, n]
        out[f"{name}.g_idx"] = "I32", [k]
    for norm in ("input_layernorm", "post_attention_layernorm"):
        out[f"model.layers.{layer}.{norm}.weight"] = "BF16", [HIDDEN]
    out[f"model.layers.{layer}.mlp.gate.weight"] = "BF16", [EXPERTS, HIDDEN]
    return out


def write(folder: Path, layers: int, entries: int) -> int:
    """The checkpoint; returns the number of tensors."""
    shards: list[dict[str, tuple[str, list[int]]]] = [{} for _ in range(SHARDS)]
    shards[0] |= {n: ("BF16", [64, HIDDEN]) for n in ("model.embed_tokens.weight", "lm_head.weight")} | {
        "model.norm.weight": ("BF16", [HIDDEN])
    }
    for layer in range(layers):
        shards[layer * SHARDS // layers] |= tensors(layer)
    index: dict[str, str] = {}
    width = {"I32": 4, "F16": 2, "BF16": 2}
    for number, shard in enumerate(shards):
        name, header, at = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors", {}, 0
        for key, (dtype, shape) in shard.items():
            size = width[dtype]
            for x in shape:
                size *= x
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            index[key] = name
            at += size
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            f.truncate(8 + len(text) + at)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    names = [m for layer in range(layers) for m in modules(layer)][:entries]
    dynamic = {f"+:^{re.escape(n)}$": {"bits": 4, "group_size": 128} for n in names}
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": EXPERT,
        "intermediate_size": EXPERT,
        "num_hidden_layers": layers,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 64,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False, "dynamic": dynamic},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return len(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--entries", type=int, default=22_000)
    parser.add_argument("--profile", action="store_true", help="print the profile of the command")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        count = write(Path(work), args.layers, args.entries)
        command = [sys.executable, *(("-m", "cProfile", "-s", "cumtime") if args.profile else ())]
        command += [str(Path(sys.executable).with_name("humming-convert")), "plan", work, "--target", "sm90", "--act", "bf16"]
        command += ["--headers-only", "--quiet"]
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ, check=False)
        wall = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        if args.profile:
            print(done.stdout.decode()[:9000])
        line = {"tensors": count, "entries": args.entries, "cpu_s": round(used.ru_utime + used.ru_stime, 2), "wall_s": round(wall, 2)}
        print(json.dumps({**line, "exit_code": done.returncode, "peak_mb": used.ru_maxrss // 1024}))


if __name__ == "__main__":
    main()
