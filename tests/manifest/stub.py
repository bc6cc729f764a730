"""A plan without layers, for what depends on little else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from humming_convert.checkpoint.folder import Checkpoint, ConfigSection
from humming_convert.findings import Finding
from humming_convert.plan.types import Plan, PlannedLayer, Request


def stub_plan(
    *,
    name: str = "x",
    config: Mapping[str, Any] | None = None,
    sections: Sequence[Mapping[str, Any]] = (),
    findings: Sequence[Finding] = (),
    layers: Sequence[PlannedLayer] = (),
    request: Request | None = None,
) -> Plan:
    request = request or Request(target=None)
    source = Checkpoint(
        folder=Path("nowhere"),
        name=name,
        revision=None,
        config=config or {"model_type": "llama"},
        sections=tuple(ConfigSection(place=f"{i}", body=s) for i, s in enumerate(sections)),
        tensors={},
        weights=(),
        others=(),
        dtype="BF16",
        declared_dtype=None,
    )
    return Plan(
        source=source,
        request=request,
        act=request.act,
        layers=tuple(layers),
        plain=(),
        files=(),
        findings=tuple(findings),
        families=("humming",),
        fingerprint="xxh3:" + "0" * 32,
        totals={},
    )
