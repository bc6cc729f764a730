"""Findings: what a user should know about a checkpoint or a request, as values.

A finding is an `error`, a `warning` or a `note` with a stable code, the layer, tensor and file it is about, and advice.
They are collected, not raised, so that a person sees all of them at once; `Refused` ends a run when errors were collected.
Facts: architecture.md 9.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Struct, frozen=True, kw_only=True):
    """One fact. `layer`, `tensor`: full names as in the checkpoint; `file`: a plain file name; `count`: how many, if counted."""

    severity: Severity
    code: str
    message: str
    layer: str | None = None
    tensor: str | None = None
    file: str | None = None
    advice: str | None = None
    count: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        where = self.layer or self.tensor or self.file
        at = f" {where}" if where else ""
        inside = f" ({self.file})" if self.file and self.file != where and self.file not in self.message else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.severity}[{self.code}]{at}: {self.message}{inside}{advice}"


def harmless(text: str) -> str:
    """Names come from files of strangers: what would steer a terminal, or turn the direction of a text, is spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, one: str, many: str = "") -> str:
    """`1 file`, `2 files`; many: of a word that takes no s, or takes it elsewhere."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


class Refused(Exception):
    """The checkpoint or the request cannot be converted; `findings` says all of why. Exit code 3."""

    def __init__(self, findings: Iterable[Finding] | str) -> None:
        if isinstance(findings, str):
            findings = [Finding(severity="error", code="refused", message=findings)]
        self.findings = tuple(findings)
        super().__init__("\n".join(str(f) for f in self.findings if f.severity == "error"))


class Findings:
    """A collector. Equal findings are kept once; order is the order of arrival."""

    def __init__(self, found: Iterable[Finding] = ()) -> None:
        self._found: dict[Finding, None] = dict.fromkeys(found)

    def add(self, finding: Finding) -> None:
        self._found.setdefault(finding)

    def extend(self, found: Iterable[Finding]) -> None:
        for finding in found:
            self.add(finding)

    def error(self, code: str, message: str, **where: Any) -> None:
        self.add(Finding(severity="error", code=code, message=message, **where))

    def warning(self, code: str, message: str, **where: Any) -> None:
        self.add(Finding(severity="warning", code=code, message=message, **where))

    def note(self, code: str, message: str, **where: Any) -> None:
        self.add(Finding(severity="note", code=code, message=message, **where))

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self._found if f.severity == "error")

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def raise_errors(self) -> None:
        """Raises Refused with *all* findings if any of them is an error."""
        if self.errors:
            raise Refused(self)


class Rule(Struct, frozen=True):
    """A rule that a checkpoint must keep: number, finding code, one sentence, and what a break means. Printed as docs/format-rules.md."""

    number: int
    code: str
    text: str
    severity: Severity = "error"


Giver = Literal["rule", "target", "request", "check", "machine", "load"]


class Code(Struct, frozen=True):
    """A finding's code for people: `when` it is given, and the `way_out`. A code may have several, one for each kind of giver.

    given_by: a rule of checkpoints and of the Hub; the target's kernels; what was asked for; a check of an output; the machine; loading.
    when: of a rule what must hold, of all others what is the case.
    """

    code: str
    severity: Severity
    given_by: Giver
    when: str
    way_out: str

    @property
    def case(self) -> str:
        """What is the case when the code is given."""
        return f"this does not hold: {self.when}" if self.given_by == "rule" else self.when
