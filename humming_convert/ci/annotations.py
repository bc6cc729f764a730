"""Findings as workflow commands, which GitHub's runners show beside the files of a change and on the page of the run.

In: findings and where their files lie.  Out: lines for stderr or stdout; a runner reads both.
Facts: GitHub, workflow commands: `::error file=F,title=T::message`; of a message %, CR and LF are escaped, of a property also : and ,.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from humming_convert.ci.places import Place
from humming_convert.findings import SEVERITIES, Finding

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
FEW = 3  # findings of one code that have an annotation each: a runner shows ten of a kind in a step


def workflow_commands(findings: Iterable[Finding], place: Place) -> Iterator[str]:
    """Errors first. Many findings of one code are one annotation with their number, at the file of the first."""
    by_code: dict[tuple[str, str], list[Finding]] = {}
    for f in findings:
        by_code.setdefault((f.severity, f.code), []).append(f)
    for severity in SEVERITIES:
        for (of, _), found in by_code.items():
            if of == severity:
                yield from [_line(f, f.message, place) for f in found] if len(found) <= FEW else [_many(found, place)]


def error_command(message: str) -> str:
    """Of what is no finding: a wrong option, a full disk."""
    return f"::error title=humming-convert::{_data(message)}"


def _many(found: list[Finding], place: Place) -> str:
    names = ", ".join(f.layer or f.tensor or f.file or "-" for f in found[:FEW])
    return _line(found[0], f"{len(found)} times, first {names}: {found[0].message}", place)


def _line(f: Finding, message: str, place: Place) -> str:
    where = f.layer or f.tensor
    properties = {"title": f"{f.code}: {where}" if where else f.code}
    if f.file:
        properties = {"file": place.path(f.file), **properties}
    advice = f"; {f.advice}" if f.advice else ""
    listed = ",".join(f"{k}={_property(v)}" for k, v in properties.items())
    return f"::{COMMANDS[f.severity]} {listed}::{_data(message + advice)}"


def _data(text: str) -> str:
    return _printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _printable(text: str) -> str:
    """Names come from files of strangers: what would steer a terminal, or begin a line anew, is spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
