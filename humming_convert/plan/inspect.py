"""What is in a checkpoint, layer by layer, what contradicts what, and what each target could do with it. Never refuses: findings say what is wrong.

Facts: architecture.md 9.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.reading import reader_of
from humming_convert.findings import Finding, Findings, counted
from humming_convert.formats.damages import CONTRADICTIONS
from humming_convert.formats.registry import Reading
from humming_convert.plan.build import read_source
from humming_convert.plan.evidence import ZeroPoints, zero_points
from humming_convert.plan.recipe import describe
from humming_convert.plan.size import size
from humming_convert.plan.survey import Survey, survey
from humming_convert.plan.types import Request
from humming_convert.plan.verdicts import Verdicts, verdicts
from humming_convert.standard.numbers import MODEL_DTYPES

FEW = 3  # findings of one code that are shown one by one


class Inspection(Struct, frozen=True, kw_only=True):
    """`checkpoint`: None if it could not be opened.  survey: of its layers as the runtime fuses them.  findings: all, also those of fusing.

    zero_points: of GPTQ modules, one census a width.
    """

    folder: Path
    checkpoint: Checkpoint | None
    reading: Reading
    survey: Survey
    findings: tuple[Finding, ...]
    zero_points: tuple[ZeroPoints, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """What a config, a label or a list says against the tensors, with the evidence."""
        return tuple(f for f in self.findings if f.code in CONTRADICTIONS)

    @property
    def others(self) -> tuple[Finding, ...]:
        """Findings that are no contradictions."""
        return tuple(f for f in self.findings if f.code not in CONTRADICTIONS)

    def kinds(self) -> list[tuple[str, int, int]]:
        """(description, modules, bytes)."""
        count: Counter[str] = Counter()
        nbytes: Counter[str] = Counter()
        for x in self.reading.layers:
            kind = f"{x.family}: {describe(x.form)}"
            count[kind] += x.experts or 1
            nbytes[kind] += sum(v.nbytes for v in x.source)
        return [(k, count[k], nbytes[k]) for k in sorted(count)]

    def verdicts(self) -> Verdicts:
        """What each target could run all layers with; no targets where no layer is quantized."""
        return verdicts(self.survey)

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
            "quantization": [s.place for s in c.sections] if c else [],
            "zero_points": [z.document() for z in self.zero_points],
            "contradictions": [f.as_dict() for f in self.contradictions],
            **self.verdicts().document(),
            "findings": [f.as_dict() for f in self.findings],
        }

    def text(self, *, verbose: bool) -> str:
        c = self.checkpoint
        if c is None:
            return f"{self.folder}: not a readable checkpoint"
        plain = self.reading.passthrough
        lines = [
            f"{c.name}: {c.model_type or 'unknown model type'}, {MODEL_DTYPES.get(c.dtype, c.dtype)}, {counted(len(c.tensors), 'tensor')} in {counted(len(c.weights), 'file')}"
        ]
        lines += [f"  quantization: {s.place}" for s in c.sections]
        lines += [f"  {count:6} {_word(count, 'module')} {size(nbytes):>9}  {kind}" for kind, count, nbytes in self.kinds()]
        lines.append(f"  {len(plain):6} {_word(len(plain), 'tensor')} {size(sum(v.nbytes for v in plain)):>9}  not quantized")
        if verbose:
            lines += [f"    {x.name}: {x.n} x {x.k}, {describe(x.form)}" for x in self.reading.layers]
        for z in self.zero_points:
            lines += z.lines()
        if self.contradictions:
            lines += ["what contradicts what:", *_grouped(self.contradictions, verbose)]
        if self.reading.layers:
            lines += ["what each target could run all layers with, and why not:", *self.verdicts().lines()]
        return "\n".join(lines)


def _grouped(found: Iterable[Finding], verbose: bool) -> list[str]:
    """One line a finding; many of one code by the first and a count."""
    by_code: dict[str, list[Finding]] = {}
    for f in found:
        by_code.setdefault(f.code, []).append(f)
    out = []
    for mine in by_code.values():
        shown = mine if verbose or len(mine) <= FEW else mine[:1]
        out += [f"  {f}" for f in shown]
        if len(shown) < len(mine):
            out.append(f"    and {len(mine) - 1} more {mine[0].code} (--verbose lists all)")
    return out


def inspect_model(folder: Path, checkpoint: Checkpoint | None, findings: Findings) -> Inspection:
    """findings: of opening the checkpoint; None: it could not be opened."""
    reading = Reading((), ())
    zeros: list[ZeroPoints] = []
    if checkpoint is not None:
        read = reader_of(checkpoint)
        reading = read_source(checkpoint, Request(target=None, dtype="BF16"), read, findings, headers_only=False)
        zeros = zero_points(reading.layers, read)
    surveyed = survey(checkpoint, reading, findings)
    findings.extend(surveyed.findings)
    return Inspection(
        folder=folder, checkpoint=checkpoint, reading=reading, survey=surveyed, findings=tuple(findings), zero_points=tuple(zeros)
    )


def _word(number: int, one: str) -> str:
    """As wide for one as for several."""
    return one + ("s" if number != 1 else " ")
