"""What linear layers and experts have in common: the library's configuration of a stored layer, and its tensors as parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from humming_convert.findings import Findings, Refused
from humming_convert.serve import library
from humming_convert.serve.machine import Machine, reading_findings
from humming_convert.serve.refusals import refusal


def config_of(config: Any, entry: Mapping[str, Any], experts: int | None = None) -> Any:
    """The library's LayerConfig. Refused where it reads the stored one otherwise than it was written."""
    made = library.layer_config(entry, experts)
    read = {**library.as_read(made), "num_experts": entry["config"]["num_experts"]}
    known: Machine = config.machine
    found = list(reading_findings(config.rank.manifest, entry, read, known))
    if any(f.code == "compiler-class" for f in found):
        named = replace(known, compiler=library.compiler())
        found = list(reading_findings(config.rank.manifest, entry, read, named))
    Findings(found).raise_errors()
    return made


def add_parameters(config: Any, layer: torch.nn.Module, entry: Mapping[str, Any], prefix: str, rows: Sequence[int] | None = None) -> None:
    """Reads the layer's tensors to the device and registers them as `prefix` and role. rows: of dim 0, where this rank has not all experts."""
    for role, view in config.rank.tensors.views(entry).items():
        tensor = config.placing.place(view, rows)
        config.placed = True
        layer.register_parameter(f"{prefix}{role}", torch.nn.Parameter(tensor, requires_grad=False))


def refuse_twice(done: bool, prefix: str) -> None:
    """vLLM processes weights a second time when it reloads them."""
    if done:
        raise Refused([refusal("reload", "packed tensors are read once, when the model is loaded", layer=prefix)])
