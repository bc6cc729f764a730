"""Which layers of a folder are measured: one of each configuration and shape, and for how many rows.

In: stored layers, a pattern.  Out: Alikes.  Nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from humming_convert.findings import Findings, Refused
from humming_convert.gemm.stored import StoredLayer
from humming_convert.serve.machine import key_of

ROWS = (1, 4, 16, 64, 256, 1024, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Alike:
    """stored: the first.  count: how many there are."""

    stored: StoredLayer
    count: int


def alike(layers: Iterable[StoredLayer], pattern: str) -> list[Alike]:
    """The first of each kind, in the folder's order. Refused if no name matches the pattern (`*`, `?`, `[...]`)."""
    found: dict[str, list[StoredLayer]] = {}
    names = []
    for stored in layers:
        names.append(stored.name)
        if fnmatchcase(stored.name, pattern):
            found.setdefault(f"{key_of(stored.entry)} {stored.config['num_experts']}", []).append(stored)
    if not found:
        findings = Findings()
        few = ", ".join(names[:3]) or "none"
        findings.error("selection-empty", f"no packed layer is called {pattern}; there are {few}, ...", advice="--layer '*down_proj'")
        raise Refused(findings)
    return [Alike(same[0], len(same)) for same in found.values()]


def weight_words(stored: StoredLayer) -> str:
    """`uint4, group 128, zero points`: the packed form."""
    c = stored.config
    kind, size, rows = c["weight_scale_type"], int(c["weight_scale_group_size"]), int(c["weight_scale_group_size_n"])
    scale = f"block {rows} x {size}" if kind == "block" else f"group {size}" if kind == "group" else str(kind)
    return f"{c['b_dtype']}, {scale}" + (", zero points" if c["has_zero_point"] else "")


def act_words(stored: StoredLayer) -> str:
    """`float8e4m3 by token`."""
    c = stored.config
    mode, group = str(c["input_quant_mode"]), int(c["input_scale_group_size"])
    how = {"none": "", "dynamic_token": " by token", "static_tensor": " static"}.get(mode, f" by groups of {group}")
    return f"{c['a_dtype']}{how}"
