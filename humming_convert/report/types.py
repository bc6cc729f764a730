"""What a page says, before it is HTML: values that the three reports fill and `page` prints.

Nothing of time, host or path is in it: the same findings give the same page, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from humming_convert.findings import Finding

Mark = Literal["packs", "lossy", "refused", "plain", "proven", "whole", "failed", "unchecked"]
"""The verdict on a layer in one word; page.MARKS has its sign and its sentence."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What one view says of a layer. why: the reason, or the steps that change values.

    pad_n, pad_k: rows and columns added.  nbytes: of the packed tensors, None where there are none.
    """

    mark: Mark
    why: str = ""
    pad_n: int = 0
    pad_k: int = 0
    nbytes: int | None = None


class Layer(Struct, frozen=True, kw_only=True):
    """A layer of the map. source: its format in words.  bits: of a code.  nbytes: in the source, None where that is not known.

    parts: how many source modules.  rank: "" where there is one only.  verdicts: one a view.
    """

    name: str
    source: str
    bits: int
    n: int
    k: int
    experts: int | None
    parts: int
    nbytes: int | None
    verdicts: tuple[Verdict, ...]
    rank: str = ""

    @property
    def shape(self) -> str:
        """`8 x 4096 x 1024`: experts, N, K."""
        experts = f"{self.experts} × " if self.experts is not None else ""
        return f"{experts}{self.n} × {self.k}"

    def first(self, views: int) -> Layer:
        """With the verdicts of the first views alone."""
        return replace(self, verdicts=self.verdicts[:views])


class View(Struct, frozen=True):
    """One way to look at the map: (target, activation), or what was checked."""

    group: str
    name: str


class Map(Struct, frozen=True, kw_only=True):
    """axes: what the group and the name of a view are. first: the view that is shown first."""

    axes: tuple[str, str]
    views: tuple[View, ...]
    layers: tuple[Layer, ...]
    first: int = 0


class Cell(Struct, frozen=True):
    """A cell with a mark: `text` follows the sign."""

    mark: Mark
    text: str = ""


class Table(Struct, frozen=True, kw_only=True):
    """A section with one table, or with text alone. below: lines under the table.  wide: many narrow columns."""

    title: str
    text: str = ""
    head: tuple[str, ...] = ()
    rows: Sequence[Sequence[str | int | Cell]] = ()
    below: Sequence[str] = ()
    wide: bool = False


class Report(Struct, frozen=True, kw_only=True):
    """A page. state: the verdict on the whole.  facts: (label, value), the large figures.  about: (label, value), where it is from.

    findings: (title, those of it).  tail: what stands below the layers.
    """

    title: str
    state: Cell
    facts: Sequence[tuple[str, str]]
    about: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    findings: Sequence[tuple[str, Sequence[Finding]]]
    layers: Map
    tail: Sequence[Table] = ()
