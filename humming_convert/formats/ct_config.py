"""The compressed-tensors config: groups, targets, ignore lists, activations; what it asks that no Humming kernel does.

In: `quantization_config` and the names of the quantized modules.  Out: `Described` by module, findings.
Facts: formats.md 4.1, 4.2, 4.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from humming_convert.findings import Finding, Findings, Rule
from humming_convert.formats.excluded import Names, whole
from humming_convert.standard.forms import InputForm
from humming_convert.standard.numbers import number

RULES = (
    Rule(350, "ct-transform", "transform_config is empty: rotated weights need transforms at run time"),
    Rule(351, "ct-sparsity", "sparsity_config and moe_sparsity_config are empty or dense"),
    Rule(352, "ct-format-refused", "a group's format is one that is read"),
    Rule(353, "ct-format-unknown", "a group's format is one that compressed-tensors writes"),
    Rule(354, "ct-config-invalid", "config_groups has groups with targets and weights"),
    Rule(355, "ct-group-unused", "every group of the config is some module's", "warning"),
    Rule(356, "ct-group-none", "every quantized module has a group in the config", "warning"),
    Rule(357, "ignored-quantized", "no module that the config leaves out is quantized in the tensors", "warning"),
    Rule(358, "ct-format-lies", "the tensors of a module are of its group's format", "warning"),
    Rule(
        359,
        "input-unsupported",
        "the activations that a config asks for are ones that can be made: symmetric, by token, tensor or group",
        "warning",
    ),
)

# format -> kinds of formats.md 1.3 that it writes
FORMATS: dict[str, tuple[str, ...]] = {
    "pack-quantized": ("ct-pack",),
    "int-quantized": ("int8",),
    "float-quantized": ("fp8", "fp8-stacked"),
    "naive-quantized": ("int8", "fp8", "fp8-stacked"),
    "nvfp4-pack-quantized": ("ct-nvfp4",),
    "mxfp4-pack-quantized": ("ct-mxfp4",),
    "mxfp8-quantized": ("mxfp8",),
}
# kind -> type of its numbers, and their width where the kind has only one
NUMBERS: dict[str, tuple[str, int | None]] = {
    "ct-pack": ("int", None),
    "int8": ("int", None),
    "fp8": ("float", 8),
    "fp8-stacked": ("float", 8),
    "mxfp8": ("float", 8),
    "ct-nvfp4": ("float", 4),
    "ct-mxfp4": ("float", 4),
}
NOT_QUANTIZED = ("dense", "fakequant")
NOT_PACKED = ("dense", "fakequant", "mixed-precision", "")
REFUSED_FORMATS: dict[str, str] = {
    "marlin-24": "2:4 sparse Marlin tiles hold half of the weights and their places",
    "sparse-24-bitmask": "2:4 sparse weights are stored without their zeros",
    "sparse-bitmask": "sparse weights are stored without their zeros",
    "mxfp6-pack-quantized": "MXFP6 files are out of scope",
    "mxfp6-quantized": "MXFP6 files are out of scope",
}

_INT = {"type": "int", "symmetric": True, "dynamic": False}
_FLOAT = {"type": "float", "symmetric": True, "dynamic": False}
_TOKEN = {"strategy": "token", "dynamic": True, "symmetric": True}
_W4 = {**_INT, "num_bits": 4, "strategy": "group", "group_size": 128}
_NVFP4 = {**_FLOAT, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
_MXFP4 = {**_FLOAT, "num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
_F8 = {**_FLOAT, "num_bits": 8}
_I8 = {**_INT, "num_bits": 8, "strategy": "channel"}
# preset name -> weights, input_activations (a group may be a name with a list of targets)
PRESETS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]] = {
    "W4A16": (_W4, None),
    "W4A16_ASYM": ({**_W4, "symmetric": False}, None),
    "W8A16": (_I8, None),
    "W8A8": (_I8, {**_INT, **_TOKEN, "num_bits": 8}),
    "INT8": (_I8, {**_INT, **_TOKEN, "num_bits": 8}),
    "W4A8": ({**_W4, "strategy": "group"}, {**_INT, **_TOKEN, "num_bits": 8}),
    "W4AFP8": (_W4, {**_F8, **_TOKEN}),
    "FP8": ({**_F8, "strategy": "tensor"}, {**_F8, "strategy": "tensor"}),
    "FP8_DYNAMIC": ({**_F8, "strategy": "channel"}, {**_F8, **_TOKEN}),
    "FP8_BLOCK": ({**_F8, "strategy": "block", "block_structure": [128, 128]}, {**_F8, **_TOKEN, "strategy": "group", "group_size": 128}),
    "NVFP4A16": (_NVFP4, None),
    "NVFP4": (_NVFP4, {**_NVFP4, "dynamic": "local"}),
    "MXFP4A16": (_MXFP4, None),
    "MXFP4": (_MXFP4, {**_MXFP4, "dynamic": True}),
}


class Group(Struct, frozen=True, kw_only=True):
    """One of config_groups. `format`: its own, else the global one, else inferred."""

    name: str
    format: str
    targets: tuple[str, ...]
    weights: Mapping[str, Any]
    inputs: Mapping[str, Any] | None

    @property
    def bits(self) -> int | None:
        return whole(self.weights.get("num_bits"))

    @property
    def group_size(self) -> int | None:
        """Weights along K that share a scale; 0 for all of a row."""
        size, strategy = whole(self.weights.get("group_size")), self.weights.get("strategy")
        if strategy in ("channel", "tensor", "block") or size == -1:
            return 0
        return size if size and size > 0 else None

    @property
    def block(self) -> tuple[int, int] | None:
        """[rows, columns], also written "128x128"."""
        b = self.weights.get("block_structure")
        if self.weights.get("strategy") != "block" or b is None:
            return None
        parts = b.lower().split("x") if isinstance(b, str) else b if isinstance(b, list) else []
        sizes = [x for x in map(whole, parts) if x is not None and x > 0]
        return (sizes[0], sizes[1]) if len(sizes) == len(parts) == 2 else None

    @property
    def one_scale(self) -> bool | None:
        """Whether a matrix has one scale; None where the strategy is not said."""
        strategy = self.weights.get("strategy")
        return None if strategy is None else strategy in ("tensor", "block")

    @property
    def symmetric(self) -> bool:
        return bool(self.weights.get("symmetric", True))


def _wrong(weights: Mapping[str, Any]) -> str:
    """What is wrong with the values of a group's weights, "" if nothing is."""
    bits, size, block = whole(weights.get("num_bits")), weights.get("group_size"), weights.get("block_structure")
    if bits is None or not 1 <= bits <= 16:
        return f"num_bits is {weights.get('num_bits')!r}, want 1 to 16"
    if size is not None and whole(size) is None:
        return f"group_size is {size!r}, want a number"
    probe = Group(name="", format="", targets=(), weights=weights, inputs=None)
    if weights.get("strategy") == "block" and block is not None and probe.block is None:
        return f"block_structure is {block!r}, want [rows, columns]"
    return ""


