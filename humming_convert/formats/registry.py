"""Which reader reads which module: the tensors decide, the config is compared.

KINDS is formats.md 1.3 as a table, tried in order; READERS names the function of each kind, METHODS the check of each config.
A new source is a row in each and a module beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.adapters import refuse_adapters
from humming_convert.formats.checks import run_checks
from humming_convert.formats.refused import REFUSED
from humming_convert.formats.source import Module, Source
from humming_convert.formats.zero_weights import warn_zero_weights
from humming_convert.standard.layer import Check, StandardLayer

RULES = (
    Rule(100, "module-unknown", "the tensors of a module form one of the known sets"),
    Rule(101, "method-unknown", "quant_method is one that is read"),
    Rule(102, "method-lies", "the config's method is that of the tensors", "warning"),
    Rule(103, "method-refused", "quant_method is not one of those that are known and not read"),
)

Test = Callable[[Mapping[str, TensorView]], bool]


def _has(*suffixes: str, **dtypes: str) -> Test:
    """All suffixes are there; keyword: a suffix must have one of the dtypes (joined by |)."""

    def test(t: Mapping[str, TensorView]) -> bool:
        return all(s in t for s in suffixes) and all(s in t and t[s].dtype in d.split("|") for s, d in dtypes.items())

    return test


def _packed_shapes(t: Mapping[str, TensorView]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shapes of qweight and scales of a module that may be AWQ: two dimensions each, and no g_idx, which only GPTQ has."""
    q, s = t.get("qweight"), t.get("scales")
    if q is None or s is None or "g_idx" in t or len(q.shape) != 2 or len(s.shape) != 2:
        return None
    return q.shape, s.shape


def _awq_shapes(t: Mapping[str, TensorView]) -> bool:
    """qweight [K, N/8] beside scales [.., N]; GPTQ has qweight [.., N]."""
    shapes = _packed_shapes(t)
    return shapes is not None and shapes[0][1] != shapes[1][1] and shapes[0][0] != shapes[1][0]


