"""The output's config.json: the model's, with the quantization config replaced and the dtype that was asked for; nothing else changes.

In: a Plan.  Out: the document, keys in the source's order.
Facts: architecture.md 9.4, runtimes.md 1.1.
"""

from __future__ import annotations

from typing import Any

from humming_convert.manifest.build import FORMAT_VERSION, NAME
from humming_convert.manifest.section import plain_modules, standard_section, units
from humming_convert.model.families import family_of
from humming_convert.plan.types import Plan
from humming_convert.standard.forms import InputForm
from humming_convert.standard.numbers import MODEL_DTYPES
from humming_convert.targets.activations import activation

QUANTIZATION = ("quantization_config", "compression_config")
DTYPE_KEYS = ("dtype", "torch_dtype")
TEXT_PARTS = ("text_config", "llm_config", "language_config")
TIED = "tie_word_embeddings"
UNTIE = "tied-head-differs"  # the finding that makes D18 untie the head


def output_config(plan: Plan) -> dict[str, Any]:
    """The whole document. The quantization section stands where the source's stood, at the end if it had none there."""
    section = standard_quantization(plan) if plan.request.standard else packed_quantization(plan)
    config = _without_quantization(dict(plan.source.config))
    config = _with_dtype(config, MODEL_DTYPES[plan.request.dtype])
    if any(f.code == UNTIE for f in plan.findings):
        config = _untied(config)
    source = list(plan.source.config)
    if QUANTIZATION[0] not in source:
        return {**config, QUANTIZATION[0]: section}
    return {k: section if k == QUANTIZATION[0] else config[k] for k in source if k in config or k == QUANTIZATION[0]}


def packed_quantization(plan: Plan) -> dict[str, Any]:
    """What the plugin finds the manifest by; a KV cache scheme of the source is kept."""
    target = plan.request.target
    assert target is not None
    out: dict[str, Any] = {
        "quant_method": "humming_packed",
        "manifest": NAME,
        "format_version": FORMAT_VERSION,
        "target": target.name,
        "sm": target.sm,
        "act": plan.act,
        "humming_version": plan.request.humming_version,
        "tp_size": plan.request.tp,
    }
    schemes = [s.body["kv_cache_scheme"] for s in plan.source.sections if s.body.get("kv_cache_scheme")]
    return {**out, "kv_cache_scheme": schemes[0]} if schemes else out


def standard_quantization(plan: Plan) -> dict[str, Any]:
    """The section of the standard form, by the planned layers and the plain matrices beside them."""
    family = family_of(plan.source.model_type)
    plain = plain_modules((p.output.name, p.output.shape) for p in plan.plain)
    return standard_section(units(family, plan.layers, plain), _asked(plan))


def _asked(plan: Plan) -> InputForm | None:
    return None if plan.request.act == "auto" else activation(plan.request.act, plan.request.dtype)


def _without_quantization(node: Any) -> Any:
    """Nested quantization sections would be found by another reader first."""
    if isinstance(node, dict):
        return {k: _without_quantization(v) for k, v in node.items() if k not in QUANTIZATION}
    return [_without_quantization(v) for v in node] if isinstance(node, list) else node


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The dtype where the model or its language part states one. A statement of the same meaning keeps its spelling."""
    out: dict[str, Any] = {k: dtype if k in DTYPE_KEYS and v is not None and _plain(v) != dtype else v for k, v in config.items()}
    for part in TEXT_PARTS:
        if isinstance(out.get(part), dict):
            out[part] = _with_dtype(out[part], dtype)
    return out


def _plain(value: Any) -> str:
    name = str(value).replace("torch.", "")
    return {"half": "float16"}.get(name, name)


def _untied(config: dict[str, Any]) -> dict[str, Any]:
    """The head on disk differs from the embedding that the config ties it to (formats.md D18)."""
    out: dict[str, Any] = {k: False if k == TIED else v for k, v in config.items()}
    for part in TEXT_PARTS:
        if isinstance(out.get(part), dict):
            out[part] = _untied(out[part])
    return out
