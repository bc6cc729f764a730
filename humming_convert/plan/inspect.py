"""What is in a checkpoint, layer by layer, and what each target could do with it. Never refuses: findings say what is wrong.

Facts: architecture.md 9.1.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from humming_convert.checkpoint import open_checkpoint
from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.reading import reader
from humming_convert.findings import Finding, Findings
from humming_convert.formats.registry import Reading
from humming_convert.plan.build import read_source
from humming_convert.plan.recipe import describe
from humming_convert.plan.types import Request
from humming_convert.plan.verdicts import SHOWN
from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.numbers import MODEL_DTYPES
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import legal_activations
from humming_convert.targets.table import TARGETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """`checkpoint`: None if it could not be opened. `kinds`: (description, modules, bytes)."""

    folder: Path
    checkpoint: Checkpoint | None
    reading: Reading
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    def kinds(self) -> list[tuple[str, int, int]]:
        count: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for x in self.reading.layers:
            kind = f"{x.family}: {describe(x.form)}"
            count[kind] += x.experts or 1
            size[kind] += sum(v.nbytes for v in x.source)
        return [(k, count[k], size[k]) for k in sorted(count)]

    def verdicts(self) -> dict[str, list[str]]:
        """Target -> the activations (of the usual ones) that every quantized layer could run with."""
        env, out = Environment(), {}
        for target in TARGETS:
            dtype = "F16" if target.sm < 80 else (self.checkpoint.dtype if self.checkpoint else "BF16")
            legal = [set(legal_activations(f, target, env, dtype)) for f in {_model_scales(x, dtype) for x in self.reading.layers}]
            out[target.name] = [a for a in SHOWN if legal and all(a in x for x in legal)]
        return out

    def document(self) -> dict[str, Any]:
        c = self.checkpoint
        return {
            "source": {"name": c.name if c else self.folder.name, "revision": c.revision if c else None},
            "model_type": c.model_type if c else None,
            "dtype": c.dtype if c else None,
            "layers": [
                {
                    "name": x.name,
                    "family": x.family,
                    "parts": list(x.parts),
                    "n": x.n,
                    "k": x.k,
                    "experts": x.experts,
                    "weight": x.form.number.name,
                    "scale": x.form.scale.kind,
                    "group_size": x.form.scale.k,
                    "scale_dtype": x.form.scale.dtype,
                    "zero_point": x.form.zero_point,
                    "bytes": sum(v.nbytes for v in x.source),
                }
                for x in self.reading.layers
            ],
            "plain": {"tensors": len(self.reading.passthrough), "bytes": sum(v.nbytes for v in self.reading.passthrough)},
            "targets": self.verdicts() if self.reading.layers else {},
            "findings": [f.as_dict() for f in self.findings],
        }

    def text(self, *, verbose: bool) -> str:
        c = self.checkpoint
        if c is None:
            return f"{self.folder}: not a readable checkpoint"
        lines = [
            f"{c.name}: {c.model_type or 'unknown model type'}, {MODEL_DTYPES.get(c.dtype, c.dtype)}, {len(c.tensors)} tensors in {len(c.weights)} files"
        ]
        for s in c.sections:
            lines.append(f"  quantization: {s.place}")
        for kind, count, size in self.kinds():
            lines.append(f"  {count:6} modules  {size / 1e9:8.3f} GB  {kind}")
        plain = self.reading.passthrough
        lines.append(f"  {len(plain):6} tensors  {sum(v.nbytes for v in plain) / 1e9:8.3f} GB  not quantized")
        if verbose:
            lines += [f"    {x.name}: {x.n} x {x.k}, {describe(x.form)}" for x in self.reading.layers]
        if self.reading.layers:
            lines.append("what each target could run all layers with:")
            lines += [f"  {t:6} {' '.join(acts) or 'nothing'}" for t, acts in self.verdicts().items()]
        return "\n".join(lines)


def _model_scales(layer: StandardLayer, dtype: str) -> WeightForm:
    """The form after scales were cast to the model dtype; block scales as they are."""
    scale: ScaleForm = layer.form.scale
    if scale.kind in ("group", "channel") and not re.match("float8", scale.dtype):
        return replace(layer.form, scale=replace(scale, dtype=MODEL_DTYPES[dtype]))
    return layer.form


def inspect_model(folder: Path, findings: Findings) -> Inspection:
    checkpoint = open_checkpoint(folder, findings)
    reading = Reading((), ())
    if checkpoint is not None:
        reading = read_source(checkpoint, Request(target=None, dtype="BF16"), reader("mmap"), findings, headers_only=False)
    return Inspection(folder=folder, checkpoint=checkpoint, reading=reading, findings=tuple(findings))
