"""Weight scales by compiled passes: [N', G] of one or two bytes to the packed tensor, as `layouts.scales` does it.

In: one expert's padded scales, either axis contiguous.  Out: the packed array; equal to `layouts.scales.place_scales` in values and type.
Scale tensors are a sixteenth to a quarter of the weights (NVFP4, MXFP4), too much for strided copies of single bytes.
Facts: layouts.md 6.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.layouts.config import ScalePlace
from humming_convert.layouts.scales import place_scales as place_slowly
from humming_convert.passes.aux_values import LINE, address, empty_lines
from humming_convert.passes.blocks import NOWHERE
from humming_convert.passes.calls import At, Listing, function
from humming_convert.passes.known import tiles
from humming_convert.passes.orders import LANE_BITS, TOP, Order, log2, names, tile_of
from humming_convert.passes.plans import starts
from humming_convert.passes.positions import Ints, ppu_row
from humming_convert.passes.route import ROW, Purpose, Route

Array = NDArray[Any]
MAX_REGISTERS = 64
SMALL = 1 << 14  # scales; below, numpy is faster than the tables of a pass
CACHED = 1 << 19  # bytes of placed scales that stay in the second-level cache beside those that are read


class _Linear(Struct, frozen=True):
    """From these multiples of n and g on, positions are linear; whole ones only."""

    rows: int
    groups: int


LINEAR: dict[ScalePlace, _Linear] = {
    "normal": _Linear(64, 1),
    "on_c": _Linear(32, 1),
    "umma": _Linear(128, 4),
    "mx1": _Linear(16, 2),
    "mx4": _Linear(1, 4),
}


def scale_position(place: ScalePlace, ppu: bool, n_total: int, n: Ints, g: Ints) -> Ints:
    """Where the scale of row n, group g goes, counted in scales (layouts.md 6.2 to 6.6)."""
    if place == "normal":
        n = ppu_row(n) if ppu else n
        return np.asarray(g * n_total + n // 64 * 64 + 8 * (n % 8) + n % 64 // 8)
    if place == "on_c":
        q = n % 32
        return np.asarray(g * n_total + n // 32 * 32 + 2 * (q // 8) + 8 * (q % 8 // 2) + q % 2)
    if place == "umma":
        return np.asarray((g // 4 * n_total + n // 128 * 128 + 4 * (n % 32) + n % 128 // 32) * 4 + g % 4)
    if place == "mx1":
        return np.asarray((g // 2 * (n_total // 2) + 8 * (n // 16) + n % 8) * 4 + 2 * (n % 16 // 8) + g % 2)
    assert place == "mx4", place
    return np.asarray((g // 4 * n_total + n) * 4 + g % 4)


def _source(letter: str, other: str, width: int, pitch: int) -> Order:
    """An array whose contiguous axis is `letter`."""
    inside = log2(32 // width)
    strides = {f"{letter}{i}": 4 << (i - inside) for i in range(inside, TOP)} | {f"{other}{i}": pitch << i for i in range(TOP)}
    return Order(fields=names(letter, 0, inside), lanes=names(letter, inside, inside + LANE_BITS), near=(), strides=strides)


def _target(place: ScalePlace, ppu: bool, n_total: int, width: int) -> Order:
    powers, none = np.array([1 << i for i in range(TOP)]), np.zeros(TOP, np.int64)
    fields, strides = {}, {}
    for letter, n, g in (("n", powers, none), ("k", none, powers)):
        for i, scale in enumerate(scale_position(place, ppu, n_total, n, g)):
            if scale * width < 32:
                fields[f"{letter}{i}"] = int(scale)
            else:
                strides[f"{letter}{i}"] = int(scale) * width // 8
    by_stride = {stride: x for x, stride in strides.items()}
    lanes = tuple(by_stride[4 << i] for i in range(LANE_BITS))
    return Order(fields=tuple(sorted(fields, key=lambda x: fields[x])), lanes=lanes, near=(), strides=strides)


class ScaleShape(Struct, frozen=True, kw_only=True):
    """Scales [n, g] of some rows of a packed tensor of n_total rows, from a multiple of `LINEAR` rows on. width: bits of a scale; strides: of
    rows and groups where they are read, in bytes. past: they are written past the caches, which hold neither all of them nor a line of every
    group; the tensor begins at a line's start."""

    place: ScalePlace
    ppu: bool
    n: int
    g: int
    n_total: int
    width: int
    strides: tuple[int, int]
    past: bool = False


class ScalePlan(Struct, frozen=True):
    """Parameters of the pass of one shape (source, target and result still 0), and the tables they point at. tiles: how many there are."""

    route: Route
    parameters: Ints
    tables: tuple[Ints, ...]
    slots: tuple[int, int, int]
    tiles: int


