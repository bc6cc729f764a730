"""The `quantization_config` of the standard form, as stock vLLM reads it, and a model of that reading.

In: the planned layers and the modules that stay plain.  Out: canonical keys, an ordered `dynamic`, closed `re:` ignores.
Facts: runtimes.md 1.1 to 1.4; vLLM 0.33.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from humming_convert.model.families import Family, expert_of, fused_name, is_embedding, is_lm_head, renamed
from humming_convert.plan.types import PlannedLayer
from humming_convert.standard.forms import InputForm, ScaleForm, WeightForm
from humming_convert.standard.numbers import number

Keys = dict[str, Any]
NOTHING = WeightForm(number=number("uint8"), scale=ScaleForm(kind="channel", dtype="bfloat16"))
# what stands in front of the layers in one spelling or another (formats.md 10.3)
_PREFIX = re.compile(r"^(?:(?:model|language_model|text_model|transformer|thinker|llm)\.)+(?=.)")


class Unit(Struct, frozen=True):
    """What vLLM makes one module of. `source`: its fused name as the checkpoint spells it; `spellings`: all names it may be asked by, vLLM's
    first; `leaves`: source leaves that a reader of unfused names asks for.  keys: None if it stays unquantized.
    apart: a part that differs from others of its fused name; its pattern is written in any case, since readers may try the fused name too."""

    source: str
    spellings: tuple[str, ...]
    leaves: tuple[str, ...]
    keys: Keys | None
    apart: bool = False


def form_keys(form: WeightForm) -> Keys:
    """A weight form under canonical names. bs_dtype is null where scales have the model dtype, or are float32 by their kind."""
    scale = form.scale
    return {
        "b_dtype": form.number.name,
        "bs_dtype": scale.dtype if scale.dtype.startswith("float8") else None,
        "weight_scale_type": scale.kind,
        "weight_scale_group_size": scale.k if scale.kind in ("group", "block") else 0,
        "weight_scale_group_size_n": scale.n if scale.kind == "block" else 0,
        "weight_scale_2_type": form.scale_2 if form.scale_2 != "none" else None,
        "has_zero_point": form.zero_point != "none",
        "is_fp_zero_point": form.zero_point == "fp",
    }


def input_keys(given: InputForm | None) -> Keys:
    """The activation that was asked for; then vLLM must not fall back by itself (runtimes.md 1.4). Nothing if none was."""
    if given is None:
        return {}
    if given.mode == "none":
        return {"allow_fallback": False}
    return {
        "a_dtype": given.number.name,
        "input_quant_mode": given.mode,
        "input_scale_group_size": given.group,
        **({"input_scale_dtype": given.scale_dtype} if given.scale_dtype is not None else {}),
        "allow_fallback": False,
    }


def units(family: Family, layers: Sequence[PlannedLayer], plain: Iterable[str]) -> list[Unit]:
    """Quantized units in the order of the layers, then the plain ones. `plain`: names of unquantized modules (linear or experts).

    Where layers of one unit differ, which vLLM cannot load, each is a unit before it: the section must be true of them all the same.
    """
    quantized: dict[str, Keys] = {}
    mixed: dict[str, dict[str, Keys]] = {}
    leaves: dict[str, dict[str, None]] = {}
    names: dict[str, str | None] = {}
    for p in layers:
        source = fused_name(family, p.layer.name)
        own = form_keys(p.layer.form)
        quantized.setdefault(source, own)
        mixed.setdefault(source, {})[p.layer.name] = own
        names.setdefault(source, p.vllm)
        for part in p.layer.parts:
            leaves.setdefault(source, {})[part.rpartition(".")[2]] = None
    kept: dict[str, None] = {}
    for module in plain:
        source = fused_name(family, module)
        if source not in quantized:
            kept[source] = None
            leaves.setdefault(source, {})[module.rpartition(".")[2]] = None
            names.setdefault(source, renamed(family, source))
    out: list[Unit] = []
    for s, keys in [*quantized.items(), *((s, None) for s in kept)]:
        apart = {name: k for name, k in mixed.get(s, {}).items() if name != s}
        if any(k != keys for k in apart.values()):
            out += [Unit(name, _spellings(family, name, renamed(family, name), False), (), k, apart=True) for name, k in apart.items()]
            leaves[s] = {}  # its pattern is for the fused name alone
        out.append(Unit(s, _spellings(family, s, names[s], keys is None), tuple(leaves[s]), keys))
    return out


def _spellings(family: Family, source: str, vllm: str | None, plain: bool) -> tuple[str, ...]:
    out = [vllm] if vllm is not None else []
    out.append(source)
    if plain:
        for ours, theirs in family.ignore_renames:
            out += [name.replace(ours, theirs) for name in list(out)]
    return tuple(dict.fromkeys(out))


def plain_modules(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> list[str]:
    """Modules whose weight is a matrix (or stacked experts) and no embedding or head, from (tensor name, shape)."""
    out: dict[str, None] = {}
    for name, shape in tensors:
        module = name.removesuffix(".weight")
        expert = expert_of(module)
        if is_lm_head(module) or is_embedding(module):
            continue
        if (name != module and len(shape) == 2) or (expert is not None and len(shape) >= 2):
            out[module] = None
    return list(out)


# ------------------------------------------------------------------ patterns
def _leaf(unit: Unit, name: str) -> str:
    """The last part of a pattern: the fused name or one of its parts; for experts any expert's part."""
    if name.rpartition(".")[2] == "experts":
        head, each = re.escape(name), "|".join(re.escape(leaf) for leaf in unit.leaves if leaf != "experts")
        return f"{head}(?:\\.\\d+)?(?:\\.(?:{each}))?" if each else head
    parent, _, leaf = name.rpartition(".")
    leaves = [x for x in unit.leaves if x != leaf] if unit.leaves else []
    shown = re.escape(leaf) if not leaves else f"(?:{'|'.join(re.escape(x) for x in (*leaves, leaf))})"
    return f"{re.escape(parent)}\\.{shown}" if parent else shown


