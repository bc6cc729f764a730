"""The verdicts' signs and sentences, and the rows of layers that are alike. The page and its script read the same table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from humming_convert.report.types import Layer, Mark, Verdict


class Sign(Struct, frozen=True):
    """sign: beside every colour.  word: on the page.  text: what it means."""

    sign: str
    word: str
    text: str


MARKS: dict[Mark, Sign] = {
    "proven": Sign("✓", "proven", "every code and scale was read back and compared with the source: equal"),
    "whole": Sign("✓", "whole", "every byte is what the manifest says"),
    "packs": Sign("✓", "packs", "packed without a step that changes a value"),
    "lossy": Sign("≈", "lossy", "a named step changes values, or may where the layer is not converted yet"),
    "plain": Sign("–", "plain", "written as a plain matrix, not packed"),
    "unchecked": Sign("?", "not checked", "nothing was checked here"),
    "refused": Sign("✕", "refused", "cannot be packed so; the reason stands beside it"),
    "failed": Sign("✕", "failed", "a check failed; the findings say which"),
}
"""In the order from good to bad."""

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a dotted name


def pattern(name: str) -> str:
    """`layers.3.mlp` and `layers.4.mlp` are `layers.*.mlp`."""
    return _NUMBER.sub("*", name)


def block_of(name: str) -> tuple[str, str]:
    """(block, the rest): `model.layers.3`, `mlp.down_proj`. A name without a number is of no block: ("", name)."""
    found = _NUMBER.search(name)
    if found is None or found.end() == len(name):
        return "", name
    return name[: found.end()], name[found.end() + 1 :]


def counted(marks: Iterable[Mark]) -> list[tuple[Mark, int]]:
    """How many layers of each mark, from good to bad."""
    count = Counter(marks)
    return [(m, count[m]) for m in MARKS if count[m]]


def padding(layer: Layer, v: Verdict) -> float | None:
    """Share of the packed weight that is padding, 0 to 1; None where nothing is packed."""
    if v.nbytes is None:
        return None
    whole = (layer.n + v.pad_n) * (layer.k + v.pad_k)
    return 1 - layer.n * layer.k / whole if whole else 0.0


def percent(share: float) -> str:
    """`0 %`, `0.4 %`, `12 %`: never 0 for what is more."""
    if share == 0:
        return "0 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{max(100 * share, 0.1):.1f} %"


def alike(layers: Sequence[Layer], view: int) -> list[tuple[Layer, str, int]]:
    """(one of them, the names' pattern, how many): layers that differ in nothing but the numbers in their names."""
    rows: dict[tuple[object, ...], tuple[Layer, list[int]]] = {}
    for x in layers:
        key = (pattern(x.name), x.source, x.n, x.k, x.experts, x.nbytes, x.parts, x.verdicts[view])
        rows.setdefault(key, (x, [0]))[1][0] += 1
    return [(x, pattern(x.name) if count[0] > 1 else x.name, count[0]) for x, count in rows.values()]