@lru_cache(maxsize=128)
def scale_plan(shape: ScaleShape) -> ScalePlan | None:
    """None where no whole tile fits."""
    place, ppu, n, g, n_total, width, strides = (getattr(shape, x) for x in ("place", "ppu", "n", "g", "n_total", "width", "strides"))
    linear, size = LINEAR.get(place), width // 8
    if linear is None or width > 16 or n % linear.rows or g % linear.groups or (width == 16 and linear.groups > 1):
        return None
    if strides[1] == size and strides[0] > 0:
        source = _source("k", "n", width, strides[0])
    elif strides[0] == size and strides[1] > 0:
        source = _source("n", "k", width, strides[1])
    else:
        return None
    target = _target(place, ppu, n_total, width)
    tile = tile_of(source, target)
    registers = tile.source[log2(32 // width) + LANE_BITS :]
    if n < tile.rows or g < tile.columns or 1 << len(registers) > MAX_REGISTERS:
        return None
    rows, groups = np.array(starts(0, n, tile.rows)), np.array(starts(0, g, tile.columns))
    to_rows = scale_position(place, ppu, n_total, rows[:, 0], 0 * rows[:, 0]) * size
    to_groups = scale_position(place, ppu, n_total, 0 * groups[:, 0], groups[:, 0]) * size
    by_rows = np.stack([rows[:, 0] * strides[0], to_rows, 0 * to_rows, rows[:, 1]], 1)
    by_groups = np.stack([groups[:, 0] * strides[1], to_groups, 0 * to_groups, groups[:, 1]], 1)
    rest = np.zeros((1, ROW), np.int64)
    for bit in tile.rest:
        rest = np.concatenate([rest, rest + np.array([source.strides[bit], target.strides[bit], 0, 0])])
    steps = [target.strides[x] for x in tile.target[len(target.fields) + LANE_BITS :]]
    past = shape.past and not any((x % LINE).any() for x in (to_rows, to_groups, rest[:, 1], np.array(steps, np.int64)))
    route = Route(width=width, bits=width, source=tile.source, target=tile.target, read="vectors", past=past)
    # in sequence goes what is waited for: what is written or, past the caches, what is read
    loops = (by_rows, by_groups) if past else (by_groups, by_rows)
    outer, inner, rest = (np.ascontiguousarray(x, np.int64) for x in (*loops, rest))
    values = {"source": 0, "target": 0, "aux": NOWHERE, "result": 0, "lane": 0, "run": 0}
    for name, table in (("outer", outer), ("inner", inner), ("rest", rest)):
        values |= {name: address(table), f"{name}s": len(table)}
    values |= {f"s:{x}": source.strides[x] for x in registers} | {f"d:{x}": target.strides[x] for x in route.target_registers}
    names = list(route.parameters)
    parameters = np.array([values[x] for x in names], np.int64)
    slots = names.index("source"), names.index("target"), names.index("result")
    return ScalePlan(route, parameters, (outer, inner, rest), slots, len(outer) * len(inner) * len(rest))


def place_scale(scale: Array, place: ScalePlace, ppu: bool) -> Array:
    """One expert's weight scales to their packed tensor: fast where whole tiles fit, else by the reference."""
    return np.asarray(place_scales(scale[None], place, ppu)[0])


def place_scales(scales: Array, place: ScalePlace, ppu: bool) -> Array:
    """The same for every expert [E, N', G]."""
    experts, n, g = scales.shape
    strides, past = (scales.strides[1], scales.strides[2]), scales.strides[2] == scales.itemsize and scales.nbytes > CACHED
    shape = ScaleShape(place=place, ppu=ppu, n=n, g=g, n_total=n, width=scales.itemsize * 8, strides=strides, past=past)
    plan = scale_plan(shape) if n * g >= SMALL else None
    if plan is None:
        return place_slowly(scales, place, ppu)
    groups = LINEAR[place].groups
    kind, packed = (scales.dtype, (g, n)) if groups == 1 else (np.dtype("<i4"), (g // groups, n * groups // 4))
    assert not plan.route.past or n * g * scales.itemsize % LINE == 0, shape  # every expert's begin at a line's start
    out, result, kernel = empty_lines(scales.nbytes).view(kind).reshape(experts, *packed), np.zeros(8, np.int64), tiles(plan.route, "pack")
    for scale, to in zip(scales, out, strict=True):
        parameters = plan.parameters.copy()
        for slot, array in zip(plan.slots, (scale, to, result), strict=True):
            parameters[slot] = address(array)
        result[0] = 0  # what was counted for the expert before is no answer
        kernel(parameters)
        if result[0] != n * g:
            raise AssertionError(f"{result[0]} of {n * g} scales were placed")
    return out


def add_scales(listing: Listing, purpose: Purpose, shape: ScaleShape, source: At, target: At, result: int) -> None:
    """Calls that place scales, or compare placed ones with the source's, and that compare how many the kernel did. Of a shape with a plan.

    target: where the first row's first group goes.  result: base of eight int64."""
    plan = scale_plan(shape)
    assert plan is not None, shape
    assert not plan.route.past or target.offset % LINE == 0, (shape, target)
    want = _counts(shape.n * shape.g, plan.tiles)
    listing.call(function("memset"), At(result), 0, want.nbytes, want=At(result))
    listing.kernel(tiles(plan.route, purpose), plan.parameters, tuple(zip(plan.slots, (source, target, At(result)))))
    listing.call(function("memcmp"), At(result), address(want), want.nbytes)
    listing.held += [plan, want]


def placed_at(shape: ScaleShape, row: int, group: int) -> int:
    """Byte of the packed tensor where the scale of a row and a group (multiples of `LINEAR`) goes."""
    linear = LINEAR[shape.place]
    assert row % linear.rows == 0 and group % linear.groups == 0, (shape, row, group)
    return int(scale_position(shape.place, shape.ppu, shape.n_total, np.array(row), np.array(group))) * shape.width // 8


@lru_cache(maxsize=None)
def _counts(scales: int, tiles: int) -> Ints:
    """One array for equal numbers, so that the calls of equal parts are equal."""
    return np.array((scales, tiles), np.int64)
