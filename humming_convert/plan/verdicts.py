"""The table of targets that `inspect` shows: a row for targets that do the same, a column an activation, reasons by their letters.

In: a Survey.  Out: a Verdicts, which prints, goes into JSON and onto the page; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from humming_convert.plan.survey import APART, Mark, Survey


class Reason(Struct, frozen=True):
    """Why some layers are refused in some view. layers: how many are, and the `first` of them; none where it is of the whole checkpoint."""

    text: str
    layers: int = 0
    first: str = ""


class Cell(Struct, frozen=True):
    """All layers together with one activation on a target: refused if one of them is, lossy if a step may change a value of one."""

    mark: Mark
    reasons: tuple[Reason, ...] = ()


class Verdicts(Struct, frozen=True, kw_only=True):
    """cells: target -> activation -> Cell.  layers: how many there are."""

    layers: int
    cells: dict[str, dict[str, Cell]]

    @property
    def acts(self) -> tuple[str, ...]:
        return tuple(next(iter(self.cells.values()))) if self.cells else ()

    def rows(self) -> list[tuple[list[str], tuple[Cell, ...]]]:
        """Targets that do the same, and what they do."""
        out: dict[tuple[Cell, ...], list[str]] = {}
        for target, cells in self.cells.items():
            out.setdefault(tuple(cells.values()), []).append(target)
        return [(targets, cells) for cells, targets in out.items()]

    def letters(self) -> dict[Reason, str]:
        """In the order in which a reader of the rows meets them."""
        met = dict.fromkeys(r for _, cells in self.rows() for cell in cells for r in cell.reasons)
        return {reason: letter(i) for i, reason in enumerate(met)}

    def below(self) -> Iterator[tuple[str, str]]:
        """(letter, the reason and how many layers it is of)."""
        for reason, sign in self.letters().items():
            if not reason.layers:
                yield sign, reason.text
            elif reason.layers == self.layers:
                yield sign, f"{reason.text} (all layers)"
            else:
                yield sign, f"{reason.text} ({reason.layers} of {self.layers} layers, the first {reason.first})"

    def lines(self) -> list[str]:
        """For people who read a terminal."""
        letters, words = self.letters(), {"packs": "yes", "lossy": "lossy", "plain": "plain"}
        rows = [
            (" ".join(targets), [words.get(c.mark) or ",".join(letters[r] for r in c.reasons) for c in cells])
            for targets, cells in self.rows()
        ]
        width = max((len(name) for name, _ in rows), default=0)
        columns = [max(6, *(len(cells[i]) for _, cells in rows)) for i in range(len(self.acts))]
        out = [
            " ".join(["  " + name.ljust(width), *(c.rjust(w) for c, w in zip(cells, columns, strict=True))])
            for name, cells in [("", self.acts), *rows]
        ]
        return [*out, *(f"  {sign:>2}  {text}" for sign, text in self.below())]

    def document(self) -> dict[str, Any]:
        """`targets`: the activations that each can run all layers with; `targets_lossy`: those of them where a step may change a value;
        `targets_refused`: why not the others."""
        each = self.cells.items()
        return {
            "targets": {t: [act for act, c in cells.items() if c.mark != "refused"] for t, cells in each},
            "targets_lossy": {t: [act for act, c in cells.items() if c.mark == "lossy"] for t, cells in each},
            "targets_refused": {
                t: {
                    act: [{"reason": r.text, "layers": r.layers or self.layers, "first": r.first or None} for r in c.reasons]
                    for act, c in cells.items()
                    if c.mark == "refused"
                }
                for t, cells in each
            },
        }


def verdicts(s: Survey) -> Verdicts:
    """Nothing where there is no layer."""
    if not s.layers:
        return Verdicts(layers=0, cells={})
    of_kind: dict[int, list[str]] = {}
    for layer, kind in s.layers:
        of_kind.setdefault(kind, []).append(layer.name)
    cells: dict[str, dict[str, Cell]] = {}
    for i, (target, act) in enumerate(s.views):
        refused: dict[str, list[str]] = {}
        for kind, names in of_kind.items():
            reason = s.kinds[kind][i].reason
            if reason and not (reason == APART and s.whole):  # those errors say why it stands apart
                refused.setdefault(reason, []).extend(names)
        reasons = [Reason(text) for text in s.whole] + [Reason(text, len(names), names[0]) for text, names in refused.items()]
        marks = {s.kinds[kind][i].mark for kind in of_kind}
        mark: Mark = "refused" if reasons else "lossy" if "lossy" in marks else "packs" if "packs" in marks else "plain"
        cells.setdefault(target, {})[act] = Cell(mark, tuple(reasons))
    return Verdicts(layers=len(s.layers), cells=cells)


def letter(i: int) -> str:
    """a .. z, aa, ab, ..."""
    return (letter(i // 26 - 1) if i >= 26 else "") + chr(ord("a") + i % 26)
