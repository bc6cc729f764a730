"""Scales that only move, from where they are stored to where they belong: in windows of some groups, cast by a table on the way.

Those that are padded, or lowered by a number for each expert (S5), go through memory as one padded matrix an expert. Packing reads the parts
of a fused or stacked tensor where they lie. The proof goes the other way: every scale that the file holds is compared with the source's, and some groups are read again by Python, from where it says that they are, cast and put back into order by the references.
In: a planned layer.  Out: parts and windows of one expert; the first difference as a ProofFailed.
Facts: layouts.md 2 (S5), 3, 6; architecture.md 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.checkpoint.tensors import DTYPES, Read
from humming_convert.layouts import padding, scales_apart
from humming_convert.layouts.config import LayerRecipe, ScalePlace
from humming_convert.layouts.e8m0 import low_of
from humming_convert.layouts.scales import unplace_scale
from humming_convert.plan.types import PlannedLayer
from humming_convert.proof.failed import ProofFailed
from humming_convert.proof.stream import large, sampled_expert, some_places
from humming_convert.standard.expr import Cast, Weight, cast_values
from humming_convert.standard.numbers import STORED_AS
from humming_convert.standard.parts import StoredPart, stored_parts

ROLE = "weight_scale"
WINDOW = 1 << 18  # bytes: the source's numbers, their place in memory and both files' pages stay in the second-level cache
GROUPS = 2  # read again by Python: in every group the order of the rows is the same
ROWS = 128  # of each part where it is stored row by row; a multiple of `passes.LINEAR`

ReadFile = Callable[[int, int], NDArray[np.uint8]]
"""(offset, bytes) -> what the output file holds there."""


class ScaleSort(Struct, frozen=True, kw_only=True):
    """All that decides how the scales [n, g] of an expert move, whatever their files and values. size: bytes of one; cast: whether a table rounds
    them; parts: (first row, rows, stored as [g, rows]).  longer: None, or how they become a matrix of other rows and groups."""

    place: ScalePlace
    ppu: bool
    n: int
    g: int
    size: int
    cast: bool
    parts: tuple[tuple[int, int, bool], ...]
    longer: Longer | None = None

    @property
    def packed(self) -> tuple[int, int]:
        """Rows and groups of what is placed."""
        return (self.n, self.g) if self.longer is None else (self.longer.n, self.longer.g)

    @property
    def nbytes(self) -> int:
        n, g = self.packed
        return n * g * self.size

    @property
    def pitch(self) -> int:
        """Bytes of a row of the padded matrix."""
        return self.packed[1] * self.size

    def shape(self, part: int, groups: int) -> passes.ScaleShape:
        """A part of a window of so many groups, as the pass is told of it. Of a padded matrix all of it, which was just written and goes through the caches."""
        if self.longer is not None:
            (n, g), strides = self.packed, (self.pitch, self.size)
            return passes.ScaleShape(place=self.place, ppu=self.ppu, n=n, g=g, n_total=n, width=8 * self.size, strides=strides)
        row, n, turned = self.parts[part]
        strides = (self.size, n * self.size) if turned else (groups * self.size, self.size)
        shape = passes.ScaleShape(place=self.place, ppu=self.ppu, n=n, g=groups, n_total=self.n, width=8 * self.size, strides=strides)
        past = not turned and self.n * groups * self.size > passes.CACHED and passes.placed_at(shape, row, 0) % passes.LINE == 0
        return replace(shape, past=past)


class Longer(Struct, frozen=True):
    """The matrix [n, g] that the scales become part of. fill: bytes of new groups (`passes.ROW_LARGEST`: each row's largest).
    lowered: all of them less a number of the expert's, S5; new rows are what it says too."""

    n: int
    g: int
    fill: int
    lowered: bool


@lru_cache(maxsize=256)
def windows_of(sort: ScaleSort) -> list[tuple[int, int]]:
    """(first group, end): some groups at a time where each is stored as one row, else all of them."""
    if not all(turned for _, _, turned in sort.parts):
        return [(0, sort.g)]
    unit = passes.LINEAR[sort.place].groups
    step = max(WINDOW // (sort.n * sort.size) // unit, 1) * unit
    return [(g, min(g + step, sort.g)) for g in range(0, sort.g, step)]


@lru_cache(maxsize=256)
def has_passes(sort: ScaleSort) -> bool:
    """Whether there is a compiled pass for every part of every window."""
    if sort.longer is not None:
        straight = not any(turned for _, _, turned in sort.parts) and sort.g * sort.size >= passes.ROW
        return straight and passes.scale_plan(sort.shape(0, sort.g)) is not None
    rows, each = passes.LINEAR[sort.place].rows, {g1 - g0 for g0, g1 in windows_of(sort)}
    return all(
        row % rows == 0 and passes.scale_plan(sort.shape(i, g)) is not None for i, (row, _, _) in enumerate(sort.parts) for g in each
    )


class ScaleStream:
    """The scales of one expert, a matrix [n, g]. cast: what rounds them, None where they stay as they are.
    low: of S5; minus: what is taken off every byte; row_fill: bytes of new rows, as they are placed."""

    def __init__(self, planned: PlannedLayer, expert: int, parts: tuple[StoredPart, ...], cast: Cast | None, read: Read) -> None:
        recipe = planned.recipe
        assert recipe is not None
        self.planned, self.expert, self.parts, self.cast = planned, expert, parts, cast
        self.n, self.g, self.size = recipe.n, parts[0].columns, DTYPES[parts[0].view.dtype].itemsize
        self.sort = ScaleSort(
            place=recipe.small.place,
            ppu=recipe.pair.target.ppu,
            n=self.n,
            g=self.g,
            size=self.size,
            cast=cast is not None,
            parts=tuple((p.row, p.n, p.turned) for p in parts),
            longer=_longer(recipe, self.n, self.g),
        )
        self.windows = windows_of(self.sort)
        self.low: int | None = None
        self.minus, self.row_fill, self.below = 0, 0, False
        longer = self.sort.longer
        if longer is not None:
            self.row_fill = longer.fill
            if longer.lowered:
                self._lower(recipe, longer, read)

    def _lower(self, recipe: LayerRecipe, longer: Longer, read: Read) -> None:
        """Reads the scales for their largest and smallest, those of new rows among them."""
        arrays = [read(p.view).view(np.uint8) for p in self.parts]
        top, bottom = max(x.max() for x in arrays), min(x.min() for x in arrays)
        new = int(top) if recipe.environment.pads_rows_with_maximum else padding.ONE
        if longer.n > self.n:
            top, bottom = max(top, np.uint8(new)), min(bottom, np.uint8(new))
        low = self.low = int(low_of(top, bottom, recipe.small.fused))
        self.below = int(bottom) < low
        self.minus = (low - recipe.small.fused_plus) % 256
        self.row_fill = (new - self.minus) % 256

    @property
    def nbytes(self) -> int:
        return self.sort.nbytes

    def failed(self, what: str) -> ProofFailed:
        where = "" if self.planned.recipe is None or self.planned.recipe.experts is None else f" of expert {self.expert}"
        return ProofFailed(self.planned, ROLE, f"{self.planned.outputs[ROLE].name}: {what}{where}")

    def prove_samples(self, read: Read, read_file: ReadFile) -> None:
        """Some groups, all rows or ROWS of each part, read again from the source and from the file. read_file: from this expert's first byte on."""
        assert self.planned.recipe is not None
        if not sampled_expert(self.expert, self.planned.recipe.experts or 1):
            return
        unit, (n, g) = passes.LINEAR[self.sort.place].groups, self.sort.packed
        units = some_places(g // unit, max(GROUPS // unit, 1), self.expert)
        if g > self.g:  # the last one too, which is padding
            units = np.array(sorted({*units.tolist(), g // unit - 1}))
        groups = (units[:, None] * unit + np.arange(unit)).reshape(-1)
        step = unit * n * self.size
        raw = np.stack([read_file(int(u) * step, step) for u in units])
        dtype = DTYPES[self.planned.outputs[ROLE].dtype]
        placed = unplace_scale(raw.view(dtype).reshape(len(units), -1), self.sort.place, self.sort.ppu, n, len(groups))
        for part in self.parts:
            first, numbers = self._some(part, groups, read)
            want = numbers if self.cast is None else cast_values(numbers, self.cast.dtype)
            got = placed[part.row + first : part.row + first + len(want)]
            if got.shape != want.shape or not passes.equal_bytes(_bits(got), _bits(want)):
                raise self.failed(f"groups {groups.tolist()} restored are not those of {part.view.name}")
        if (np.ascontiguousarray(placed[self.n :]).view(np.uint8) != self.row_fill).any():
            raise self.failed(f"groups {groups.tolist()} of the rows from {self.n} on, which are padding, are not {self.row_fill}")

    def _some(self, part: StoredPart, groups: NDArray[np.intp], read: Read) -> tuple[int, NDArray[Any]]:
        """(first row, numbers of some rows [rows, groups]), as they are stored, padded and lowered by the references."""
        if part.turned:
            return 0, np.concatenate([read(part.view.rows(g, g + 1)) for g in groups.tolist()]).T
        first = ROWS * int(some_places(max(part.n // ROWS, 1), 1, self.expert)[0])
        rows, longer = read(part.view.rows(first, min(first + ROWS, part.n))), self.sort.longer
        if longer is None:
            return first, rows[:, groups]
        if not longer.lowered:
            return first, padding.extend(rows[None], len(rows), longer.g, longer.fill)[0][:, groups]
        padded = padding.extend_fused(rows[None].view(np.uint8), len(rows), longer.g, with_maximum=True)[0]
        return first, (padded - np.uint8(self.minus))[:, groups]  # as an array it may wrap


def _longer(recipe: LayerRecipe, n: int, g: int) -> Longer | None:
    """None where scales [n, g] are neither padded nor lowered."""
    fused, size = bool(recipe.small.fused), (recipe.config.shape_n, recipe.config.shape_k // recipe.pair.gw if recipe.pair.gw else g)
    if size == (n, g) and not fused:
        return None
    one = recipe.source.scale.dtype == "float8e8m0"
    return Longer(*size, passes.ROW_LARGEST if fused else padding.ONE if one else 0, fused)


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")


def scale_streams(planned: PlannedLayer, read: Read) -> list[ScaleStream] | None:
    """The scales of every expert; None where they are no stored matrices that only move, or the layer is too small to load a pass, or where scales are
    below what S5 counts from, so that codes change with them. read: called for the scales that S5 lowers."""
    recipe, expr, weight = planned.recipe, planned.layer.tensors.get(ROLE), planned.layer.tensors["weight"]
    if recipe is None or expr is None or not isinstance(weight, Weight) or not large(weight) or not scales_apart(recipe):
        return None
    cast = expr if isinstance(expr, Cast) else None
    parts = stored_parts(expr if cast is None else cast.arg)
    sixteen = recipe.source.scale.dtype in ("float16", "bfloat16")
    wanted = recipe.param_dtype if sixteen else STORED_AS[recipe.source.scale.dtype]
    if parts is None or expr.dtype != wanted or DTYPES[parts[0].view.dtype].itemsize != DTYPES[wanted].itemsize:
        return None
    experts, groups = recipe.experts or 1, recipe.k // recipe.pair.gw if recipe.pair.gw else 1
    each = [tuple(p for p in parts if p.expert == e) for e in range(experts)]
    whole = all(sum(p.n for p in mine) == recipe.n for mine in each)
    if not whole or any(p.columns != groups or p.view.dtype != parts[0].view.dtype for p in parts):
        return None
    streams = []
    for e, mine in enumerate(each):
        streams.append(ScaleStream(planned, e, mine, cast, read))
        if streams[-1].below or not has_passes(streams[-1].sort):
            return None
    return streams


def lows(streams: Sequence[ScaleStream]) -> NDArray[np.uint8] | None:
    """S5's low of each expert; None where scales are not lowered."""
    longer = streams[0].sort.longer
    return np.array([x.low for x in streams], np.uint8) if longer is not None and longer.lowered else None
