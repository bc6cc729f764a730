"""HTML as nested calls: every text is escaped on its way in, so that no name can become markup.

In: texts and elements.  Out: `Markup`, which this module alone makes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from typing import Any

from humming_convert.findings import harmless

VOID = frozenset({"input", "meta"})  # elements without an end


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """A text as HTML; characters that do not print, or turn the direction of what follows, are spelled out."""
    return value if isinstance(value, Markup) else Markup(escape(harmless(str(value))))


def join(parts: Iterable[object]) -> Markup:
    """One after the other."""
    return Markup("".join(text(p) for p in parts))


def el(tag: str, *content: object, **attributes: object) -> Markup:
    """An element. Attribute names: `class_`, `aria_label`; True is an attribute without a value, None and False leave it out."""
    said = ""
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        said += f" {key}" if value is True else f' {key}="{text(value)}"'
    if tag in VOID:
        return Markup(f"<{tag}{said}>")
    return Markup(f"<{tag}{said}>{join(content)}</{tag}>")


def raw(tag: str, body: str, **attributes: object) -> Markup:
    """A `style` or `script` of our own, which browsers do not unescape. It may not hold its own end."""
    assert f"</{tag}" not in body.lower(), tag
    return el(tag, Markup(body), **attributes)


def data(value: Any, **attributes: object) -> Markup:
    """A JSON document inside the page. No `<` or `&` is in it, so that nothing in it can end the element."""
    body = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        body = body.replace(sign, f"\\u{ord(sign):04x}")
    return raw("script", body, type="application/json", **attributes)


def digest(body: str) -> str:
    """As a content security policy names an element's body: the page may run this one and no other."""
    return f"'sha256-{b64encode(sha256(body.encode()).digest()).decode()}'"