FLAGS: dict[str, tuple[str, ...]] = {"symmetric": (), "dynamic": ("local",)}  # key -> words that it takes beside true and false


def _flags(place: str, said: Mapping[str, Any], findings: Findings) -> None:
    """config-invalid: "false" in quotes is no flag; taken for one it would be true."""
    for key, words in FLAGS.items():
        value = said.get(key)
        if value is not None and not isinstance(value, bool) and value not in words:
            findings.error(
                "config-invalid",
                f"{key} of {place} is {value!r}, want true or false",
                file="config.json",
                advice=f"correct {key} in the config",
            )


def _outputs(name: str, outputs: Any, findings: Findings) -> None:
    bits = whole(outputs.get("num_bits")) if isinstance(outputs, Mapping) else None
    if bits is not None and bits < 16:
        findings.warning(
            "input-unsupported",
            f"{name}: output_activations of {bits} bits are asked for, which no kernel makes; outputs stay 16 bit",
            file="config.json",
            advice="compare some outputs with the source model",
        )


def infer_format(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> str:
    """The format of a group that names none (formats.md 4.1)."""
    bits, kind, size = whole(weights.get("num_bits")), weights.get("type"), whole(weights.get("group_size"))
    if kind == "float" and bits == 4:
        return "mxfp4-pack-quantized" if size == 32 else "nvfp4-pack-quantized"
    if kind == "float" and bits == 6:
        return "mxfp6-pack-quantized"
    if kind == "float" and size == 32 and "uint8" in str(weights.get("scale_dtype")):
        return "mxfp8-quantized"
    if kind == "int":
        return "int-quantized" if inputs else "pack-quantized"
    return "float-quantized" if inputs else "naive-quantized"


def parse_groups(config: Mapping[str, Any], findings: Findings) -> list[Group]:
    """The groups in file order; a group without weights (KV cache, attention) is left out."""
    whole = str(config.get("format") or "")
    found = config.get("config_groups")
    if not isinstance(found, Mapping):
        findings.error(
            "ct-config-invalid",
            "the compressed-tensors config has no config_groups",
            file="config.json",
            advice="use the config.json that belongs to these weights",
        )
        return []
    out: list[Group] = []
    for name, body in found.items():
        if isinstance(body, list) and name.upper() in PRESETS:
            weights, inputs = PRESETS[name.upper()]
            body = {"targets": body, "weights": weights, "input_activations": inputs}
        if not isinstance(body, Mapping) or not isinstance(body.get("targets"), list):
            findings.error(
                "ct-config-invalid",
                f"{name} of config_groups has no list of targets",
                file="config.json",
                advice="use the config.json that belongs to these weights",
            )
            continue
        said, asked = body.get("weights"), body.get("input_activations")
        if not isinstance(said, Mapping):
            continue
        wrong = _wrong(said)
        if wrong:
            findings.error(
                "ct-config-invalid",
                f"{name}: {wrong}",
                file="config.json",
                advice="use the config.json that belongs to these weights",
            )
            continue
        _flags(f"{name}.weights", said, findings)
        if isinstance(asked, Mapping):
            _flags(f"{name}.input_activations", asked, findings)
        _outputs(name, body.get("output_activations"), findings)
        own = str(body.get("format") or "")
        fmt = own or (whole if whole not in NOT_PACKED else "")
        out.append(
            Group(
                name=name,
                format=fmt or ("dense" if whole in NOT_QUANTIZED else infer_format(said, asked)),
                targets=tuple(str(t) for t in body["targets"]),
                weights=said,
                inputs=asked if isinstance(asked, Mapping) else None,
            )
        )
    return out


def refuse(config: Mapping[str, Any], groups: list[Group], findings: Findings) -> None:
    """What no conversion can be right for: transforms, sparsity, formats (formats.md 4.7, D11)."""
    transform = config.get("transform_config")
    if transform and (not isinstance(transform, Mapping) or transform.get("config_groups", transform)):
        kinds = sorted(set(re.findall(r"(?:random-)?hadamard|random-matrix", str(transform)))) or ["unknown"]
        findings.error(
            "ct-transform",
            f"transform_config asks for transforms at run time ({', '.join(kinds)}): the weights are rotated",
            file="config.json",
            advice="export the model without transforms",
        )
    for key in ("sparsity_config", "moe_sparsity_config"):
        body = config.get(key)
        fmt = body.get("format") if isinstance(body, Mapping) else None
        if body and (key != "sparsity_config" or fmt not in (None, "dense")):
            findings.error(
                "ct-sparsity",
                f"{key}: {fmt or 'sparse experts'}; sparse weights are not read",
                file="config.json",
                advice="export the model dense",
            )
    for fmt in dict.fromkeys([str(config.get("format") or ""), *(g.format for g in groups)]):
        if fmt in REFUSED_FORMATS:
            findings.error(
                "ct-format-refused",
                f"format {fmt} is not read: {REFUSED_FORMATS[fmt]}",
                file="config.json",
                advice="export as pack-quantized",
            )
        elif fmt not in FORMATS and fmt not in NOT_PACKED:
            findings.error(
                "ct-format-unknown",
                f"format {fmt!r} is not known",
                file="config.json",
                advice="`humming-convert formats` lists what is read",
            )


# ------------------------------------------------------------------ names
RENAMED = (("model.language_model.", "language_model.model."), ("model.language_model.", "model."), ("language_model.model.", "model."))


def spellings(name: str) -> tuple[str, ...]:
    """A module's name as config entries may spell it: other nesting, a trailing `.linear` (formats.md 4.2, 10.3)."""
    out = [name]
    for a, b in RENAMED:
        for old, new in ((a, b), (b, a)):
            if name.startswith(old):
                out.append(new + name[len(old) :])
    return tuple(dict.fromkeys([*out, *(n + ".linear" for n in out)]))


def named_by(entry: str, names: Names) -> list[str]:
    """The modules that an entry names themselves (`re:` at the start, or a full name), not by their class."""
    return names.matching(entry[3:]) if entry.startswith("re:") else names.exactly(entry)


def is_class(entry: str) -> bool:
    """A class name: no dot, no pattern. Which modules have it is not in the files; every packed module is taken to."""
    return (
        not entry.startswith("re:") and "." not in entry and entry[:1].isupper() and "Attention" not in entry and "Embedding" not in entry
    )


LINEAR = re.compile("Linear|Experts|MoE|Conv1D|LMHead")  # classes whose modules are matrices


def odd_class(group: Group) -> str | None:
    """The first class of a group that names no class of matrices, None if it has one or names modules."""
    classes = [t for t in group.targets if is_class(t)]
    return classes[0] if classes and not any(LINEAR.search(t) for t in classes) else None


def assign(names: Names, groups: Iterable[Group]) -> dict[str, Group | None]:
    """Module -> the first group whose pattern or full name matches, else the first whose class does, of matrices if there is one (formats.md 4.2)."""
    groups = list(groups)
    named: dict[str, Group] = {}
    for g in groups:
        for target in g.targets:
            for name in named_by(target, names):
                named.setdefault(name, g)
    classes = [g for g in groups if any(is_class(t) for t in g.targets)]
    by_class = next((g for g in classes if odd_class(g) is None), next(iter(classes), None))
    return {name: named.get(name, by_class) for name in names.names}


# ------------------------------------------------------------------ activations
def input_form(inputs: Mapping[str, Any] | None, place: str) -> InputForm | Finding | None:
    """The activation that a group asks for; a warning if it is one that cannot be made (then the weights are 16-bit-activation weights)."""
    bits = whole(inputs.get("num_bits")) if inputs else None
    if not inputs or bits is None or bits >= 16:
        return None
    kind, dynamic, strategy = str(inputs.get("type", "int")), inputs.get("dynamic", False), inputs.get("strategy")
    names = {("float", 8): "float8e4m3", ("float", 4): "float4e2m1", ("int", 8): "int8", ("int", 4): "int4"}

    def cannot(what: str) -> Finding:
        return Finding(
            severity="warning",
            code="input-unsupported",
            message=f"{place}: input_activations {what}; only the weights are converted, activations stay 16 bit",
            file="config.json",
            advice="choose an activation with --act",
        )

    if not inputs.get("symmetric", True):
        return cannot("symmetric is false")
    if (kind, bits) not in names:
        return cannot(f"of type {kind} and {bits} bits")
    size = whole(inputs.get("group_size")) or 0
    strategy = strategy or ("group" if size > 0 else "token" if dynamic else "tensor")
    scale = (
        "float8e8m0"
        if "uint8" in str(inputs.get("scale_dtype"))
        else "float8e4m3"
        if "e4m3" in str(inputs.get("scale_dtype"))
        else "float32"
    )
    n = number(names[kind, bits])
    if strategy == "tensor" and not dynamic:
        return InputForm(number=n, mode="static_tensor", scale_dtype="float32")
    if strategy in ("token", "tensor") and dynamic:
        return InputForm(number=n, mode="dynamic_token", scale_dtype="float32")
    if strategy == "tensor_group" and dynamic:
        mode: Any = "static_tensor_dynamic_group" if dynamic == "local" else "dynamic_group"
        return InputForm(number=n, mode=mode, group=size or 16, scale_dtype="float8e4m3")
    if strategy in ("group", "tensor_group") and dynamic and size > 0:
        return InputForm(number=n, mode="dynamic_group", group=size, scale_dtype=scale)
    return cannot(f"have the strategy {strategy}{'' if dynamic else ', static'}")
