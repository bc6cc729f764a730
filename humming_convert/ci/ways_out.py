"""The way out of every rule of a checkpoint and of the Hub, in general; a finding's own advice knows the case and is printed with it.

Out: code -> way out. Rules with one way out stand in one row; a test holds that every rule is here.
Facts: the advice that the findings carry.
"""

from __future__ import annotations

EXPORT = "export the layer again; the tensors or their config are damaged"
CONFIG = "correct the config, or use the config.json that belongs to these weights; the numbers follow the tensors"
FETCH = "fetch or export the file again"

_ROWS: tuple[tuple[str, str], ...] = (
    (FETCH, "json-limit json-encoding json-deep json-invalid json-constant json-duplicate-key json-not-object"),
    (FETCH, "header-short header-length header-limit header-start header-metadata header-entry header-dtype header-shape header-offsets"),
    (FETCH, "header-size header-outside file-truncated header-overlap header-hole file-trailing"),
    ("put the file itself there", "file-kind"),
    ("check its permissions and the disk", "file-unreadable"),
    ("give the folder that holds config.json and the weights", "not-a-checkpoint"),
    ("give a folder with safetensors files; convert pickle files to safetensors first", "no-weights weights-pickle"),
    ("fetch or export the index again; with one weight file none is needed", "index-map index-file-name"),
    ("fetch the missing files", "shard-missing"),
    ("the download may be incomplete; fetch the file again, or export the layer again", "tensor-missing"),
    ("remove the file that is stale", "tensor-twice tensor-ambiguous"),
    ("fetch or export the index again, if the tensor is needed", "tensor-unlisted"),
    ("write the quantizer's config there, or remove the key", "config-section"),
    ("correct `dtype` in config.json, or decide with --dtype", "dtype-unknown dtype-undecided dtype-contradiction"),
    ("rename or mend the file, if it is needed", "file-not-copied file-name"),
    # which format
    ("`humming-convert formats` lists what is read and what is refused, and why", "method-unknown method-refused ct-format-unknown"),
    ("`humming-convert formats` lists what is read and what is refused, and why", "algo-unknown algo-refused format-unknown"),
    (
        "a tensor may be missing, the config another's, or the format is not read: `humming-convert formats`",
        "module-unknown tensor-unknown",
    ),
    (
        CONFIG,
        "method-lies gptq-format-lies bits-lie sym-lies awq-version-lies ct-bits-lie ct-format-lies ct-symmetric-lies weight-shape-lies",
    ),
    ("use the config.json that belongs to these weights", "algo-lies"),
    (CONFIG, "configs-disagree group-size-lies block-size-lies fp8-fmt-lies ignored-quantized listed-plain algo-not-listed"),
    (CONFIG, "listed-not-quantized ct-group-unused ct-group-none input-scale-unasked"),
    ("correct one of the configs, or remove the side file", "config-contradiction"),
    ("correct the entry of the config that the message names", "config-value config-invalid ct-config-invalid dynamic-pattern entry-regex"),
    (
        "correct the entry of the config that the message names",
        "humming-dtype humming-scale-2 humming-block humming-regex humming-zero-point",
    ),
    ("correct the entry of the config that the message names", "humming-alias fp8-scheme-unknown"),
    ("quantize or export the model again without it", "config-unsupported ct-transform ct-sparsity humming-hadamard pre-quant-scale"),
    ("put the right width or group size into the config", "bits-open awq-gemv-groups fp8-block-unknown block-size-guessed"),
    ("the width, groups and zero points come from the shapes and the data: check them", "no-config"),
    ("give a quantized checkpoint; a model in 16 bits has to be quantized first", "nothing-quantized"),
    ("remove the adapter, or merge it before quantizing", "adapter-inside"),
    # what is stored in a way that no layout takes
    ("quantize again with the embedding left in 16 bits", "embedding-quantized"),
    ("quantize again with 4 bits", "awq-width"),
    ("quantize with AutoAWQ or GPTQModel, version gemm, in 32-bit words", "llm-awq pack-words"),
    ("convert the original GPTQ or AWQ checkpoint", "marlin-form"),
    ("keep the checkpoint that it was made from", "marlin-deprecated"),
    ("export as pack-quantized or int-quantized compressed-tensors", "ct-format-refused int8-method"),
    ("export as MXFP4, or as compressed-tensors", "quark-variant"),
    ("convert the weights to float8_e4m3fn first", "fp8-fnuz"),
    ("quantize again with a group size of 32, 64 or 128 that divides K", "group-too-small"),
    ("no runtime reads such a layer: quantize again with whole words a row", "row-not-whole-words"),
    ("export the experts one by one", "experts-orientation"),
    ("choose an activation with --act", "input-unsupported"),
    (EXPORT, "planar-ragged awq-padding awq-zero-fraction ct-words ct-g-idx g-idx-range g-idx-groups mxfp4-scale-columns"),
    (EXPORT, "tensor-shape tensor-dtype"),
    (EXPORT, "scale-nonfinite scale-not-positive scale-signed weight-nan scale-all-zero code-range high-bits zero-point-unsigned"),
    (EXPORT, "e8m0-as-number scale-huge"),
    ("compare a few outputs with the source model", "weight-all-zero scale-zero-groups padding-not-zero weight-implausible g-idx-zero"),
    (
        "compare a few outputs with the source model",
        "unverified-variant zeros-constant zeros-empty zeros-mixed tied-head-differs scale-all-negative",
    ),
    ("--e8m0-nan zero-group lets it pass where all codes of the group are zero; else export the layer again", "e8m0-nan"),
    # zero points
    ("--gptq-zeros v1 or --gptq-zeros v2 decides; a wrong choice shifts every weight by one step", "zeros-label zeros-unproved"),
    ("--gptq-zeros v1 or --gptq-zeros v2 decides; a wrong choice shifts every weight by one step", "zeros-unmeasured"),
    ("--gptq-wrap word or --gptq-wrap field decides how they are read", "zeros-wrap zeros-wrapped"),
    ("export again with GPTQModel 7.7 or later", "zeros-damaged"),
    ("correct checkpoint_format: gptq_p means split planes, gptq and gptq_v2 continuous codes", "planar-label"),
    ("export again with a version that writes the zero points, or correct `symmetric`", "ct-zero-point-missing"),
    ("plan without --headers-only", "question-open"),
    # the model
    ("the checkpoint is incomplete: fetch it again or export it again", "part-missing expert-missing layer-missing"),
    ("config.json and the tensors must agree: correct it, or export the checkpoint again", "expert-count shape-config"),
    ("rows or columns were lost, or a tensor is another layer's: export the layer again", "fused-shapes mlp-shapes router-shape"),
    ("rows or columns were lost, or a tensor is another layer's: export the layer again", "matrix-stacked bias-missing"),
    ("none is needed where the runtime ignores it; else export again without it", "bias-zero bias-unexpected"),
    ("remove the stale tensors, or export the checkpoint again", "fused-twice"),
    ("--on-desc-act dequantize writes such layers in the model dtype, --on-desc-act requant quantizes them again", "act-order"),
    ("--on-mixed dequantize writes the layer in the model dtype, --on-mixed unfuse keeps its parts apart", "parts-differ part-unquantized"),
    ("--dtype bf16 holds them where fp16 does not; else export the layer again", "scale-overflow scale-vanished"),
    ("--qkv-layout plain or chunked, as the model's publisher says", "qkv-layout"),
    # the Hub
    ("check the spelling; log in with `hf auth login` or set HF_TOKEN for a private model", "hub-not-found hub-revision"),
    ("ask for access on the model's page, then log in with `hf auth login` or set HF_TOKEN", "hub-gated hub-denied"),
    ("wait some minutes: the same command goes on with what was fetched", "hub-rate-limit hub-failed"),
    ("check the network, HF_ENDPOINT and proxies; with HF_HUB_OFFLINE=1 only the cache is used", "hub-unreachable"),
    ("run once without HF_HUB_OFFLINE, or `hf download` the model", "hub-offline hub-unlisted"),
    ("ask for another revision, or `hf download` the model and convert the folder", "hub-file-missing hub-ranges"),
    ("run the same command again; if it stays, something between here and the Hub changes files", "hub-file-damaged"),
    ("free some space, move the cache (HF_HOME), or use --stream", "hub-no-space"),
    ("wait for the other run, or run without --stream", "hub-in-use"),
    ("org/name@main names the model of the Hub", "hub-or-folder"),
    ("convert again; only a whole folder is published", "push-folder"),
    ("look at the licence; --yes takes the responsibility", "push-license"),
    ("choose another --branch or --subfolder, or an empty repository", "push-target"),
    ("run the same command again: nothing is uploaded twice", "push-raced push-held"),
    ("convert again with another --shard-size", "push-limits"),
    ("leave out --private, or make the repository private on its page", "push-private"),
)

WAYS_OUT: dict[str, str] = {code: way for way, codes in _ROWS for code in codes.split()}
