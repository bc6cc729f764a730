"""Lists of modules that a config leaves out, compared with the tensors: the tensors win, and the difference is said (D2).

In: a config, the keys of its lists, the quantized modules.  Out: warnings.
Facts: formats.md 6.3, 7, 11 D2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from humming_convert.formats.source import Module, Source

NAMED = 3  # names given in one message


def excludes(entry: str, name: str) -> bool:
    """True if an entry leaves a module out: `re:` at the start, exact, wildcards, or a whole part of the dotted name.

    The plain substring of old readers is taken at dots only: `mlp.gate` must not leave out `mlp.gate_proj`.
    """
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], name) is not None
        except re.error:
            return False
    if "*" in entry or "?" in entry:
        return fnmatchcase(name, entry)
    return f".{entry}." in f".{name}."


def warn_excluded(source: Source, modules: Mapping[str, list[Module]], lists: Iterable[object]) -> None:
    """ignored-quantized, one finding an entry. lists: values of the config's keys, each a list of entries or nothing."""
    names = [m.name for found in modules.values() for m in found]
    entries = [str(e) for found in lists if isinstance(found, (list, tuple)) for e in found]
    for entry in dict.fromkeys(entries):
        hit = [n for n in names if excludes(entry, n)]
        if hit:
            more = f" and {len(hit) - NAMED} more" if len(hit) > NAMED else ""
            source.findings.warning(
                "ignored-quantized",
                f"the config leaves out {entry!r}, yet the tensors are quantized of {', '.join(hit[:NAMED])}{more}; they are read as quantized",
                layer=hit[0] if len(hit) == 1 else None,
                file="config.json",
                advice="correct the config",
                count=len(hit),
            )
