"""Findings as SARIF 2.1.0, the format that code scanning and editors read.

In: findings, where their files lie, how the run ended.  Out: one document of one run.
Facts: SARIF 2.1.0 errata 01 (OASIS); what GitHub's code scanning asks for beyond it: a location with a line in every result, at most
25,000 results a run, `primaryLocationLineHash` to know a result again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from humming_convert import __version__
from humming_convert.ci.codes import about
from humming_convert.ci.places import Place
from humming_convert.findings import SEVERITIES, Code, Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST_RESULTS = 25_000


class Ended(Struct, frozen=True):
    """How a run ended. `ran`: it came to an answer, also to a refusal. `why`: what is no finding, such as a wrong option."""

    exit_code: int
    ran: bool
    why: str | None = None


def sarif(verb: str, findings: Iterable[Finding], place: Place, ended: Ended) -> dict[str, Any]:
    """The document. Errors come first; what is beyond MOST_RESULTS is left out, and a notification says how much."""
    ordered = sorted(findings, key=lambda f: SEVERITIES.index(f.severity))
    shown = ordered[:MOST_RESULTS]
    codes = list(dict.fromkeys(f.code for f in shown))
    seen: Counter[str] = Counter()
    run = {
        "tool": {"driver": {"name": "humming-convert", "version": __version__, "rules": [_rule(code, shown) for code in codes]}},
        "automationDetails": {"id": f"humming-convert/{verb}/"},
        "invocations": [_invocation(ended, len(ordered) - len(shown))],
        "columnKind": "unicodeCodePoints",
        "results": [_result(f, codes.index(f.code), place, seen) for f in shown],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def sarif_text(document: dict[str, Any]) -> str:
    """As a file. Names of strangers may hold halves of surrogate pairs, which only escapes can carry."""
    return json.dumps(document, indent=1) + "\n"


def _invocation(ended: Ended, left_out: int) -> dict[str, Any]:
    told = [] if ended.why is None else [{"level": "error", "message": {"text": ended.why}}]
    if left_out:
        text = f"{left_out} more findings are left out: code scanning takes {MOST_RESULTS} results; --json has all of them"
        told.append({"level": "warning", "message": {"text": text}})
    return {"executionSuccessful": ended.ran, "exitCode": ended.exit_code, "toolExecutionNotifications": told}


def _rule(code: str, shown: Iterable[Finding]) -> dict[str, Any]:
    """A code that no table has is described by its first finding: it is never left without a rule."""
    first = next(f for f in shown if f.code == code)
    rows = about(code) or (Code(code, first.severity, "request", first.message, first.advice or "the message says it"),)
    text = "\n".join(f"{row.case}. Way out: {row.way_out}." for row in rows)
    return {
        "id": code,
        "shortDescription": {"text": rows[0].case},
        "fullDescription": {"text": "; ".join(row.case for row in rows)},
        "help": {"text": text, "markdown": "\n".join(f"- {line}" for line in text.splitlines())},
        "defaultConfiguration": {"level": rows[0].severity},
    }


def _result(f: Finding, rule_index: int, place: Place, seen: Counter[str]) -> dict[str, Any]:
    where = f.layer or f.tensor
    advice = f". {f.advice[:1].upper()}{f.advice[1:]}" if f.advice else ""
    key = xxh3_64_hexdigest("\0".join((f.code, f.layer or "", f.tensor or "", f.file or "")).encode("utf-8", "surrogateescape"))
    seen[key] += 1
    # a finding of no file is about the whole; the line is there since code scanning shows nothing without one
    physical = {"artifactLocation": {"uri": place.uri(f.file)}, "region": {"startLine": 1}}
    logical = [{"fullyQualifiedName": name, "kind": kind} for name, kind in ((f.layer, "layer"), (f.tensor, "tensor")) if name]
    return {
        "ruleId": f.code,
        "ruleIndex": rule_index,
        "level": f.severity,
        "message": {"text": (f"{where}: " if where else "") + f.message + advice},
        "locations": [{"physicalLocation": physical, **({"logicalLocations": logical} if logical else {})}],
        "partialFingerprints": {"primaryLocationLineHash": f"{key}:{seen[key]}"},
        "properties": {k: v for k, v in f.as_dict().items() if k in ("layer", "tensor", "file", "advice", "count") and v is not None},
    }