def pattern(unit: Unit, exact: bool) -> str:
    """A regular expression for re.match, closed with `$`. Free of the model's prefix, or (exact) with every spelling written out."""
    if exact:
        names = list(unit.spellings)
    else:
        names = list(dict.fromkeys(_PREFIX.sub("", name) for name in unit.spellings))
    bodies = [_leaf(unit, name) for name in names]
    body = bodies[0] if len(bodies) == 1 else f"(?:{'|'.join(bodies)})"
    return f"{body}$" if exact else f"(?:.*\\.)?{body}$"


# ------------------------------------------------------------------ the section
def standard_section(found: Sequence[Unit], given: InputForm | None) -> dict[str, Any]:
    """The most common form at the top, every other unit in `dynamic`, every plain one in `ignore`.

    Patterns are free of the model's prefix unless one would then hit another module too (a vision tower, MTP layers).
    """
    for exact in (False, True):
        section = _section(found, given, exact)
        if all(resolve(section, name) == wanted for unit in found for name, wanted in _answers(unit)):
            return section
    raise AssertionError("a section that vLLM would read differently")


def _answers(unit: Unit) -> list[tuple[str, Keys | None]]:
    return [(name, None if unit.keys is None else unit.keys) for name in unit.spellings]


def _section(found: Sequence[Unit], given: InputForm | None, exact: bool) -> dict[str, Any]:
    forms = Counter(tuple(u.keys.items()) for u in found if u.keys is not None)
    # b_dtype is required, also where every layer became a plain matrix
    top: Keys = dict(forms.most_common(1)[0][0]) if forms else form_keys(NOTHING)
    dynamic = {
        f"+:{pattern(u, exact)}": changed for u in found if u.keys is not None and (changed := _changed(top, u.keys, always=u.apart))
    }
    ignore = [f"re:{pattern(u, exact)}" for u in found if u.keys is None]
    return {
        "quant_method": "humming",
        **{k: v for k, v in top.items() if v is not None},
        **input_keys(given),
        **({"ignore": ignore} if ignore else {}),
        **({"dynamic": dynamic} if dynamic else {}),
    }


def _changed(top: Keys, keys: Keys, *, always: bool = False) -> Keys:
    """All keys of a unit that differs; a key that the top has and the unit must not have is null."""
    if keys == top and not always:
        return {}
    return {k: v for k, v in keys.items() if v is not None or top[k] is not None}


def resolve(section: Mapping[str, Any], prefix: str) -> Keys | None:
    """The weight keys that vLLM 0.33 reads for a module, None if it stays unquantized (runtimes.md 1.2, 1.3)."""
    if any(re.match(entry[3:], prefix) for entry in section.get("ignore", ())):
        return None
    over: Keys = next((keys for p, keys in section.get("dynamic", {}).items() if re.match(p[2:], prefix)), {})
    whole = {**section, **over}
    return {
        "b_dtype": whole["b_dtype"],
        "bs_dtype": whole.get("bs_dtype"),
        "weight_scale_type": whole["weight_scale_type"],
        "weight_scale_group_size": whole["weight_scale_group_size"],
        "weight_scale_group_size_n": whole["weight_scale_group_size_n"],
        "weight_scale_2_type": whole.get("weight_scale_2_type"),
        "has_zero_point": whole["has_zero_point"],
        "is_fp_zero_point": whole["is_fp_zero_point"],
    }
