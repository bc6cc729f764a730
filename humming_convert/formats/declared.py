"""What a GPTQ, AWQ or auto-round config says, brought to one vocabulary; values that cannot be true are errors.

In: the quantization section of a checkpoint.  Out: a `Declared`, and findings that name the key and the file.
Facts: formats.md 2.1, 2.10, 2.12, 3.1, 11 (D1, D9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from humming_convert.findings import Findings, Rule
from humming_convert.formats.patterns import BadPattern, Overrides, dynamic_overrides
from humming_convert.formats.source import Source

RULES = (
    Rule(200, "config-value", "bits, group sizes and flags of the config are of the right type and in range"),
    Rule(201, "config-unsupported", "no key asks for what is not read: pack_dtype, rotation, activation, adapter, data_type"),
    Rule(202, "format-unknown", "checkpoint_format (GPTQ) or version (AWQ) is one that is read"),
    Rule(203, "dynamic-pattern", "keys of `dynamic` are regular expressions, values are tables"),
)

BITS = ("bits", "wbits", "w_bit")
GROUPS = ("group_size", "q_group_size")
UNSUPPORTED: dict[str, str] = {
    "rotation": "the weights are rotated and need the rotation at run time",
    "activation": "the activations have a scheme of their own",
    "adapter": "an adapter corrects the weights at run time and cannot be merged into codes",
}
"""Keys that, when set, make the stored codes something else than the weights (formats.md 2.1, 12.61)."""

GPTQ_FORMATS = ("gptq", "gptq_v2", "gptq_p", "marlin")
AWQ_VERSIONS = ("gemm", "gemv", "gemv_fast", "marlin", "exllama", "ipex", "llm-awq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the config says of one module (or of all). None: not said.

    group: -1 for one group over K.  format: checkpoint_format or AWQ version, lower case, "" if not said.
    producer: GPTQModel's version, None for other or unknown tools.  skip: declared not quantized, by that key.
    """

    file: str
    bits: int | None = None
    group: int | None = None
    sym: bool | None = None
    format: str = ""
    producer: tuple[int, ...] | None = None
    skip: str | None = None
    overrides: Overrides = Overrides()
    extra: Mapping[str, Mapping[str, Any]] | None = None
    excluded: tuple[str, ...] = ()
    _known: dict[str, Declared] = field(init=False, default_factory=dict, compare=False, repr=False)
    _laid: dict[tuple[Any, ...], Declared] = field(init=False, default_factory=dict, compare=False, repr=False)

    def of(self, name: str) -> Declared:
        """For one module: the first matching key of `dynamic` (or its entry in `extra_config`), the rest from the base."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._of(name)
        return known

    def _of(self, name: str) -> Declared:
        found = self.overrides.first_match(name)
        if found is not None:
            return replace(self, skip=found.key) if found.skip else _overridden(self, found.values)
        if self.extra and name in self.extra:
            values = self.extra[name]
            mine = _overridden(self, values)
            return replace(mine, skip="extra_config") if (mine.bits or 0) >= 16 else mine
        return self


def _overridden(base: Declared, values: Mapping[str, Any]) -> Declared:
    """Fields that were checked by `read_config`, laid over the base; one object for all modules with the same ones."""
    bits, group, sym = _first(values, BITS), _first(values, GROUPS), values.get("sym")
    key = (
        base.bits if bits is None else int(bits),
        base.group if group is None else int(group),
        base.sym if sym is None else bool(sym),
    )
    mine = base._laid.get(key)
    if mine is None:
        mine = base._laid[key] = replace(base, bits=key[0], group=key[1], sym=key[2])
    return mine


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[k] for k in keys if config.get(k) is not None), None)


def whole(value: Any) -> int | None:
    """A whole number written as a number or a string ("4"); None for anything else, booleans too."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,9}\s*", value):
        return int(value)
    return None


