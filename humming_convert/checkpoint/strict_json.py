"""Strict JSON: what two readers could read differently is refused.

In: bytes and the name of their file.  Out: the top object, and findings of everything that is wrong.
Facts: RFC 8259; architecture.md 9.4 (config.json is rewritten, so it must mean one thing only), R4 to R9.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from humming_convert.checkpoint import rules
from humming_convert.checkpoint.files import read_small
from humming_convert.checkpoint.rules import broken
from humming_convert.findings import Finding

DEPTH = 64  # config.json of real models is at most 6 deep; CPython's parser gives up somewhere below 1000

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def depth_of(raw: bytes) -> int:
    """How deep brackets are nested, those inside strings not counted. For text that is JSON; any number for other text."""
    if b"\\" in raw:
        raw = _ESCAPE.sub(b"__", raw)
    text = np.frombuffer(raw, np.uint8)
    inside = np.bitwise_xor.accumulate(text == ord('"')) if len(text) else text.astype(bool)
    folded = text | 0x20  # [ ] become { }, and nothing else does
    brackets = folded[((folded == ord("{")) | (folded == ord("}"))) & ~inside]
    return int(np.cumsum(np.where(brackets == ord("{"), 1, -1), dtype=np.int64).max(initial=0))


def parse_object(raw: bytes, file: str, what: str | None = None) -> tuple[dict[str, Any], list[Finding]]:
    """The object (as far as it can be read, {} if not at all) and what is wrong. Of a duplicate key the last value is kept.

    file: the plain name of the file that holds `raw`.  what: what `raw` is called in messages, the file's name if it is all of the file.
    """
    what = what or file
    found: list[Finding] = []
    twice: Counter[str] = Counter()
    constants: Counter[str] = Counter()

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice.update(k for k, n in Counter(k for k, _ in pairs).items() if n > 1)
        return made

    def constant(text: str) -> None:
        constants[text] += 1

    def finite(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            constants[text[:40]] += 1
        return value

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        return {}, [
            broken(rules.JSON_ENCODING, f"byte {e.start} of {what} is not UTF-8", file=file, advice="fetch or export the file again")
        ]
    if (depth := depth_of(raw)) > DEPTH:
        return {}, [
            broken(rules.JSON_DEEP, f"{what} is nested {depth} deep, more than {DEPTH}", file=file, advice="no tool writes such a file")
        ]
    # "-0" is an integer to Python and no unsigned integer to other readers
    whole = _whole if b"-0" in raw else None
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_float=finite, parse_int=whole)
    except ValueError as e:  # also integers of more digits than Python converts
        return {}, [broken(rules.JSON_INVALID, f"{what} is not JSON: {e}", file=file, advice="mend it, or fetch or export it again")]
    if _SURROGATE.search(raw) and not _encodes(value):
        found.append(
            broken(
                rules.JSON_ENCODING,
                f"{what} escapes half of a surrogate pair, which is no character",
                file=file,
                advice="export the file again",
            )
        )
    for text, count in constants.items():
        found.append(
            broken(
                rules.JSON_CONSTANT,
                f"{what} holds {text}, which is no JSON number",
                file=file,
                count=count,
                advice="write a number or null",
            )
        )
    for key, count in twice.items():
        found.append(
            broken(
                rules.JSON_DUPLICATE_KEY,
                f"{what} holds the key {key!r} twice in one object, and readers differ in which value they take",
                file=file,
                count=count,
                advice="leave the right one",
            )
        )
    if not isinstance(value, dict):
        found.append(broken(rules.JSON_NOT_OBJECT, f"{what} is no JSON object", file=file, advice="fetch or export the file again"))
        return {}, found
    return value, found


def read_object(path: Path) -> tuple[dict[str, Any], list[Finding]]:
    """`parse_object` of a file."""
    raw = read_small(path)
    return ({}, [raw]) if isinstance(raw, Finding) else parse_object(raw, path.name)


def _whole(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
