"""Every code that a finding can have: when it is given, and the way out. Read by the findings page and by SARIF.

In: the tables of the rooms (rules, refusals) and those of this one.  Out: Codes.  A test holds that no code in the sources is left out.
Facts: architecture.md 9.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from msgspec import Struct

from humming_convert.ci.other_codes import OTHER_CODES
from humming_convert.ci.ways_out import WAYS_OUT
from humming_convert.findings import Code, Rule

ROOMS_WITH_RULES = ("checkpoint", "formats", "model", "hub")


class RuleOf(Struct, frozen=True):
    """A rule and the module that checks it, named from the package on."""

    rule: Rule
    module: str


def rules() -> Iterator[RuleOf]:
    """Every Rule of a RULES tuple, in no order."""
    for room in ROOMS_WITH_RULES:
        package = import_module(f"humming_convert.{room}")
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            for rule in getattr(import_module(found.name), "RULES", ()):
                yield RuleOf(rule, found.name.removeprefix("humming_convert."))


@cache
def all_codes() -> tuple[Code, ...]:
    """A code that several tables have stands here once for each: its meanings differ by who gives it."""
    from humming_convert.serve.refusals import REFUSALS
    from humming_convert.targets.refusals import ADVICE

    by_number = sorted((x.rule for x in rules()), key=lambda r: (r.number, r.code))
    return (
        *(Code(r.code, r.severity, "rule", r.text, WAYS_OUT[r.code]) for r in by_number),
        *(
            Code(c.replace("_", "-"), "error", "target", "the kernels of this target do not take the layer as asked", w)
            for c, w in ADVICE.items()
        ),
        *OTHER_CODES,
        *(Code(r.code, "error", "load", r.when, r.advice) for r in REFUSALS),
    )


def about(code: str) -> tuple[Code, ...]:
    """Its rows; none for a code that an extension made."""
    return _by_code().get(code, ())


@cache
def _by_code() -> dict[str, tuple[Code, ...]]:
    out: dict[str, tuple[Code, ...]] = {}
    for row in all_codes():
        out[row.code] = (*out.get(row.code, ()), row)
    return out