def gptqmodel_version(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The version of GPTQModel named by `meta.quantizer` (a string or a list of `tool:version`)."""
    meta = config.get("meta")
    named = meta.get("quantizer") if isinstance(meta, Mapping) else None
    for entry in named if isinstance(named, list) else [named]:
        m = re.match(r"gptqmodel:(\d+(?:\.\d+)*)", str(entry).strip().lower())
        if m:
            return tuple(int(x) for x in m[1].split("."))
    return None


def config_file(source: Source) -> str:
    """The file that the primary section stands in."""
    sections = source.checkpoint.sections
    return sections[0].place.split(":")[0] if sections else "config.json"


class _Reader(Struct):
    """Takes values from a config; what is wrong with them becomes a finding."""

    findings: Findings
    file: str

    def bad(self, key: str, value: Any, want: str) -> None:
        self.findings.error(
            "config-value", f"{key} is {value!r}, want {want}", file=self.file, advice=f"correct {key} to what the checkpoint was made with"
        )

    def number(self, config: Mapping[str, Any], keys: tuple[str, ...], low: int, high: int, where: str = "") -> int | None:
        for key in keys:
            value = config.get(key)
            if value is None:
                continue
            number = whole(value)
            if number is None or not low <= number <= high or (number == 0 and low < 0):
                self.bad(where + key, value, f"a whole number from {low} to {high}" + (", not 0" if low < 0 else ""))
                return None
            return number
        return None

    def flag(self, config: Mapping[str, Any], key: str, where: str = "") -> bool | None:
        value = config.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.bad(where + key, value, "true or false")
        return None

    def fields(self, config: Mapping[str, Any], where: str = "", high_bits: int = 8) -> tuple[int | None, int | None, bool | None]:
        """(bits, group, sym)."""
        bits = self.number(config, BITS, 2, high_bits, where)
        return bits, self.number(config, GROUPS, -1, 1 << 24, where), self.flag(config, "sym", where)

    def unsupported(self, key: str, value: Any, why: str, advice: str = "") -> None:
        self.findings.error(
            "config-unsupported",
            f"{key} is {value!r}: {why}",
            file=self.file,
            advice=advice or "quantize the model again without it",
        )


def read_config(source: Source, config: Mapping[str, Any] | None = None) -> Declared:
    """The section `config` (the primary one by default) as a Declared. What is wrong goes to source.findings; unknown keys are let be."""
    c, file = source.config if config is None else config, config_file(source)
    r = _Reader(source.findings, file)
    rounds = str(source.method) == "auto-round"
    bits, group, sym = r.fields(c)
    if sym is None and (zero_point := r.flag(c, "zero_point")) is not None:
        sym = not zero_point
    pack = c.get("pack_dtype")
    if pack is not None and str(pack).replace("torch.", "") != "int32":
        r.unsupported("pack_dtype", pack, "codes in words of another width are not read")
    said = c.get("meta")
    meta: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
    for key, why in UNSUPPORTED.items():
        for place, value in ((key, c.get(key)), (f"meta.{key}", meta.get(key))):
            if value:
                r.unsupported(place, value, why)
    return Declared(
        file=file,
        bits=bits,
        group=group,
        sym=sym,
        format=_format(r, c, source.method),
        producer=gptqmodel_version(c),
        overrides=_dynamic(r, c),
        extra=_extra_config(r, c) if rounds else None,
        excluded=_excluded(r, c),
    )


def _format(r: _Reader, c: Mapping[str, Any], method: str) -> str:
    """checkpoint_format of GPTQ (auto-round: from packing_format), version of AWQ; "" if nothing is said."""
    if method == "auto-round":
        return _auto_round(r, c)
    awq = method == "awq"
    keys = ("version", "format", "checkpoint_format") if awq else ("checkpoint_format", "format")
    key = next((k for k in keys if c.get(k) is not None), None)
    if key is None:
        return "marlin" if c.get("is_marlin_format") is True else ""
    value = str(c[key]).strip().lower().replace("llm_awq", "llm-awq")
    known = AWQ_VERSIONS if awq else GPTQ_FORMATS
    if value not in known:
        r.findings.error(
            "format-unknown",
            f"{key} {c[key]!r} is not read; known: {', '.join(known)}",
            file=r.file,
            advice="quantize the model again in one of these formats",
        )
        return ""
    return "marlin" if c.get("is_marlin_format") is True and not awq else value


def _auto_round(r: _Reader, c: Mapping[str, Any]) -> str:
    """formats.md 2.12: only the auto_gptq backend stores zero points minus one."""
    if (data := c.get("data_type")) not in (None, "int"):
        r.unsupported("data_type", data, "only integer weights of auto-round are read")
    act = whole(c.get("act_bits"))
    if act is not None and act < 16:
        r.unsupported("act_bits", act, "quantized activations of auto-round are not read")
    packing = str(c.get("packing_format") or "auto_round").lower()
    if "awq" in packing:
        return "gemm"
    if packing == "auto_round:auto_gptq":
        return "gptq"
    if packing in ("auto_round", "auto_round:gptqmodel"):
        return "gptq_v2"
    r.findings.error(
        "format-unknown", f"packing_format {c.get('packing_format')!r} of auto-round is not read", file=r.file, advice="export as auto_gptq"
    )
    return ""


def _dynamic(r: _Reader, c: Mapping[str, Any]) -> Overrides:
    dynamic = c.get("dynamic")
    if not dynamic:
        return Overrides()
    if not isinstance(dynamic, Mapping):
        r.bad("dynamic", dynamic, "a table of patterns")
        return Overrides()
    try:
        found = dynamic_overrides(dynamic)
    except BadPattern as e:
        r.findings.error("dynamic-pattern", str(e), file=r.file, advice="correct the key; the other entries cannot be applied in order")
        return Overrides()
    before = len(r.findings.errors)
    for o in found:
        r.fields(o.values, f"dynamic[{o.key!r}].")
        for key, why in UNSUPPORTED.items():
            if o.values.get(key):
                r.unsupported(f"dynamic[{o.key!r}].{key}", o.values[key], why)
    return found if len(r.findings.errors) == before else Overrides()


def _extra_config(r: _Reader, c: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
    extra = c.get("extra_config")
    if not extra:
        return None
    if not isinstance(extra, Mapping) or not all(isinstance(v, Mapping) for v in extra.values()):
        r.bad("extra_config", extra, "a table of tables")
        return None
    before = len(r.findings.errors)
    for name, values in extra.items():
        r.fields(values, f"extra_config[{name!r}].", high_bits=32)
        if values.get("data_type") not in (None, "int", "float"):
            r.unsupported(f"extra_config[{name!r}].data_type", values["data_type"], "only integer weights of auto-round are read")
    return extra if len(r.findings.errors) == before else None


def _excluded(r: _Reader, c: Mapping[str, Any]) -> tuple[str, ...]:
    names = c.get("modules_to_not_convert")
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        r.bad("modules_to_not_convert", names, "a list of names")
        return ()
    return tuple(names)
