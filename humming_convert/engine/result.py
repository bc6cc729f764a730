"""What a finished run says. Facts: architecture.md 9.1 (--json), 9.8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from humming_convert.manifest.read import full_manifests
from humming_convert.plan.types import Plan


class Result(Struct, kw_only=True):
    """A finished run. `manifest`: of the whole folder; `layers`: the entries of all ranks. `already_done`: the folder was there, whole, of
    the same fingerprint.  `seconds`: by phase; read, pack, prove and write are those of all workers together, the others as they passed.
    `part`: what a part of a split run did, with totals of its own; then there is no manifest yet."""

    out: Path
    plan: Plan
    manifest: Mapping[str, Any] = field(default_factory=dict)
    layers: Sequence[Mapping[str, Any]] = ()
    already_done: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    part: Mapping[str, Any] | None = None

    @property
    def totals(self) -> Mapping[str, Any]:
        """Of what this run made: the whole, or its part."""
        return self.plan.totals if self.part is None else self.part["totals"]

    @property
    def lossy_steps(self) -> list[str]:
        """Names of the steps that changed a value, of layers and of matrices that are written in the model dtype."""
        manifests = full_manifests(self.out, self.manifest) if self.manifest else ()
        rounded = {x["name"] for m in manifests for x in m["dequantized"] if x["max_rel"]}
        plain = {p.dequantized.step for p in self.plan.plain if p.dequantized is not None and p.dequantized.name in rounded}
        return sorted({x["step"] for layer in self.layers for x in layer["lossy"]} | plain)

    @property
    def proof(self) -> str:
        """`equal`, or the weakest word that a layer's proof uses."""
        words = {w for layer in self.layers for w in (layer["proof"]["codes"], layer["proof"]["scales"])}
        return "equal" if words <= {"equal"} else ", ".join(sorted(words))

    def document(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "status": "done",
            "already_done": self.already_done,
            "out": str(self.out),
            "fingerprint": self.plan.fingerprint,
            "layers": self.totals["layers"],
            "lossy_steps": self.lossy_steps,
            "proof": self.proof,
            "totals": dict(self.totals),
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            **({"part": {k: v for k, v in self.part.items() if k != "totals"}} if self.part is not None else {}),
            "findings": [f.as_dict() for f in self.plan.findings],
        }


def layers_of(out: Path, manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [layer for full in full_manifests(out, manifest) for layer in full["layers"]]
