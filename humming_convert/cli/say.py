"""Printing: findings as lines, documents as JSON, sizes and tables for people. Facts: architecture.md 9.7."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from humming_convert.findings import SEVERITIES, Finding, counted, harmless
from humming_convert.plan.size import size

if TYPE_CHECKING:
    from humming_convert.engine.run import Result

COLOURS = {"error": "\x1b[31m", "warning": "\x1b[33m", "note": "\x1b[36m"}
FEW = 3  # findings of one code that are shown one by one without --verbose


def print_json(document: dict[str, Any]) -> None:
    """The one document on stdout. Where that takes no UTF-8, letters are written as JSON's own escapes."""
    unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(document, ensure_ascii=not unicode, indent=1, default=str) + "\n")
    sys.stdout.flush()


def joined(found: Iterable[Sequence[Any]]) -> list[Any]:
    """The findings of several documents, each once, in their order."""
    out: list[Any] = []
    for findings in found:
        out += [f for f in findings if f not in out]
    return out


def coloured(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def print_findings(findings: Iterable[Finding], *, verbose: bool, stream: TextIO | None = None, least: str = "note") -> None:
    """One line a finding; many of one code once, with a count and the first names. least: the mildest severity shown."""
    stream = stream or sys.stderr
    shown = SEVERITIES[: SEVERITIES.index(least) + 1]
    by_code: dict[tuple[str, str], list[Finding]] = {}
    for f in findings:
        by_code.setdefault((f.severity, f.code), []).append(f)
    for severity in shown:
        for (of, _), found in by_code.items():
            if of == severity:
                for line in _lines(found, verbose):
                    head, _, rest = line.partition("]")
                    paint = f"{COLOURS[severity]}{head}]\x1b[0m" if coloured(stream) else f"{head}]"
                    print(paint + harmless(rest), file=stream)


def _lines(found: Sequence[Finding], verbose: bool) -> list[str]:
    if verbose or len(found) <= FEW:
        return [str(f) for f in found]
    first = found[0]
    names = [f.layer or f.tensor or f.file or "" for f in found[:FEW]]
    advice = f"; {first.advice}" if first.advice else ""
    return [f"{first.severity}[{first.code}] {len(found)} times, first {', '.join(names)}: {first.message}{advice} (--verbose lists all)"]


def print_result(result: Result) -> None:
    """One line: what a run made."""
    totals = result.totals
    sizes = f"{size(totals['bytes_in'])} -> {size(totals['bytes_out'])}"
    if result.already_done:
        print(
            f"{result.out}: done already, nothing to do; names and sizes are as they were written, `humming-convert verify {result.out}` reads the contents"
        )
    elif result.part is not None:
        from humming_convert.engine.folder import partial_of

        files, layers = counted(len(result.part["files"]), "file"), counted(totals["layers"], "layer")
        print(
            f"{partial_of(result.out)}: part {result.part['part']} of {result.part['of']}, {files}, {layers}, {sizes}; `humming-convert merge {result.out}` joins them"
        )
    else:
        lossy = ", ".join(result.lossy_steps) or "none"
        print(f"{result.out}: {counted(totals['layers'], 'layer')}, {sizes}, proof {result.proof}, lossy steps: {lossy}")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: frozenset[int] = frozenset()) -> str:
    """Columns as wide as they need; right: columns set to the right."""
    cells = [[str(x) for x in row] for row in rows]
    widths = [max(len(x) for x in column) for column in zip(head, *cells, strict=True)]
    lines = [head, ["-" * w for w in widths], *cells]
    return "\n".join(
        "  ".join(x.rjust(w) if i in right else x.ljust(w) for i, (x, w) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )
