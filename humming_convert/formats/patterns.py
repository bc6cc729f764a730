"""Which modules a config speaks of: `dynamic` patterns, per-module overrides, lists of names not to convert.

In: the config's own patterns and a source module's full name.  Out: what is declared for that module.
Facts: formats.md 2.10 (dynamic), 2.12 (extra_config), 3.1 (substring lists).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Override:
    """One key of `dynamic`. `skip`: the modules it matches are not quantized; else `values` win over the base config."""

    key: str
    pattern: re.Pattern[str]
    skip: bool
    values: Mapping[str, Any]

    def matches(self, name: str) -> bool:
        # at the start of the name, not the whole of it (formats.md 2.10)
        return self.pattern.match(name) is not None


class BadPattern(ValueError):
    """A key of `dynamic` that is no regular expression, or whose value is no table."""


def dynamic_overrides(dynamic: Mapping[str, Any]) -> tuple[Override, ...]:
    """`dynamic` in file order: `-:` skips, `+:` or no prefix overrides. Raises BadPattern."""
    found = []
    for key, values in dynamic.items():
        skip, bare = key.startswith("-:"), key[2:] if key[:2] in ("-:", "+:") else key
        try:
            pattern = re.compile(bare)
        except (re.error, RecursionError, OverflowError) as e:
            raise BadPattern(f"dynamic: {key!r} is no regular expression ({e})") from None
        if not isinstance(values, Mapping):
            if not skip:
                raise BadPattern(f"dynamic: the value of {key!r} is no table of fields")
            values = {}
        found.append(Override(key, pattern, skip, values))
    return tuple(found)


def first_match(overrides: Iterable[Override], name: str) -> Override | None:
    """The first key that matches, in file order."""
    return next((o for o in overrides if o.matches(name)), None)


def listed(name: str, entries: Iterable[str]) -> str | None:
    """The entry of a `modules_to_not_convert` list that is part of the name (AWQ's rule), None if there is none."""
    return next((e for e in entries if e and e in name), None)
