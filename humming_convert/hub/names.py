"""Hub ids: `org/name`, `org/name@revision`.

In: what a user gave as MODEL.  Out: a HubName, or None where it cannot be one.  A folder wins over a Hub id of the same spelling.
Facts: architecture.md 9.1.
"""

from __future__ import annotations

import re

from msgspec import Struct

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_][A-Za-z0-9._/-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(Struct, frozen=True):
    """`repo`: `org/name`.  `revision`: a branch, a tag or a commit; None: the default branch."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def hub_name(text: str) -> HubName | None:
    """None for what has no organisation, more than two parts, or characters that no id has."""
    found = _ID.fullmatch(text)
    return HubName(found[1], found[2]) if found else None
