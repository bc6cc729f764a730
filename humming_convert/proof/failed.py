"""The one way a proof ends badly. Exit code 4 (architecture.md 9.3)."""

from __future__ import annotations

from humming_convert.findings import Finding
from humming_convert.plan.types import PlainTensor, PlannedLayer, PlannedTensor

ADVICE = "convert again; if it comes back, check the machine's memory and disk, and report it"


class ProofFailed(Exception):
    """What was written does not say what the source says: a bug, or a machine that cannot be trusted."""

    def __init__(self, of: PlannedLayer | PlainTensor, role: str, message: str) -> None:
        layer = of.layer.name if isinstance(of, PlannedLayer) else None
        tensor: PlannedTensor = of.outputs[role] if isinstance(of, PlannedLayer) else of.output
        self.finding = Finding(
            severity="error", code="proof-failed", layer=layer, tensor=tensor.name, file=tensor.file, message=message, advice=ADVICE
        )
        super().__init__(str(self.finding))
