"""Whether the licence that a model card names permits publishing a converted copy.

In: the YAML head of a card.  Out: None, or why a person has to decide. Nothing is concluded about a licence that is not in the table.
Facts: the licence identifiers of the Hub's model cards; which of them permit modified copies to be published without further conditions than
keeping notices, by the texts of these licences.
"""

from __future__ import annotations

import re

PERMISSIVE = frozenset(
    ("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "isc", "zlib", "unlicense", "wtfpl", "cc0-1.0")
    + ("cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "pddl", "artistic-2.0", "ncsa", "postgresql")
)


def named(head: str) -> str | None:
    """The value of `license:`; the name of one that the Hub does not know (`license: other`)."""
    found = {k: v.strip().strip("\"'") for k, v in re.findall(r"^(license|license_name)[ \t]*:[ \t]*([^\n#]*)", head, re.M)}
    licence = found.get("license", "").lower()
    return (found.get("license_name") or "other") if licence == "other" else licence or None


def objection(head: str) -> str | None:
    """Why `--yes` is needed; None if it is not."""
    licence = named(head)
    if licence is None:
        return "the source's card names no licence"
    if licence in PERMISSIVE:
        return None
    return f"the licence {licence} may restrict who may publish a converted copy, or how"
