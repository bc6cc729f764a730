"""Regular expressions that stand in configs: compiled, or refused before they are run.

In: a pattern of a config or of the command line.  Out: the compiled pattern, or BadExpression with the reason.
A repeat inside of a repeat, both without a bound, can take a time that doubles with every character of a module's name; no quantizer
writes one, and a checkpoint that holds one must not hang who reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

BOUND = 32  # repeats that end here or before are none without a bound
REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


class BadExpression(ValueError):
    """A text that is no regular expression, or one that could run for ages."""


@lru_cache(maxsize=1 << 15)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern. Raises BadExpression."""
    try:
        found = re.compile(pattern)
        nested = (
            any(_nested(node) for node in _nodes(_parsed(pattern)))
            if pattern.count("*") + pattern.count("+") + pattern.count("{") > 1
            else False
        )
    except (re.error, RecursionError, OverflowError) as error:
        raise BadExpression(f"is no regular expression ({error})") from None
    if nested:
        raise BadExpression("repeats something that repeats itself without a bound, which can take forever")
    return found


def _parsed(pattern: str) -> Any:
    try:
        from re import _parser  # type: ignore[attr-defined]  # Python >= 3.11
    except ImportError:
        import sre_parse as _parser
    return _parser.parse(pattern)


def _nodes(tree: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """(name of the operation, its argument) of every node, from the top."""
    for op, argument in tree:
        yield str(op), argument
        for part in _below(argument):
            yield from _nodes(part)


def _below(argument: Any) -> Iterator[Any]:
    """The trees inside of an operation's argument: sequences of (operation, argument)."""
    for part in argument if isinstance(argument, (tuple, list)) else ():
        if hasattr(part, "getwidth"):
            yield part
        elif isinstance(part, (tuple, list)):
            yield from _below(part)


def _unbounded(node: tuple[str, Any]) -> bool:
    return node[0] in REPEATS and int(node[1][1]) > BOUND


def _nested(node: tuple[str, Any]) -> bool:
    return _unbounded(node) and any(_unbounded(inner) for inner in _nodes(node[1][2]))
