"""The source of one kernel: the entry template, every header, and the three configurations as generated text.

In: a family and its configurations.  Out: a KernelSource, which holds all text that the compiler sees; no path takes part.
Facts: cuda_templates/config.cuh (the words), architecture.md 7.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from humming_convert.gemm.compute import Compute
from humming_convert.gemm.tuning import Tuning
from humming_convert.manifest.digests import canonical, digest
from humming_convert.resources import cuda_templates

FAMILIES = (
    "mma_any",
    "mma_sm80",
    "wgmma_sm90a",
    "cluster_sm90a",
    "mx_sm120a",
    "umma_sm100a",
    "quantize_any",
    "gather_any",
    "product_f64",
    "read_floor",
    "pack_any",
    "prove_any",
)
# field -> the enumeration of config.cuh that its word belongs to
WORDS = {
    "place": "Place",
    "interleave": "Interleave",
    "map": "CodeMap",
    "kind": "Kind",
    "special": "Special",
    "scale_place": "ScalePlace",
    "scale_type": "ScaleType",
    "as_type": "ScaleType",
    "zero": "Zero",
    "scale_2": "Scale2",
    "half": "Half",
    "operand": "Operand",
    "output": "Output",
    "act_scale": "ActScale",
    "act_mode": "ActMode",
    "act_second": "ActSecond",
    "task": "Task",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """`entry`: text of entry.cu; `headers`: name -> text, `generated.cuh` among them. `name`: the extern "C" kernel."""

    name: str
    entry: str
    headers: tuple[tuple[str, str], ...]

    @property
    def generated(self) -> str:
        return dict(self.headers).get("generated.cuh", self.entry)


@lru_cache(maxsize=1)
def templates() -> tuple[str, tuple[tuple[str, str], ...]]:
    """entry.cu, and the headers by name."""
    folder = cuda_templates()
    headers = tuple((p.name, p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.cuh")))
    return (folder / "entry.cu").read_text(encoding="utf-8"), headers


@lru_cache(maxsize=1)
def templates_digest() -> str:
    """Of all template text: what was measured with other templates says nothing about these."""
    return digest(canonical(templates()))


def literal(name: str, value: Any) -> str:
    if name in WORDS:
        return f"static constexpr hc::{WORDS[name]} {name} = hc::{WORDS[name]}::{value};"
    if isinstance(value, bool):
        return f"static constexpr bool {name} = {'true' if value else 'false'};"
    if isinstance(value, float):
        return f"static constexpr float {name} = {value!r}f;"
    assert isinstance(value, int), (name, value)
    return f"static constexpr int {name} = {value};"


def struct(name: str, config: Any) -> str:
    body = "\n".join(f"  {literal(f.name, getattr(config, f.name))}" for f in fields(config))
    return f"struct {name} {{\n{body}\n}};\n"


def kernel_source(family: str, layer: Any = None, compute: Compute | None = None, tuning: Tuning | None = None) -> KernelSource:
    """The source of a kernel of FAMILIES. layer: a Layer, or what a family needs of one."""
    assert family in FAMILIES, family
    parts = [struct(n, c) for n, c in (("Layer", layer), ("Compute", compute), ("Tuning", tuning)) if c is not None]
    generated = "#pragma once\n" + "".join(parts) + f"#define HC_FAMILY HC_FAMILY_{family}\n"
    entry, headers = templates()
    return KernelSource(name=family, entry=entry, headers=(*headers, ("generated.cuh", generated)))
