"""ModelOpt: its config in both places, its algorithms, and NVFP4 layers (E2M1, E4M3 scales for 16 columns, a float32 factor).

In: one module's tensors and the algorithm that the config names for it.  Out: a StandardLayer, or findings.
Facts: formats.md 6.  Checked against nvidia-modelopt 0.47.0 files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from humming_convert.findings import Rule
from humming_convert.formats.assemble import Described, Draft, flat, unverified
from humming_convert.formats.blocks import fp8_modules, settle
from humming_convert.formats.excluded import warn_excluded
from humming_convert.formats.mxfp4 import float4
from humming_convert.formats.mxfp8 import DECLARED as MXFP8_INPUT
from humming_convert.formats.source import Module, Source
from humming_convert.standard.forms import InputForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import number

RULES = (
    Rule(550, "algo-unknown", "quant_algo is one that ModelOpt writes"),
    Rule(551, "algo-refused", "quant_algo is one that is read"),
    Rule(552, "algo-lies", "the tensors of a module are of the algorithm that the config names for it"),
    Rule(554, "configs-disagree", "hf_quant_config.json and config.json name the same quant_algo", "warning"),
    Rule(555, "algo-not-listed", "every quantized module is in quantized_layers of a mixed checkpoint", "warning"),
    Rule(556, "listed-not-quantized", "every module in quantized_layers is quantized in the tensors", "warning"),
)

FP4, FP8 = number("float4e2m1"), number("float8e4m3")
NVFP4_INPUT = InputForm(number=FP4, mode="static_tensor_dynamic_group", group=16, scale_dtype="float8e4m3")
FP8_STATIC = InputForm(number=FP8, mode="static_tensor", scale_dtype="float32")
FP8_TOKEN = InputForm(number=FP8, mode="dynamic_token", scale_dtype="float32")


class Algo(Struct, frozen=True):
    """kinds of formats.md 1.3 that an algorithm writes; the activation that it asks for; rows, columns of its blocks; a real file was seen."""

    kinds: tuple[str, ...]
    declared: InputForm | None
    block: tuple[int, int] | None = None
    seen: bool = False


BLOCK = (128, 128)
ALGOS: dict[str, Algo] = {
    "NVFP4": Algo(("nvfp4",), NVFP4_INPUT, seen=True),
    "W4A16_NVFP4": Algo(("nvfp4",), None, seen=True),
    "W4A8_NVFP4_FP8": Algo(("nvfp4",), FP8_STATIC),
    "W4A8_MXFP4_FP8": Algo(("mxfp4",), FP8_STATIC),
    "MXFP4": Algo(("mxfp4",), None),
    "FP8": Algo(("fp8",), FP8_STATIC, seen=True),
    "FP8_PER_CHANNEL_PER_TOKEN": Algo(("fp8",), FP8_TOKEN),
    "FP8_PB": Algo(("fp8",), InputForm(number=FP8, mode="dynamic_group", group=128, scale_dtype="float32"), BLOCK),
    "FP8_PB_WO": Algo(("fp8",), None, BLOCK),
    "FP8_BLOCK_SCALES": Algo(("fp8",), InputForm(number=FP8, mode="dynamic_group", group=128, scale_dtype="float32"), BLOCK),
    "FP8_PB_REAL": Algo(("fp8",), InputForm(number=FP8, mode="dynamic_group", group=128, scale_dtype="float32"), BLOCK),
    "MXFP8": Algo(("mxfp8",), MXFP8_INPUT, seen=True),
}
MIXED = "MIXED_PRECISION"
REFUSED_ALGOS: dict[str, str] = {
    "NVFP4_AWQ": "its pre_quant_scale multiplies the activations at run time",
    "W4A16_AWQ": "its pre_quant_scale multiplies the activations at run time",
    "W4A8_AWQ": "its pre_quant_scale multiplies the activations at run time",
    "NVFP4_SVD": "its low-rank factors (svdquant_lora_a, svdquant_lora_b) are added at run time",
    "W8A16": "ModelOpt int8 weights are out of scope",
    "W8A8_SQ_PER_CHANNEL": "ModelOpt SmoothQuant int8 weights are out of scope",
    "INT4_AWQ": "its pre_quant_scale multiplies the activations at run time",
}


# ------------------------------------------------------------------ config
def section(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that holds quant_algo: hf_quant_config.json nests it under `quantization` (formats.md 6.1)."""
    inner = body.get("quantization")
    return inner if isinstance(inner, Mapping) else body


