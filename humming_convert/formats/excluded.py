"""Lists of modules in a config, compared with the tensors: who an entry means, and that the tensors win (D2).

In: entries of a config, the names of the quantized modules.  Out: the modules that an entry means; warnings.
Facts: formats.md 4.2, 6.3, 7, 11 D2. Large models have some 50,000 quantized modules and hundreds of entries: names are indexed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping

from humming_convert.formats.expressions import BadExpression, compiled
from humming_convert.formats.source import Module, Source

NAMED = 3  # names given in one message


def itself(name: str) -> tuple[str, ...]:
    """The spellings of a name where a config knows only one."""
    return (name,)


def whole(said: object) -> int | None:
    """A whole number of a config, also written as a string or as 32.0; None for anything else."""
    if isinstance(said, str) and said.strip().lstrip("-").isdigit():
        return int(said)
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        return None
    return int(said) if said == int(said) else None


def listed(source: Source, *keys: str) -> list[str]:
    """The entries of the first key of the config that has any. config-invalid if it is no list of strings."""
    for key in keys:
        found = source.config.get(key)
        if not found:
            continue
        if isinstance(found, (list, tuple)) and all(isinstance(e, str) for e in found):
            return list(found)
        config_invalid(source, key, found, "a list of names")
    return []


def config_invalid(source: Source, key: str, said: object, want: str) -> None:
    """config-invalid: a value of another type than its key asks for."""
    source.findings.error(
        "config-invalid", f"{key} is {said!r}, want {want}", file="config.json", advice="use the config.json that belongs to these weights"
    )


class Names:
    """The quantized modules, asked which of them an entry means. `spell`: every way in which a config may write a name."""

    def __init__(self, names: Iterable[str], spell: Callable[[str], tuple[str, ...]] = itself) -> None:
        self.names = tuple(names)
        self._spelled: dict[str, list[str]] = {}
        for name in self.names:
            for s in spell(name):
                self._spelled.setdefault(s, []).append(name)
        self._text = "\n".join(f".{s}." for s in self._spelled)

    def exactly(self, entry: str) -> list[str]:
        """Modules that are spelled so."""
        return self._spelled.get(entry, [])

    def matching(self, pattern: str) -> list[str]:
        """Modules of which a spelling matches a regular expression at its start. A pattern that is none matches nothing."""
        try:
            match = compiled(pattern).match
        except BadExpression:
            return []
        return self._found(lambda s: match(s) is not None)

    def like(self, entry: str) -> list[str]:
        """Modules that fit wildcards (`*`, `?`, `[..]`)."""
        start = re.split(r"[*?\[]", entry, maxsplit=1)[0]
        if start and f".{start}" not in self._text:
            return []
        match = re.compile(fnmatch.translate(entry)).match
        return self._found(lambda s: match(s) is not None)

    def within(self, entry: str) -> list[str]:
        """Modules whose dotted name holds the entry as whole parts: `mlp.gate` is in `x.mlp.gate`, not in `x.mlp.gate_proj`."""
        part = f".{entry}."
        return self._found(lambda s: part in f".{s}.") if part in self._text else []

    def _found(self, test: Callable[[str], bool]) -> list[str]:
        return list(dict.fromkeys(n for s, names in self._spelled.items() if test(s) for n in names))

    def meant(self, entry: str) -> list[str]:
        """`re:` at the start, wildcards, or whole parts of the name.

        Old readers took a plain entry as a substring; it is taken at dots only, else `mlp.gate` would leave out `mlp.gate_proj`.
        """
        if entry.startswith("re:"):
            return self.matching(entry[3:])
        return self.like(entry) if "*" in entry or "?" in entry else self.within(entry)


def some(names: list[str]) -> str:
    """The first names and how many more."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def check_patterns(source: Source, entries: Iterable[str]) -> None:
    """entry-regex: an entry `re:...` that is no regular expression, so that nobody knows whom it means."""
    for entry in dict.fromkeys(e for e in entries if e.startswith("re:")):
        try:
            compiled(entry[3:])
        except BadExpression as error:
            source.findings.error("entry-regex", f"{entry!r} {error}", file="config.json", advice="correct the entry of the config")


def warn_ignored(source: Source, entry: str, hit: list[str]) -> None:
    """ignored-quantized: an entry that leaves out modules whose tensors are quantized."""
    if hit:
        source.findings.warning(
            "ignored-quantized",
            f"the config leaves out {entry!r}, yet the tensors are quantized of {some(hit)}; they are read as quantized",
            layer=hit[0] if len(hit) == 1 else None,
            file="config.json",
            advice="correct the config",
            count=len(hit),
        )


def warn_excluded(source: Source, modules: Mapping[str, list[Module]], lists: Iterable[object]) -> None:
    """ignored-quantized, one finding an entry. lists: values of the config's keys, each a list of entries or nothing."""
    names = Names(m.name for found in modules.values() for m in found)
    entries = [str(e) for found in lists if isinstance(found, (list, tuple)) for e in found]
    check_patterns(source, entries)
    for entry in dict.fromkeys(entries):
        warn_ignored(source, entry, names.meant(entry))
