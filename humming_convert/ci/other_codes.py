"""Codes of findings that are neither rules nor refusals of a target or of a loader.

Out: rows in the order of a run. A code that a rule or a refusal has too stands here where its meaning is another one.
Facts: the places that give them.
"""

from __future__ import annotations

from humming_convert.findings import Code, Giver, Severity

AGAIN = "convert again"
RESUME = "run the same command again: it goes on where it stopped"


def _rows(given_by: Giver, *rows: tuple[str, Severity, str, str]) -> tuple[Code, ...]:
    return tuple(Code(code, severity, given_by, when, way_out) for code, severity, when, way_out in rows)


REQUEST = _rows(
    "request",
    ("usage", "error", "an option, a target or a path is not one that there is, or options contradict each other", "`humming-convert VERB --help`"),
    ("out-exists", "error", "the output folder holds something else", "choose another --out, or --overwrite replaces it"),
    ("out-overlaps", "error", "the output folder is, holds or lies inside the model's", "name a folder beside the model"),
    ("refused", "error", "the request cannot be carried out", "the message says why"),
    ("act-illegal", "error", "no kernel of the target takes a layer with the activation that was asked for", "choose one of the activations that the message lists; --act-fallback lets such layers fall back"),
    ("act-fallback", "note", "a layer falls back to another activation", "none is needed; `targets --check` explains the choice"),
    ("input-scale-missing", "error", "--act X:static was asked for, and some parts have no static input scale", "use the activation without `:static`, or --missing-input-scale max"),
    ("input-scale-dropped", "note", "static input scales are not written, since the activation is scaled as it comes", "none is needed; --act X:static keeps them"),
    ("parallel-cut", "error", "a layer cannot be cut for so many ranks", "use fewer ranks; `plan --json` has `max_tp` for every layer"),
    ("parallel-unverified", "warning", "layers of an unknown architecture are cut by their last names", "compare with how the runtime shares out the model before the folder is used"),
    ("selection-empty", "error", "--include and --exclude leave nothing to convert", "`humming-convert inspect` lists the layers"),
    ("left-quantized", "warning", "layers that were excluded stay in the source's own format, which no config of the output describes", "use such a folder to look at or to compare, not to serve"),
    ("name-taken", "error", "two tensors of the output would have one name", "remove the stale one from the checkpoint, or exclude one of them"),
    ("unknown-architecture", "note", "the model type is not in the table of families: nothing is fused", "--fuse vllm fuses the groups that the message names"),
    ("dequantized", "warning", "a layer that the runtime cannot load quantized is written in the model dtype", "none is needed; --lm-head keep keeps a head quantized"),
    ("act-order-folded", "note", "columns in act-order were folded into the rows of the layers before", "none is needed: the numbers are the same"),
    ("e8m0-spread", "warning", "E8M0 scales of one row lie further apart than the library's codes can say", "use 16-bit activations for this layer, or quantize it again"),
    ("kernel-may-refuse", "warning", "the bytes can be made, but a kernel of the library may not run them", "choose another activation, or a newer CUDA compiler where the message names one"),
    ("lossy-step", "error", "--strict, and a step changed a value", "leave out --strict; --dtype and --scale-dtype can avoid casts"),
    ("dtype-float32", "note", "the model dtype is float32, which no kernel runs: bfloat16 is used, unless --dtype says float16", "--dtype decides by hand"),
    ("dtype-float64", "note", "the model dtype is float64, which no kernel runs: bfloat16 is used, unless --dtype says float16", "--dtype decides by hand"),
    ("vllm-cannot-load", "warning", "stock vLLM cannot load a layer of the standard form", "convert with --target, or load the folder with humming_convert"),
    ("kv-scales-unread", "warning", "stock vLLM does not read the scales of the KV cache from the standard form", "convert with --target if the KV cache is to use them"),
    ("weights-not-read", "note", "the folder holds weight files that nothing reads", "none is needed"),
    ("folder-not-copied", "note", "a folder beside the weights is not copied", "copy it by hand if it is needed"),
)  # fmt: skip