def algo_of(body: Mapping[str, Any]) -> str:
    """quant_algo in upper case, "" if there is none."""
    return str(section(body).get("quant_algo") or "").upper()


def _listing(source: Source, code: str, does: str, names: list[str], whose: str) -> None:
    """One warning about modules whose entry in quantized_layers is not what their tensors say."""
    if names:
        source.findings.warning(
            code,
            f"quantized_layers {does} {', '.join(names[:3])}, {whose}",
            layer=names[0] if len(names) == 1 else None,
            file="config.json",
            count=len(names),
            advice="correct the config",
        )


def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """Algorithms against tensors, both config files against each other, exclude lists against tensors; leaves `describe`."""
    config = section(source.config)
    whole = algo_of(config)
    bodies = [section(s.body) for s in source.checkpoint.sections]
    listed: Mapping[str, Any] = next(
        (b["quantized_layers"] for b in [config, *bodies] if isinstance(b.get("quantized_layers"), Mapping)), {}
    )
    names = {m.name: kind for kind, found in modules.items() for m in found}
    of = {name: layer_algo(name, listed) if whole == MIXED else whole for name in names}
    for algo in dict.fromkeys([whole, *(str(x.get("quant_algo") or "").upper() for x in listed.values() if isinstance(x, Mapping))]):
        _known(source, algo)
    _compare(source, whole, of, names)
    _compare_groups(source, names)
    weight_only = _weight_only(config)
    missing = [n for n, a in of.items() if a is None]
    _listing(source, "algo-not-listed", "does not list", missing, "whose tensors are quantized; they are read as such")
    floats = [n for n in listed if n not in names and f"{n}.weight" in source.checkpoint.tensors]
    _listing(source, "listed-not-quantized", "lists", floats, "whose tensors are not quantized; they are passed through")

    members = {a: [m for m in fp8_modules(modules) if of[m.name] == a] for a in dict.fromkeys(of.values()) if a in ALGOS}
    blocks = {a: settle(source, f"quant_algo {a}", "blocks of", ALGOS[a].block, found) for a, found in members.items() if a}

    def describe(name: str) -> Described:
        algo = ALGOS.get(of.get(name) or "")
        if algo is None:
            return Described()
        declared = None if weight_only and algo.declared == NVFP4_INPUT else algo.declared
        return Described(
            known=True,
            place=f"quant_algo {of[name]}",
            block=blocks[of[name] or ""],
            static=declared is not None and declared.mode.startswith("static"),
            declared=declared,
        )

    source.shared["describe"] = describe
    warn_excluded(source, modules, [b.get(key) for b in (config, *bodies) for key in ("ignore", "exclude_modules")])


def layer_algo(name: str, listed: Mapping[str, Any]) -> str | None:
    """A module's algorithm in quantized_layers: its name, a key below it, or a parent (formats.md 6.4)."""
    found = listed.get(name)
    if found is None:
        found = next((v for key, v in listed.items() if key.startswith(name + ".")), None)
    parent = name
    while found is None and "." in parent:
        parent = parent.rpartition(".")[0]
        found = listed.get(parent)
    algo = found.get("quant_algo") if isinstance(found, Mapping) else None
    return str(algo).upper() if algo else None


def _known(source: Source, algo: str) -> None:
    if algo in ALGOS or algo in (MIXED, ""):
        if algo in ALGOS and not ALGOS[algo].seen:
            unverified(source, f"quant_algo {algo}")
        return
    if algo in REFUSED_ALGOS:
        source.findings.error(
            "algo-refused", f"quant_algo {algo} is not read: {REFUSED_ALGOS[algo]}", file="config.json", advice="export as NVFP4 or FP8"
        )
    else:
        source.findings.error(
            "algo-unknown", f"quant_algo {algo!r} is not known", file="config.json", advice="`humming-convert formats` lists what is read"
        )


