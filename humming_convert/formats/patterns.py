"""Which modules a config speaks of: `dynamic` patterns, per-module overrides, lists of names not to convert.

In: the config's own patterns and a source module's full name.  Out: what is declared for that module.
Facts: formats.md 2.10 (dynamic), 2.12 (extra_config), 3.1 (substring lists).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from humming_convert.formats.expressions import BadExpression, compiled

Head = str | tuple[str | None, ...]
"""A tuple where a dot stands for any character (None)."""


class Override(Struct, frozen=True):
    """One key of `dynamic`. `skip`: the modules it matches are not quantized; else `values` win over the base config.

    head: the characters that every match begins with.  pattern: what decides beyond them, None if nothing does.
    end: nothing follows the head.
    """

    key: str
    head: Head
    end: bool
    pattern: re.Pattern[str] | None
    skip: bool
    values: Mapping[str, Any]

    def accepts(self, name: str) -> bool:
        """Whether a name that begins with the head matches. At the start of the name, not the whole of it (formats.md 2.10)."""
        if self.pattern is not None:
            return self.pattern.match(name) is not None
        return not self.end or len(name) == len(self.head)


class Overrides(tuple[Override, ...]):
    """In file order, found by their heads: whole names and beginnings of a length in tables, those with gaps through a tree.

    A checkpoint can have as many of them as modules.
    """

    def __init__(self, _found: Iterable[Override] = ()) -> None:
        self._names: dict[str, _Found] = {}
        self._begins: dict[int, dict[str, list[_Found]]] = {}
        self._root: _Node | None = None
        for number, override in enumerate(self):
            head = override.head
            if not isinstance(head, str):
                self._root = self._root or _Node()
                self._root.add(number, override)
            elif override.end and override.pattern is None:
                self._names.setdefault(head, (number, override))
            else:
                self._begins.setdefault(len(head), {}).setdefault(head, []).append((number, override))

    def first_match(self, name: str) -> Override | None:
        """The first key that matches."""
        found = [self._names[name]] if name in self._names else []
        for length, table in self._begins.items():
            found += [x for x in table.get(name[:length], ()) if x[1].accepts(name)]
        if self._root is not None:
            found += [x for x in self._root.below(name) if x[1].accepts(name)]
        return min(found, key=lambda x: x[0])[1] if len(found) > 1 else found[0][1] if found else None


_Found = tuple[int, Override]  # its number in the file


class _Node:
    """Of the tree: edges by character (None: any), and the overrides whose head ends here."""

    __slots__ = ("here", "next")

    def __init__(self) -> None:
        self.next: dict[str | None, _Node] = {}
        self.here: list[_Found] = []

    def add(self, number: int, override: Override) -> None:
        node = self
        for character in override.head:
            node = node.next.setdefault(character, _Node())
        node.here.append((number, override))

    def below(self, name: str) -> Iterator[_Found]:
        """Those whose head the name begins with."""
        nodes = [self]
        for character in (*name, ""):  # "": the end, where no edge leads on
            for node in nodes:
                yield from node.here
            nodes = [n for node in nodes for n in (node.next.get(character), node.next.get(None) if character else None) if n is not None]


class BadPattern(ValueError):
    """A key of `dynamic` that is no regular expression, or whose value is no table."""


_SIMPLE = re.compile(r"\^?((?:[A-Za-z0-9_./ -]|\\[^A-Za-z0-9\n])*)")  # characters that stand for themselves, dots, escaped ones
_TOKEN = re.compile(r"\\(.)|(.)")


def _head(pattern: str) -> tuple[Head, bool, bool]:
    """(head, whether the pattern is its head alone, whether the name ends there too).

    A quantifier takes back the character before it; with an alternative anywhere nothing is certain.
    """
    m = _SIMPLE.match(pattern)
    assert m is not None
    rest = pattern[m.end() :]
    if "|" in rest:
        return "", False, False
    if rest in ("", "$"):
        return _characters(m[1]), True, rest == "$"
    return _characters(m[1])[: -1 if rest[0] in "*+?{" else None], False, False


def _characters(text: str) -> Head:
    if "." not in text.replace("\\.", ""):
        return text.replace("\\", "") if "\\\\" not in text else "".join(t[1] or t[2] for t in _TOKEN.finditer(text))
    return tuple(t[1] or (None if t[2] == "." else t[2]) for t in _TOKEN.finditer(text))


def dynamic_overrides(dynamic: Mapping[str, Any]) -> Overrides:
    """`dynamic` in file order: `-:` skips, `+:` or no prefix overrides. Raises BadPattern."""
    found = []
    for key, values in dynamic.items():
        skip, bare = key.startswith("-:"), key[2:] if key[:2] in ("-:", "+:") else key
        head, alone, end = _head(bare)
        try:
            pattern = None if alone else compiled(bare)
        except BadExpression as e:
            raise BadPattern(f"dynamic: {key!r} {e}") from None
        if not isinstance(values, Mapping):
            if not skip:
                raise BadPattern(f"dynamic: the value of {key!r} is no table of fields")
            values = {}
        found.append(Override(key, head, end, pattern, skip, values))
    return Overrides(found)


def listed(name: str, entries: Iterable[str]) -> str | None:
    """The entry of a `modules_to_not_convert` list that is part of the name (AWQ's rule), None if there is none."""
    return next((e for e in entries if e and e in name), None)
