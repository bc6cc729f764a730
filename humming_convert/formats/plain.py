"""No quantization config, or one that names no method: the tensors decide.

In: modules by kind.  Out: the hooks of the methods whose tensors are there are run; a warning, or an error if nothing is quantized.
Facts: formats.md 1.1 (last paragraph), 1.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from humming_convert.findings import Rule
from humming_convert.formats.source import Module, Source

RULES = (
    Rule(235, "no-config", "a quantized checkpoint has a quantization config that names its method", "warning"),
    Rule(236, "nothing-quantized", "some module of the checkpoint is quantized"),
)

KIND_METHODS: dict[str, str] = {
    "gptq": "gptq",
    "marlin": "gptq",
    "awq": "awq",
    "awq-gemv": "awq",
    "awq-fast": "awq",
    "ct-pack": "compressed-tensors",
    "ct-nvfp4": "compressed-tensors",
    "ct-mxfp4": "compressed-tensors",
    "gpt-oss": "mxfp4",
    "mxfp4": "mxfp4",
    "nvfp4": "modelopt",
    "mxfp8": "mxfp8",
    "fp8": "fp8",
    "int8": "compressed-tensors",
    "humming": "humming",
    "humming-stacked": "humming",
    "fp8-stacked": "fp8",
}
"""kind of tensors -> the method whose config they would have."""


def prepare(source: Source, modules: Mapping[str, list[Module]]) -> None:
    """Runs the hook of each method whose tensors are there, with the config that there is."""
    from humming_convert.formats.registry import METHODS, load

    present = {kind: found for kind, found in modules.items() if found}
    if not present:
        source.findings.error(
            "nothing-quantized",
            "no quantization config, and no module holds quantized tensors",
            file="config.json",
            advice="give a quantized checkpoint; a model in 16 bits must be quantized first",
        )
        return
    methods = list(dict.fromkeys(KIND_METHODS[kind] for kind in present))
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in present.items())
    where = "no quant_method in the quantization config" if source.config else "no quantization config"
    source.findings.warning(
        "no-config",
        f"{where}; the tensors decide ({counts} modules)",
        file="config.json",
        advice="bits, groups and zero points are taken from the shapes and the data; check them",
    )
    for method in methods:
        mine = {kind: found for kind, found in present.items() if KIND_METHODS[kind] == method}
        source.method = method
        load(METHODS[method])(source, mine)
    source.method = methods[0] if len(methods) == 1 else ""