def _gemv_shapes(t: Mapping[str, TensorView]) -> bool:
    """qweight [N, K/8] beside scales [N, 8*zw]. Equal shapes: as GPTQ, groups of 32/bits weights, which nobody writes; qzeros tell 4 bits."""
    shapes = _packed_shapes(t)
    if shapes is None or shapes[0][0] != shapes[1][0]:
        return False
    zeros = t.get("qzeros")
    return shapes[0][1] != shapes[1][1] or (zeros is not None and zeros.shape == (shapes[1][0], shapes[1][1] // 8))


def _marlin_shapes(t: Mapping[str, TensorView]) -> bool:
    """qweight [K/16, 2N] beside scales [.., N], without zero points; AWQ without zero points has [K, N/8]."""
    shapes = _packed_shapes(t)
    return shapes is not None and "qzeros" not in t and shapes[0][1] == 2 * shapes[1][1]


def _scaled(suffix: str, t: Mapping[str, TensorView]) -> bool:
    return any(suffix + tail in t for tail in ("_scale_inv", "_scale"))


BYTE, F8 = "U8|I8", "F8_E4M3|F8_E5M2"
E8M0 = ("U8", "F8_E8M0")

KINDS: tuple[tuple[str, Test], ...] = (
    ("gpt-oss", lambda t: any(s.endswith("_blocks") for s in t)),
    ("humming-stacked", lambda t: any(s != "weight" and v.dtype == "I32" and f"{s}_scale" in t for s, v in t.items())),
    ("fp8-stacked", lambda t: any(s != "weight" and v.dtype in F8 and len(v.shape) == 3 and _scaled(s, t) for s, v in t.items())),
    ("awq-fast", _has(qweight="I16")),
    ("marlin", lambda t: _marlin_shapes(t) or ("B" in t and "s" in t)),
    ("awq-gemv", _gemv_shapes),
    ("awq", _awq_shapes),
    ("gptq", lambda t: "qweight" in t),
    ("ct-pack", _has(weight_packed="I32")),
    (
        "ct-nvfp4",
        lambda t: "weight_packed" in t and ("weight_global_scale" in t or ("weight_scale" in t and t["weight_scale"].dtype == "F8_E4M3")),
    ),
    ("ct-mxfp4", _has("weight_packed")),
    ("humming", lambda t: "weight" in t and t["weight"].dtype == "I32"),
    (
        "nvfp4",
        lambda t: (
            "weight" in t
            and t["weight"].dtype in BYTE
            and ("weight_scale_2" in t or ("weight_scale" in t and t["weight_scale"].dtype == "F8_E4M3"))
        ),
    ),
    (
        "mxfp4",
        lambda t: (
            "weight" in t
            and t["weight"].dtype in BYTE
            and any(s in t and t[s].dtype in ("U8", "F8_E8M0") for s in ("weight_scale", "scale"))
        ),
    ),
    ("int8", lambda t: "weight" in t and t["weight"].dtype == "I8"),
    ("mxfp8", lambda t: "weight" in t and t["weight"].dtype in F8 and "weight_scale" in t and t["weight_scale"].dtype in ("U8", "F8_E8M0")),
    ("fp8", lambda t: "weight" in t and t["weight"].dtype in F8),
)
"""(kind, test on the suffixes of one module); the first that holds. No row: a plain module, passed through, if nothing of it is packed."""


class Reader(Struct, frozen=True):
    """Where the code of a kind is: module of this package and function `(source, module) -> list[StandardLayer]`."""

    module: str
    function: str


READERS: dict[str, Reader] = {
    "gptq": Reader("gptq", "read"),
    "marlin": Reader("marlin", "read"),
    "awq": Reader("awq", "read"),
    "awq-gemv": Reader("awq", "read_gemv"),
    "awq-fast": Reader("awq", "read_fast"),
    "ct-pack": Reader("compressed_tensors", "read_pack"),
    "ct-nvfp4": Reader("compressed_tensors", "read_nvfp4"),
    "ct-mxfp4": Reader("compressed_tensors", "read_mxfp4"),
    "gpt-oss": Reader("mxfp4", "read_gpt_oss"),
    "mxfp4": Reader("mxfp4", "read"),
    "nvfp4": Reader("nvfp4", "read"),
    "mxfp8": Reader("mxfp8", "read"),
    "int8": Reader("int8", "read"),
    "fp8": Reader("fp8", "read"),
    "humming": Reader("humming", "read"),
    "humming-stacked": Reader("humming", "read_stacked"),
    "fp8-stacked": Reader("fp8", "read_stacked"),
}

METHODS: dict[str, Reader] = {
    "gptq": Reader("gptq", "prepare"),
    "auto-round": Reader("gptq", "prepare"),
    "awq": Reader("awq", "prepare"),
    "compressed-tensors": Reader("compressed_tensors", "prepare"),
    "mxfp4": Reader("mxfp4", "prepare"),
    "modelopt": Reader("nvfp4", "prepare"),
    "fp8": Reader("fp8", "prepare"),
    "fbgemm_fp8": Reader("fp8", "prepare"),
    "mxfp8": Reader("mxfp8", "prepare"),
    "quark": Reader("mxfp4", "prepare_quark"),
    "humming": Reader("humming", "prepare"),
    "": Reader("plain", "prepare"),
}
"""Normalised quant_method -> `(source, modules by kind: dict[str, list[Module]]) -> None`: checks the config, fills source.shared."""


METHOD_KINDS: dict[str, tuple[str, ...]] = {
    "compressed-tensors": ("ct-pack", "ct-nvfp4", "ct-mxfp4", "int8", "fp8", "fp8-stacked", "mxfp8"),
    "mxfp4": ("gpt-oss", "mxfp4"),
    "modelopt": ("nvfp4", "mxfp4", "fp8", "fp8-stacked", "mxfp8"),
    "fp8": ("fp8", "fp8-stacked", "mxfp8", "mxfp4", "nvfp4"),
    "fbgemm_fp8": ("fp8", "fp8-stacked"),
    "mxfp8": ("mxfp8", "fp8"),
    "quark": ("mxfp4",),
    "humming": ("humming", "humming-stacked"),
}
"""method -> kinds that its writers make; others are read by their tensors, with a warning (formats.md 12 row 5)."""

# suffixes that only a quantized module has: with no kind, something of it is missing or unknown (formats.md D20)
PACKED_ONLY = (
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_zero_point",
    "weight_shape",
)


CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale")


def modules_of(tensors: Mapping[str, TensorView]) -> dict[str, Module]:
    """Modules by name, in the order of their names in the checkpoint."""
    found: dict[str, dict[str, TensorView]] = {}
    for name, view in tensors.items():
        head, _, leaf = name.rpartition(".")
        found.setdefault(head, {})[leaf] = view
    return {name: Module(name=name, tensors=t) for name, t in found.items()}


def kind_of(module: Module) -> str | None:
    """The kind of a module, None if it is plain."""
    return next((kind for kind, test in KINDS if test(module.tensors)), None)


def _kinds(modules: Mapping[str, Module]) -> dict[str, str | None]:
    """The kind of each. It depends on suffixes, dtypes and shapes alone, and most modules of a checkpoint have the same."""
    known: dict[tuple[tuple[str, str, tuple[int, ...]], ...], str | None] = {}
    out: dict[str, str | None] = {}
    for name, module in modules.items():
        key = tuple((suffix, v.dtype, v.shape) for suffix, v in module.tensors.items())
        if key not in known:
            known[key] = kind_of(module)
        out[name] = known[key]
    return out


@lru_cache(maxsize=None)
def load(reader: Reader) -> Callable[..., Any]:
    """The function; modules are imported when a checkpoint needs them (architecture.md 8: --help in 0.3 s)."""
    return getattr(import_module(f"humming_convert.formats.{reader.module}"), reader.function)  # type: ignore[no-any-return]


class Reading(Struct, frozen=True):
    """What a checkpoint means: layers in checkpoint order, the tensors that belong to none of them."""

    layers: tuple[StandardLayer, ...]
    passthrough: tuple[TensorView, ...]


def read_layers(source: Source) -> Reading:
    """All quantized modules as standard layers, unfused (experts one by one unless stacked on disk). Errors go to source.findings."""
    modules = modules_of(source.checkpoint.tensors)
    kinds = _kinds(modules)
    if source.method in REFUSED:
        known = REFUSED[source.method]
        message = f"quant_method {source.method} is not read: {known.reason}"
        source.findings.error("method-refused", message, file="config.json", advice=known.advice)
        return Reading((), ())
    if source.method not in METHODS:
        source.findings.error(
            "method-unknown",
            f"quant_method {source.method!r} is not read",
            file="config.json",
            advice="`humming-convert formats` lists what is read and what is refused, and why",
        )
        return Reading((), ())
    by_kind: dict[str, list[Module]] = {}
    for name, kind in kinds.items():
        if kind is not None:
            by_kind.setdefault(kind, []).append(modules[name])
        else:
            _not_packed(source, modules[name])
    _other_kinds(source, by_kind)
    load(METHODS[source.method])(source, by_kind)
    layers: list[StandardLayer] = []
    nothing: list[Module] = []
    for name, kind in kinds.items():
        if kind is not None:
            read = load(READERS[kind])(source, modules[name])
            layers += read
            nothing += [] if read else [modules[name]]
    refuse_adapters(source)
    if not source.headers_only:
        warn_zero_weights(source, layers)
        cached = [v for v in source.checkpoint.tensors.values() if v.name.endswith(CACHE_SCALES)]  # copied, and read by the runtime
        run_checks([Check(what="finite", view=v, layer=v.name.rpartition(".")[0]) for v in cached], source.read, source.findings)
    if not source.findings.errors:
        for module in nothing:  # never passed through in silence
            _unread(
                source, module, f"a module of the kind {kinds[module.name]} that its reader and the config {source.method} do not explain"
            )
    used = {view.name for layer in layers for view in layer.source}
    return Reading(tuple(layers), tuple(v for v in source.checkpoint.tensors.values() if v.name not in used))


def _not_packed(source: Source, module: Module) -> None:
    """module-unknown: a module of no kind that is not plain either."""
    weight = module.tensors.get("weight")
    orphans = [x for x in PACKED_ONLY if x in module.tensors]
    if weight is not None and weight.dtype in ("U8", "I8"):
        orphans.insert(0, "weight")
    # a norm may call its vector `scale`; a grid of them, or bytes, belongs to a weight that is not there
    orphans += [
        s for s in ("scale", "scales") if s in module.tensors and (len(module.tensors[s].shape) > 1 or module.tensors[s].dtype in E8M0)
    ]
    if not orphans:
        return
    have = ", ".join(f"{s} {v.dtype}{list(v.shape)}" for s, v in module.tensors.items())
    _unread(source, module, f"these tensors form no known kind of layer: {have}", orphans[0])


def _unread(source: Source, module: Module, message: str, suffix: str | None = None) -> None:
    view = module.tensors[suffix or next(iter(module.tensors))]
    source.findings.error(
        "module-unknown",
        message,
        layer=module.name,
        tensor=view.name,
        file=view.file.name,
        advice="a tensor may be missing (incomplete download), the config may be another's, or the format is not read",
    )


def _other_kinds(source: Source, by_kind: Mapping[str, list[Module]]) -> None:
    """method-lies, one finding a kind."""
    expected = METHOD_KINDS.get(source.method)
    for kind, found in by_kind.items() if expected is not None else ():
        if expected is not None and kind not in expected:
            view = next(iter(found[0].tensors.values()))
            source.findings.warning(
                "method-lies",
                f"the config says {source.method}, {len(found)} modules hold {kind} tensors (the first: {found[0].name}); the tensors are followed",
                layer=found[0].name,
                file=view.file.name,
                advice="use the config.json that belongs to these weights",
                count=len(found),
            )
