"""The configs of a checkpoint: where a quantization config stands, what method it names, which dtype the model has.

In: config.json and the side files of quantizers.  Out: sections, the primary first; a method; differences between sections as values.
Facts: formats.md 1.1, 11 (D1); what a difference means is decided where the tensors are understood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint import rules
from humming_convert.checkpoint.folder import ConfigSection
from humming_convert.checkpoint.rules import broken
from humming_convert.checkpoint.strict_json import read_object
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Finding, Findings

CONFIG = "config.json"

# formats.md 1.1, in order: (file, keys from its top to the section; none: the whole file)
PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (CONFIG, ("quantization_config",)),
    (CONFIG, ("text_config", "quantization_config")),
    (CONFIG, ("llm_config", "quantization_config")),
    (CONFIG, ("language_config", "quantization_config")),
    (CONFIG, ("thinker_config", "text_config", "quantization_config")),
    (CONFIG, ("compression_config",)),
    (CONFIG, ("text_config", "compression_config")),
    ("hf_quant_config.json", ()),
    ("quantize_config.json", ()),
    ("quant_config.json", ()),
)
SIDE_FILES = tuple(file for file, keys in PLACES if not keys)

METHODS = {
    "compressed_tensors": "compressed-tensors",
    "auto_round": "auto-round",
    "intel/auto-round": "auto-round",
    "gptq_marlin": "gptq",
    "auto_gptq": "gptq",
    "gptqmodel": "gptq",
    "awq_marlin": "awq",
    "auto_awq": "awq",
    "modelopt_fp4": "modelopt",
    "modelopt_mxfp8": "modelopt",
    "modelopt_mixed": "modelopt",
}
"""Other spelling -> method (formats.md 1.1)."""

AWQ_VERSIONS = frozenset(("gemm", "gemv", "gemv_fast", "marlin", "llm-awq"))

# config.json's spelling -> safetensors name of the model dtype; float32 models run in bfloat16 (architecture.md 9.1, --dtype)
MODEL_DTYPES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "BF16",
    "bf16": "BF16",
    "fp16": "F16",
    "half": "F16",
    "fp32": "BF16",
    "float": "BF16",
    "float64": "BF16",
    "double": "BF16",
}
DTYPE_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "double": "float64"}
DTYPE_PLACES: tuple[tuple[str, ...], ...] = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"), ())


class Disagreement(Struct, frozen=True, kw_only=True):
    """Two sections say different things: `a` at `place_a` (the primary), `b` at `place_b`. key: method, bits, group_size or quant_algo."""

    place_a: str
    place_b: str
    key: str
    a: Any
    b: Any


def place_of(file: str, keys: Iterable[str]) -> str:
    """As ConfigSection.place: `config.json: quantization_config`, `quantize_config.json`."""
    return ": ".join(filter(None, (file, ".".join(keys))))


def find_sections(folder: Path, config: Mapping[str, Any], findings: Findings) -> tuple[ConfigSection, ...]:
    """The quantization configs of a folder, the primary first. Absent, null and empty ones are none."""
    sections: list[ConfigSection] = []
    for file, keys in PLACES:
        if file == CONFIG:
            body: Any = config
        elif (folder / file).exists() or (folder / file).is_symlink():
            body, found = read_object(folder / file)
            findings.extend(found)
        else:
            continue
        for key in keys:
            body = body.get(key) if isinstance(body, Mapping) else None
        if isinstance(body, Mapping):
            if body:
                sections.append(ConfigSection(place=place_of(file, keys), body=body))
        elif body is not None:
            why = f"{place_of(file, keys)} is {type(body).__name__}, not an object"
            findings.add(broken(rules.CONFIG_SECTION, why, file=file, advice="write the quantizer's config there or remove the key"))
    return tuple(sections)


def normalise_method(section: ConfigSection | Mapping[str, Any] | None) -> str:
    """The method a section names or, if it names none, shows by its keys; "" if neither (formats.md 1.1)."""
    body = section.body if isinstance(section, ConfigSection) else section or {}
    named = body.get("quant_method") or body.get("method")
    if named:
        method = str(named).strip().lower()
        return METHODS.get(method, method)
    producer, nested = body.get("producer"), body.get("quantization")
    if isinstance(producer, Mapping) and str(producer.get("name")).lower() == "modelopt":
        return "modelopt"
    if isinstance(nested, Mapping) and nested.get("quant_algo"):
        return "modelopt"
    if str(body.get("version")).lower() in AWQ_VERSIONS and ("w_bit" in body or "bits" in body):
        return "awq"
    if ("bits" in body or "wbits" in body) and "group_size" in body:
        return "gptq"
    if isinstance(section, ConfigSection) and section.place.endswith("compression_config") and "config_groups" in body:
        return "compressed-tensors"
    return ""


def method_of(sections: Iterable[ConfigSection]) -> str:
    """The method of the primary section; of a secondary one if the primary shows none."""
    return next((m for m in map(normalise_method, sections) if m), "")


def declared(section: ConfigSection) -> dict[str, Any]:
    """What a section says of method, bits, group_size and quant_algo; a key is left out where it says nothing or several things."""
    body = section.body
    nested = body.get("quantization")
    places = [body, nested] if isinstance(nested, Mapping) else [body]
    groups = body.get("config_groups")
    weights = (
        [g["weights"] for g in groups.values() if isinstance(g, Mapping) and isinstance(g.get("weights"), Mapping)]
        if isinstance(groups, Mapping)
        else []
    )
    said = {
        "method": {normalise_method(section)},
        "bits": {_number(p.get(k)) for p in places for k in ("bits", "wbits", "w_bit")} | {_number(w.get("num_bits")) for w in weights},
        "group_size": {_number(p.get(k)) for p in places for k in ("group_size", "q_group_size")}
        | {_number(w.get("group_size")) for w in weights},
        "quant_algo": {str(p.get("quant_algo") or "").upper() for p in places},
    }
    clear = {key: values - {None, ""} for key, values in said.items()}
    return {key: next(iter(values)) for key, values in clear.items() if len(values) == 1}


def disagreements(sections: Iterable[ConfigSection]) -> tuple[Disagreement, ...]:
    """Where a secondary section contradicts the primary (D1). What only one of them says is no contradiction."""
    every = tuple(sections)
    if not every:
        return ()
    primary, *others = every
    said = declared(primary)
    found: list[Disagreement] = []
    for other in others:
        for key, b in declared(other).items():
            if key in said and said[key] != b:
                found.append(Disagreement(place_a=primary.place, place_b=other.place, key=key, a=said[key], b=b))
    return tuple(found)


def model_dtype(config: Mapping[str, Any], tensors: Iterable[TensorView], findings: Findings) -> tuple[str, str | None]:
    """(safetensors name, as written). The text model's comes first. Where none is named the weights that are not quantized decide."""
    written = _written_dtype(config, findings)
    known = MODEL_DTYPES.get(written.lower().removeprefix("torch.")) if isinstance(written, str) else None
    if known is not None:
        return known, str(written)
    floats = {v.dtype for v in tensors if v.name.endswith(".weight") and v.dtype in ("BF16", "F16", "F32")}
    halves = floats - {"F32"}
    says = f"{CONFIG} names the dtype {written!r}, which is not known" if written else f"{CONFIG} names no dtype"
    advice = 'write "dtype": "bfloat16" or "float16" into config.json'
    shown = None if written is None else str(written)
    if len(halves) > 1:
        findings.add(broken(rules.DTYPE_UNDECIDED, f"{says}, and the tensors are BF16 and F16", file=CONFIG, advice=advice))
    chosen = halves.pop() if len(halves) == 1 else "BF16"
    findings.add(
        broken(
            rules.DTYPE_UNKNOWN,
            f"{says}; {chosen} is taken, after the weights that are not quantized",
            file=CONFIG,
            advice=f"{advice}, or use --dtype",
        )
    )
    return chosen, shown