def _compare(source: Source, whole: str, of: Mapping[str, str | None], names: Mapping[str, str]) -> None:
    """D1: the tensors decide between two configs; an algorithm that the tensors contradict is an error."""
    others = {a: s.place for s in source.checkpoint.sections[1:] if (a := algo_of(s.body)) and a != whole}
    for other, place in others.items():
        if (whole in ALGOS and all(kind in ALGOS[whole].kinds for kind in names.values())) or whole == MIXED:
            source.findings.warning(
                "configs-disagree",
                f"{place} says {other}, the first config says {whole}, which is what the tensors are",
                file=place,
                advice="correct the side file",
            )
    wrong: dict[tuple[str, str], list[str]] = {}
    for name, algo in of.items():
        if algo in ALGOS and names[name] not in ALGOS[algo].kinds:
            wrong.setdefault((algo, names[name]), []).append(name)
    for (algo, kind), hit in wrong.items():
        said = "".join(f"; {place} says {other}" for other, place in others.items())
        source.findings.error(
            "algo-lies",
            f"the config says quant_algo {algo}, the tensors are {kind} ({kind.upper()}) of {', '.join(hit[:3])}{said}",
            layer=hit[0] if len(hit) == 1 else None,
            file="config.json",
            count=len(hit),
            advice="use the config.json that belongs to these weights",
        )


GROUPS = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32, "fp8": 128}  # columns that share a scale


def _sizes(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every group_size of a config: its key, and who it is for."""
    inner = section(body)
    yield "group_size", inner.get("group_size")
    for key, path in (("quantized_layers", ()), ("config_groups", ("weights",))):
        found = inner.get(key)
        for name, entry in found.items() if isinstance(found, Mapping) else ():
            for step in path:
                entry = entry.get(step) if isinstance(entry, Mapping) else None
            yield f"group_size of {key}.{name}", entry.get("group_size") if isinstance(entry, Mapping) else None


def _compare_groups(source: Source, names: Mapping[str, str]) -> None:
    """group-size-lies: every kind of this writer has groups of one size only, whatever a config says. One finding a config."""
    kinds = {kind for kind in names.values() if kind in GROUPS}
    right = sorted(GROUPS[kind] for kind in kinds)
    for s in source.checkpoint.sections if kinds - {"fp8"} else ():  # one scale a matrix has no groups
        wrong = [(key, size) for key, size in _sizes(s.body) if size not in (None, 0, -1, *right)]
        if wrong:
            key, size = wrong[0]
            source.findings.warning(
                "group-size-lies",
                f"{key} is {size!r} in {s.place}, the tensors have groups of {' and '.join(map(str, right))}; the tensors are followed",
                file=s.place.split(":")[0],
                advice="correct group_size in the config",
                count=len(wrong),
            )


def _weight_only(config: Mapping[str, Any]) -> bool:
    """True if config_groups are there and every one of them has no activations (vLLM reads that as W4A16)."""
    groups = config.get("config_groups")
    return (
        isinstance(groups, Mapping)
        and bool(groups)
        and all(isinstance(g, Mapping) and not g.get("input_activations") for g in groups.values())
    )


# ------------------------------------------------------------------ a module
def read(source: Source, module: Module) -> list[StandardLayer]:
    """[N, K/2] bytes, scales E4M3 [N, K/16] (also stored as U8), `weight_scale_2` and `input_scale` are multipliers (formats.md 6.2)."""
    d = Draft(source, module, "nvfp4")
    ones = d.take("pre_quant_scale")
    if ones is not None:
        if flat(ones) and source.headers_only:
            d.facts["open"] = "pre_quant_scale"
        d.check("all-ones", ones)
    for factor in ("svdquant_lora_a", "svdquant_lora_b"):
        if factor in module.tensors:
            d.take(factor)
            d.error("algo-refused", f"{factor} is added at run time, which no Humming kernel does", factor, advice="export as NVFP4")
    declared = d.config.declared
    static8 = declared is not None and declared.number == FP8
    role = "input_scale" if static8 else "input_scale_2"
    return float4(d, "weight", "weight_scale", 16, "float8e4m3", factor=("weight_scale_2", False), inputs=("input_scale", False), role=role)
