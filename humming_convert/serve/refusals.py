"""Why a packed folder is not loaded, as data: every code, when it is given, and what to do about it.

In: a code and the facts of the case.  Out: a Finding. `docs/serving.md` prints the table.
Facts: runtimes.md 3.4, 3.5.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from humming_convert.findings import Finding

FETCH = "fetch the folder again, or convert again"
STANDARD = "convert with --standard, which vLLM packs by itself"


class Refusal(Struct, frozen=True):
    """`who`: folder, machine, vllm or layer. `advice` may name facts of the case in braces."""

    code: str
    who: str
    when: str
    advice: str


REFUSALS: tuple[Refusal, ...] = (
    # ---------------------------------------------------------------- the folder
    Refusal("no-manifest", "folder", "there is no manifest", "name a folder that `convert` finished"),
    Refusal("manifest-damaged", "folder", "the manifest is no JSON, lacks a part, or is not what its digest says", FETCH),
    Refusal(
        "manifest-newer", "folder", "the manifest has a format version that this version does not read", "install a newer humming-convert"
    ),
    Refusal(
        "not-packed", "folder", "the folder is in the standard form", "serve it as it is: stock vLLM reads it; or convert with --target"
    ),
    Refusal("no-rank", "folder", "the folder has no such rank", "ranks count from 0; `parallel` of the manifest says how many there are"),
    Refusal("name-outside", "folder", "the manifest names a file that is not inside the folder", FETCH),
    Refusal("file-missing", "folder", "a file of the manifest is not there", FETCH),
    Refusal("tensor-missing", "folder", "a tensor of the manifest is not in its file", FETCH),
    Refusal("tensor-dtype", "folder", "a tensor has another type than in the manifest", FETCH),
    Refusal("tensor-shape", "folder", "a tensor has another shape than in the manifest", FETCH),
    # ---------------------------------------------------------------- the machine
    Refusal("sm-differs", "machine", "the GPU is not the one that the layers are packed for", "convert again with --target {target}"),
    Refusal("humming-missing", "machine", "humming-kernels is not installed", "python -m pip install humming-kernels=={accepted}"),
    Refusal(
        "humming-version",
        "machine",
        "the installed humming-kernels is not among the versions that read these layers the same way",
        "install humming-kernels {accepted}, or convert again with --humming-version {installed}",
    ),
    Refusal(
        "compiler-class",
        "machine",
        "the library would read the bytes otherwise, because of the CUDA compiler or of cubin patching",
        "convert again with --cuda-compiler-version {compiler} and, where HUMMING_DISABLE_PATCH_CUBIN=1 is set, --no-cubin-patch",
    ),
    Refusal(
        "flag-differs",
        "machine",
        "the library reads the stored configuration otherwise than it was written",
        "convert again with the installed version, and say so if the version is among the accepted ones",
    ),
    # ---------------------------------------------------------------- how vLLM is started
    Refusal("vllm-version", "vllm", "the plugin was not tested with the installed vLLM", "install vLLM {tested}, or " + STANDARD),
    Refusal("vllm-interface", "vllm", "the installed vLLM lacks a name that the plugin uses", "install vLLM {tested}, or " + STANDARD),
    Refusal(
        "own-loader",
        "vllm",
        "vLLM loads models of this type by code of its own, which reads the files of their makers alone",
        "serve the source; vLLM may pack it by itself",
    ),
    Refusal("entry", "vllm", "the layers are not packed as vLLM asks for them", "convert again with --entry vllm and --fuse vllm"),
    Refusal("dtype", "vllm", "vLLM runs the model in another type than the layers give", "start vLLM with --dtype {dtype}"),
    Refusal(
        "tp-size",
        "vllm",
        "vLLM runs on another number of tensor-parallel ranks than the folder has",
        "start vLLM with --tensor-parallel-size {have}, or convert again with --tp {want}",
    ),
    Refusal(
        "ep-size",
        "vllm",
        "the folder does not hold the experts as vLLM shares them out",
        "convert again with --ep {want} (1: without --enable-expert-parallel)",
    ),
    Refusal("load-format", "vllm", "a load format that does not read the files of the index", "start vLLM with --load-format auto"),
    Refusal("lora", "vllm", "LoRA adapters are asked for", "merge the adapter before converting, or " + STANDARD),
    Refusal("eplb", "vllm", "experts are to be balanced while vLLM runs", "start vLLM without --enable-eplb"),
    Refusal("online-quantization", "vllm", "vLLM is asked to quantize the model again", "leave out the quantization that was asked for"),
    Refusal(
        "input-quant-config",
        "vllm",
        "the environment asks for another activation",
        "unset {variable}; the activation is decided by `convert --act`",
    ),
    Refusal("kv-cache-scheme", "vllm", "the KV cache scales are of a kind that is not read", "remove kv_cache_scheme from config.json"),
    Refusal("reload", "vllm", "the weights are to be loaded a second time", "start vLLM anew; packed layers cannot be updated in place"),
    # ---------------------------------------------------------------- a layer
    Refusal(
        "layer-apart", "layer", "vLLM makes one module of what the folder keeps apart", "convert again with --fuse vllm, without unfuse"
    ),
    Refusal("layer-incomplete", "layer", "the folder has only one of w13 and w2", FETCH),
    Refusal(
        "layer-kind", "layer", "vLLM has another kind of module under this name", "convert again with --lm-head dequantize, or " + STANDARD
    ),
    Refusal(
        "layer-shape", "layer", "vLLM wants other rows or columns than the layer has", "serve the config.json of the folder, with its ranks"
    ),
    Refusal("layer-dtype", "layer", "vLLM wants another type than the layer gives", "start vLLM with --dtype {dtype}"),
    Refusal("bias", "layer", "vLLM and the folder do not agree on a bias", STANDARD),
    Refusal("row-order", "layer", "the rows of gate and up are not in the order that the activation function reads", STANDARD),
    Refusal("experts", "layer", "the folder does not hold the experts of this rank", "convert again with --ep {want}"),
    Refusal("static-experts", "layer", "experts with static input scales have no path in vLLM", "convert again with a dynamic --act"),
    Refusal("experts-scheme", "layer", "vLLM has no Humming kernel for such experts", STANDARD),
    Refusal("never-loaded", "layer", "an unquantized weight was not filled, or holds NaN", STANDARD),
    Refusal("self-check", "layer", "a product differs from float64", "run `humming-convert verify OUT --gpu`, and report what it says"),
)
BY_CODE = {r.code: r for r in REFUSALS}


def refusal(code: str, message: str, *, layer: str | None = None, file: str | None = None, **facts: Any) -> Finding:
    """An error of REFUSALS. facts: what its advice names in braces."""
    advice = BY_CODE[code].advice.format(**facts)
    return Finding(severity="error", code=code, message=message, layer=layer, file=file, advice=advice)
