"""Does the way vLLM is started fit the folder?

In: a folder's common manifest, and how vLLM is started, as a value.  Out: findings; which rank's layers a process reads.
Facts: runtimes.md 3.2 (parallel layouts), 3.4, 3.5; vLLM 0.33.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from humming_convert.findings import Finding, counted
from humming_convert.serve.folder import PackedFolder
from humming_convert.serve.refusals import refusal

LOAD_FORMATS = ("auto", "safetensors", "hf")  # read the files of the index and no others (vLLM 0.33, DefaultModelLoader)
OWN_LOADERS = ("deepseek_v4",)  # their loaders look for names of the makers' files that no packed folder has
ENVIRONMENT = ("VLLM_HUMMING_INPUT_QUANT_CONFIG", "VLLM_HUMMING_ONLINE_QUANT_CONFIG")  # would change what a layer computes


class Deployment(Struct, frozen=True, kw_only=True):
    """One process of vLLM. dtype: `bfloat16` or `float16`.  ep_size: ranks that share the experts, 1 without expert parallelism.
    quantized_online: the quantization that the user asked for besides the folder's.  environment: names of ENVIRONMENT that are set."""

    dtype: str
    tp_size: int = 1
    tp_rank: int = 0
    ep_size: int = 1
    ep_rank: int = 0
    load_format: str = "auto"
    lora: bool = False
    eplb: bool = False
    quantized_online: str | None = None
    environment: tuple[str, ...] = ()


def deployment_findings(folder: PackedFolder, d: Deployment) -> Iterator[Finding]:
    common = folder.common
    options = common["options"]
    if common["humming"]["entry"] != "vllm" or options.get("fuse") == "none":
        yield refusal("entry", f"packed with --entry {common['humming']['entry']} --fuse {options.get('fuse')}")
    if d.dtype != common["dtype"]:
        yield refusal("dtype", f"packed for {common['dtype']}, vLLM runs {d.dtype}", dtype=common["dtype"])
    yield from _ranks(folder, d)
    if d.load_format not in LOAD_FORMATS:
        yield refusal("load-format", f"--load-format {d.load_format}; {', '.join(LOAD_FORMATS)} read a packed folder")
    if d.lora:
        yield refusal("lora", "LoRA adapters are not supported on packed layers")
    if d.eplb:
        yield refusal("eplb", "packed experts cannot be moved between ranks")
    if d.quantized_online is not None:
        yield refusal("online-quantization", f"{d.quantized_online} is asked for beside the packed layers")
    for name in d.environment:
        yield refusal("input-quant-config", f"{name} is set; the activation of packed layers is fixed", variable=name)


def _ranks(folder: PackedFolder, d: Deployment) -> Iterator[Finding]:
    if folder.tp_size != d.tp_size:
        said = f"packed for {counted(folder.tp_size, 'tensor-parallel rank')}, vLLM runs {d.tp_size}"
        yield refusal("tp-size", said, have=folder.tp_size, want=d.tp_size)
    elif rank_of(folder, d) is None:
        said = f"packed for {_ways(folder.ep_size)}, vLLM runs {_ways(d.ep_size)}"
        yield refusal("ep-size", said, want=d.ep_size)


def _ways(ep_size: int) -> str:
    return "experts on one rank" if ep_size == 1 else f"experts shared out to {ep_size} ranks"


def rank_of(folder: PackedFolder, d: Deployment) -> tuple[int, int] | None:
    """(tp_rank, ep_rank) of the manifest that a process reads, None if no manifest of the folder fits.

    Whole experts (one tensor-parallel rank, experts not shared out) serve any number of expert ranks: each takes its rows.
    """
    if folder.tp_size != d.tp_size:
        return None
    if folder.ep_size == d.ep_size:
        key = (d.tp_rank, d.ep_rank if d.ep_size > 1 else 0)
    elif folder.ep_size == 1 and folder.tp_size == 1:
        key = (0, 0)
    else:
        return None
    return key if key in folder.rank_files else None


def model_findings(model_type: str) -> Iterator[Finding]:
    """model_type: of config.json."""
    if model_type.startswith(OWN_LOADERS):
        yield refusal("own-loader", f"vLLM has a loader of its own for {model_type}", file="config.json")


def kv_cache_findings(scheme: Mapping[str, Any] | None) -> Iterator[Finding]:
    """vLLM loads one static FP8 scale for keys and one for values of a layer; scales of each head, or made while it runs, are not read."""
    if scheme is None:
        return
    wanted = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    differ = [f"{key}: {scheme.get(key)!r}" for key, value in wanted.items() if scheme.get(key, value) != value]
    if differ:
        yield refusal(
            "kv-cache-scheme", f"kv_cache_scheme has {', '.join(differ)}; static FP8 scales of a tensor are read", file="config.json"
        )