CHECKS = _rows(
    "check",
    ("no-manifest", "error", "a folder has no manifest that can be read", "name a folder that `convert` finished"),
    ("manifest-damaged", "error", "a manifest is no JSON, lacks a part, or is not what its digest says", AGAIN),
    ("manifest-newer", "error", "the manifest has a format version that this version does not read", "install a newer humming-convert"),
    ("humming-unknown", "error", "`recheck` of a folder that was made for a humming-kernels whose rules are not known", "ask the humming-convert that made it, or convert again"),
    ("file-missing", "error", "a file that the manifest lists is not there, or something else stands in its place", AGAIN),
    ("file-unknown", "error", "a file is not in the manifest", "remove it, or convert again"),
    ("tensor-missing", "error", "a tensor of the manifest is not in its file", AGAIN),
    ("tensor-differs", "error", "a tensor has another type, shape or place than in the manifest", AGAIN),
    ("digest-differs", "error", "the bytes of a tensor or of a file are not those that were written", AGAIN),
    ("name-outside", "error", "the manifest names a file that is not inside the folder", AGAIN),
    ("options-unknown", "error", "the manifest holds options that this version does not know", "verify with the version that the manifest names"),
    ("fingerprint-differs", "error", "the source is not the one that the folder was made from", "name the source that it was made from, or convert again"),
    ("passthrough-differs", "error", "a tensor that is copied differs from the source's", AGAIN),
    ("proof-failed", "error", "what was written does not read back as the source's codes and scales", "run again; if it stays, report it: nothing was published"),
    ("check-failed", "error", "what was written is not whole", "run again; if it stays, report it: nothing was published"),
    ("gpu-wrong-result", "error", "a layer's product on the GPU differs from float64", "convert this layer again and verify with --source; if it stays, report it"),
    ("gpu-unknown-layer", "error", "a layer of the manifest is none that the kernels know", "verify with the version that the manifest names, or convert again"),
    ("kernels-damaged", "error", "the kernels that a folder ships are not those that were built", "humming-convert kernels build OUT makes them again"),
    ("tuning-damaged", "error", "the folder's tuning file is none; loading leaves it aside", "humming-convert tune OUT makes it again"),
    ("tune-no-kernel", "warning", "a candidate of `tune` does not compile; it is left out", "report it; the others are measured, and the heuristics' choice is one of them"),
    ("tune-wrong-result", "error", "a candidate of `tune` gives other results than it may; it is not taken", "report it; humming-convert verify OUT --gpu --kernels chosen checks what loading would take"),
    ("bench-wrong-result", "error", "a product that `bench` timed differs from float64 at the places that were compared", "humming-convert verify OUT --gpu checks every weight; if that passes, report it"),
    ("not-packed", "error", "the folder is in the standard form, which no kernel reads", "convert with --target"),
    ("standard-form", "note", "the folder is in the standard form: every version of the library packs it by itself", "none is needed"),
    ("version-reads-otherwise", "error", "another version of the library reads a stored configuration otherwise", "convert with --humming-version of the one that will serve"),
    ("version-makes-other-bytes", "note", "another version of the library would make other bytes, and reads these", "none is needed"),
)  # fmt: skip

MACHINE = _rows(
    "machine",
    ("source-changed", "error", "the source's files changed while they were read", "leave the source alone and run the same command again"),
    ("source-unreadable", "error", "a file of the source could not be read", "check the disk or the mount; " + RESUME),
    ("no-space", "error", "the output does not fit on its disk", "free some space, or choose another --out"),
    ("lock-held", "error", "another run writes the same folder", "wait for it, or choose another --out"),
    ("parts-missing", "error", "`merge` was called before all parts of a split run were written", "write the parts that the message names, then merge"),
    ("missing-extra", "error", "a package that the option needs is not installed", "the message has the line that installs it"),
    ("no-gpu", "error", "there is no GPU that can be used", "`humming-convert doctor` says what is missing"),
    ("kernel-compile", "error", "a kernel could not be compiled", "`humming-convert doctor` says what is missing"),
    ("out-of-memory", "error", "there was not enough memory", "a lower --max-memory or fewer --jobs need less"),
    ("environment", "error", "the system refused a call: a full disk, a permission, a limit", "the message says which and what to do; " + RESUME),
    ("hub", "error", "the Hub did not give, or did not take, what was asked", "the message says why; " + RESUME),
    ("interrupted", "error", "SIGINT came", RESUME),
    ("terminated", "error", "SIGTERM came", RESUME),
    ("internal-error", "error", "a fault of this program", "report it with the command and the output of `humming-convert --version`"),
)  # fmt: skip

OTHER_CODES = (*REQUEST, *CHECKS, *MACHINE)
