"""The map as data for the page's script: names and verdicts once, layers as short lists of numbers.

In: a Map.  Out: a document that page.js reads. 22,000 layers are about a megabyte.
"""

from __future__ import annotations

from typing import Any

from humming_convert.findings import harmless
from humming_convert.report.marks import MARKS, block_of, padding, pattern, percent
from humming_convert.report.types import Layer, Map, Verdict


class Shelf:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def put(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def rows(self) -> list[Any]:
        return list(self.numbers)


def document(m: Map) -> dict[str, Any]:
    """axes, first: as in Map.  marks: [name, sign, word].  views: [group, name].

    sources: [format, bits, shape, parts].  verdicts: [mark, why, padding, bytes].  lines: a verdict a view, by number.
    blocks, sorts: names; a sort is the pattern of a layer's name inside its block.
    layers: [block, name in the block, sort, source, line, bytes or -1, rank].
    """
    sources, verdicts, lines, blocks, sorts = Shelf(), Shelf(), Shelf(), Shelf(), Shelf()
    names = list(MARKS)
    layers = []
    for x in m.layers:
        block, rest = block_of(x.name)
        line = tuple(verdicts.put(_verdict(x, v, names.index(v.mark))) for v in x.verdicts)
        layers.append(
            [
                blocks.put(harmless(block)),
                harmless(rest),
                sorts.put(harmless(pattern(rest))),
                sources.put((harmless(x.source), x.bits, x.shape, x.parts)),
                lines.put(line),
                -1 if x.nbytes is None else x.nbytes,
                x.rank,
            ]
        )
    return {
        "axes": m.axes,
        "first": m.first,
        "marks": [[name, s.sign, s.word] for name, s in MARKS.items()],
        "views": [[v.group, v.name] for v in m.views],
        "sources": sources.rows(),
        "verdicts": verdicts.rows(),
        "lines": lines.rows(),
        "blocks": blocks.rows(),
        "sorts": sorts.rows(),
        "layers": layers,
    }


def _verdict(layer: Layer, v: Verdict, mark: int) -> tuple[int, str, str, int]:
    share = padding(layer, v)
    return mark, harmless(v.why), "" if share is None else percent(share), -1 if v.nbytes is None else v.nbytes