def plain_dtype(written: Any) -> str:
    """A dtype in PyTorch's first spelling: float16 for torch.half."""
    name = str(written).lower().removeprefix("torch.")
    return DTYPE_ALIASES.get(name, name)


def _written_dtype(config: Mapping[str, Any], findings: Findings) -> Any:
    for keys in DTYPE_PLACES:
        at: Any = config
        for key in keys:
            at = at.get(key) if isinstance(at, Mapping) else None
        if isinstance(at, Mapping):
            written, older = at.get("dtype"), at.get("torch_dtype")
            if written and older and plain_dtype(written) != plain_dtype(older):
                why = f"dtype is {written!r} and torch_dtype is {older!r} in {place_of(CONFIG, keys)}; dtype is taken"
                findings.add(broken(rules.DTYPE_CONTRADICTION, why, file=CONFIG, advice="correct one of them, or use --dtype"))
            written = written or older
            if written:
                return written
    return None


def _number(value: Any) -> Any:
    """An integer, also when written as a string ("bits": "4"); None for anything else, which its format's reader judges."""
    if isinstance(value, str) and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit() and len(value) < 10:
        return int(value)
    return value if type(value) is int else None


def missing_config(folder: Path) -> Finding:
    """Why a folder without config.json is no checkpoint."""
    if (folder / "snapshots").is_dir():
        why = f"there is no config.json in {folder.name}, which looks like a model's place in the Hub's cache"
        return broken(rules.NOT_A_CHECKPOINT, why, file=CONFIG, advice="give one of the folders in its snapshots folder")
    mistral = " (params.json is the config of Mistral's own format)" if (folder / "params.json").exists() else ""
    advice = "give the folder of a Hugging Face checkpoint, with config.json, *.safetensors and the quantizer's config"
    return broken(
        rules.NOT_A_CHECKPOINT,
        f"there is no config.json in {folder.name or folder}: not a checkpoint folder{mistral}",
        file=CONFIG,
        advice=advice,
    )
