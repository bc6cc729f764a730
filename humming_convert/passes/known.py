"""Known values: what a freshly compiled kernel must do before it is used or cached, worked out one code at a time in numpy.

In: a Route.  Out: the kernel, checked once a machine.  The check lays one tile of random codes into memory bit by bit, by the names of
the address bits and by `maps.table`; it shares neither networks nor word arithmetic with the kernel.
Facts: architecture.md 5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.passes.aux_values import address, empty_lines
from humming_convert.passes.machine import Kernel, kernels
from humming_convert.passes.maps import WITH_AUX, table
from humming_convert.passes.orders import LANES
from humming_convert.passes.positions import Ints, compacted_bits
from humming_convert.passes.route import GENERAL, Purpose, Route

Bytes = NDArray[np.uint8]


@lru_cache(maxsize=256)
def tiles(route: Route, purpose: Purpose) -> Kernel:
    """The kernel of a route."""

    def text() -> str:
        from humming_convert.passes.kernels import tile_kernel  # brings llvmlite.ir, which cached code does not need

        return tile_kernel(route, purpose)

    return kernels().get(f"{purpose} {route}", text, lambda kernel: holds(route, purpose, kernel))


@lru_cache(maxsize=32)
def general(bits: int, purpose: Purpose) -> Kernel:
    """The kernel that goes code by code."""

    def text() -> str:
        from humming_convert.passes.kernels import general_kernel

        return general_kernel(bits, purpose)

    return kernels().get(f"general {purpose} {bits}", text, lambda kernel: general_holds(bits, purpose, kernel))


# ---- one tile, bit by bit


def _number(index: Ints, bits: tuple[str, ...], chosen: tuple[str, ...]) -> Ints:
    """The number that the bits `chosen` (low first) of a tile index make; bit i of the index belongs to bits[i]."""
    out = np.zeros_like(index)
    for i, x in enumerate(chosen):
        out |= (index >> bits.index(x) & 1) << i
    return out


def _parts(route: Route, index: Ints, order: tuple[str, ...]) -> tuple[Ints, Ints, Ints]:
    """(field, lane, register) of each code in one of the two orders."""
    place = _number(index, route.source, order)
    fields = 32 // route.width
    return place % fields, place // fields % LANES, place // fields // LANES


def _source_positions(route: Route, index: Ints) -> Ints:
    """[codes, B] bit numbers in the source's memory."""
    field, lane, register = _parts(route, index, route.source)
    i = np.arange(route.bits)
    if route.read == "vectors":
        return ((register * LANES + lane) * 32 + field * route.width)[:, None] + i
    run, group = register % route.width, register // route.width
    bit = ((run * (32 // route.width) + field) * route.bits)[:, None] + i
    lane, group = lane[:, None], group[:, None]
    if route.read == "runs":
        word = (group * route.bits + bit // 32) * LANES + lane
    else:
        word = (group * LANES + lane) * route.bits + bit // 32
    return np.asarray(word * 32 + bit % 32)


def _target_size(route: Route) -> int:
    """Bytes of target memory that the registers without a stride of their own reach over."""
    return 64 if not route.slots else max(route.jumps) + sum(route.fixed) + 4 * route.bits * LANES


def _target_positions(route: Route, index: Ints) -> Ints:
    """[codes, B] bit numbers in the target's memory."""
    field, lane, register = _parts(route, index, route.target)
    moved = field.copy()
    for low, high in route.sign:
        differ = (moved >> low ^ moved >> high) & 1
        moved ^= differ << low | differ << high
    i = np.arange(route.bits)
    fields = np.where(i == route.bits - 1, moved[:, None], field[:, None])
    if not route.slots:
        return np.asarray((register * LANES + lane)[:, None] * 32 + fields * route.width + i)
    slot, above = register % route.width, register // route.width
    byte = lane * 4 * route.bits
    for stride in route.fixed:
        byte, above = byte + above % 2 * stride, above // 2
    byte = byte + above * _target_size(route)
    word, bit = compacted_bits(route.bits, route.width)
    return np.asarray(8 * (byte[:, None] + np.array(route.jumps)[word[slot]]) + fields * route.width + bit[slot])


def _aux_bytes(route: Route, index: Ints, rng: np.random.Generator) -> tuple[Bytes, Ints, int]:
    """(memory, aux value of each code, bytes a register bit adds)."""
    field, lane, register = _parts(route, index, route.source)
    which = np.zeros_like(register)
    for i, bit in enumerate(route.aux_registers):
        which |= (register >> bit & 1) << i
    count = {"lanes": LANES, "words": LANES * 8}.get(route.aux) or int(route.aux.removeprefix("spread"))
    values = rng.integers(0, 1 << route.bits if "int_to_float_zp" in route.maps else 8, ((1 << len(route.aux_registers)), count))
    if route.aux == "words":
        taken = values[which, lane * 8 + field]
        return (values[:, 0::2] | values[:, 1::2] << 4).astype(np.uint8).reshape(-1), taken, 64
    return values.astype(np.uint8).reshape(-1), values[which, lane * count // LANES], count


def _laid(values: Ints, positions: Ints, size: int) -> Bytes:
    """Memory of `size` bytes with bit i of values[c] at positions[c, i]."""
    bits = np.zeros(size * 8, np.uint8)
    bits[positions.reshape(-1)] = (values[:, None] >> np.arange(positions.shape[1]) & 1).reshape(-1)
    return np.packbits(bits, bitorder="little")


class _Tile:
    """One tile of random codes in memory on either side, and the parameters that point there."""

    def __init__(self, route: Route) -> None:
        rng = np.random.default_rng(route.bits)
        index = np.arange(1 << len(route.source))
        lowest = 1 if "e0m" in route.maps else 0
        self.codes = rng.integers(lowest, 1 << route.bits, len(index)) if route.bits > 1 else rng.integers(0, 2, len(index))
        self.aux, aux, aux_step = _aux_bytes(route, index, rng) if route.aux else (np.zeros(64, np.uint8), 0 * index, 0)
        new = self.codes
        if route.maps:
            mapped = table(route.maps, route.bits)
            new = mapped[aux if any(m in WITH_AUX for m in route.maps) else 0 * aux, self.codes].astype(np.int64)
        self._source_at = _source_positions(route, index)
        to = _target_positions(route, index)
        self.flip = 1 << (route.bits - 1) if route.flip else 0
        self.expected = _laid(new, to, int(to.max()) // 32 * 4 + 4)
        self.written = empty_lines(len(self.expected))
        self.written[:] = 0
        self.result = np.zeros(8, np.int64)
        self.table = np.array([0, 0, 0, 1 << len(route.source)], np.int64)
        self.one = np.array([0, 0, 0, 1], np.int64)
        run = 64 if route.read == "runs" else 4 * route.bits
        step = 64 if route.read == "vectors" else 64 * route.bits
        self.values = {"outers": 1, "inners": 1, "rests": 1, "lane": run, "run": run}
        self.values |= {f"s:{x}": step << i for i, x in enumerate(route.source_registers[route.near :])}
        self.values |= {f"d:{x}": _target_size(route) << i for i, x in enumerate(route.target_registers[route.slots + len(route.fixed) :])}
        self.values |= {f"a:{route.source_registers[x]}": aux_step << i for i, x in enumerate(route.aux_registers)}
        self.parameters = route.parameters

    def run(self, kernel: Kernel, target: Bytes, codes: Ints) -> int:
        self.source = _laid(codes ^ self.flip, self._source_at, int(self._source_at.max()) // 32 * 4 + 4)
        arrays: dict[str, NDArray[Any]] = {
            "source": self.source,
            "target": target,
            "aux": self.aux,
            "outer": self.table,
            "inner": self.one,
            "rest": self.one,
        }
        values = self.values | {x: address(y) for x, y in (arrays | {"result": self.result}).items()}
        return kernel(np.array([values[x] for x in self.parameters], np.int64))


def holds(route: Route, purpose: Purpose, kernel: Kernel) -> bool:
    """Whether a tile kernel does to one tile of random codes what it should."""
    t = _Tile(route)
    if purpose == "pack":
        t.run(kernel, t.written, t.codes)
        return bool((t.written == t.expected).all())
    if purpose == "zeros":
        none = np.maximum(t.codes, 1)
        found = [t.run(kernel, t.written, none)]
        for i in np.random.default_rng(1).integers(0, len(none), 32):
            one = none.copy()
            one[i] = 0
            found.append(t.run(kernel, t.written, one))
        return found == [0] + [1] * 32
    if t.run(kernel, t.expected, t.codes) != 0 or t.result[0] != len(t.codes):
        return False
    for bit in np.random.default_rng(1).integers(0, 8 * len(t.expected), 32):
        broken = t.expected.copy()
        broken[bit >> 3] ^= 1 << (bit & 7)
        if _is_code_bit(route, int(bit)) and t.run(kernel, broken, t.codes) != 1:
            return False
    return True


def _is_code_bit(route: Route, bit: int) -> bool:
    """Gaps between the runs of a packed-K sub-block hold no codes in this little memory."""
    return not route.slots or bool((_target_positions(route, np.arange(1 << len(route.source))) == bit).any())


class KnownBox(Struct, frozen=True, kw_only=True):
    """A small box of random codes that moves from one random set of bits to another, through a random table.

    arrays: of the names of GENERAL, with `source`, `aux` and `table`.  expected: bytes of the target.  codes: [rows, columns] as placed.
    at: [rows, columns, B] bit numbers in the target.
    """

    arrays: dict[str, NDArray[Any]]
    aux_pitch: int
    expected: Bytes
    codes: Ints
    at: Ints


def known_box(bits: int) -> KnownBox:
    rng = np.random.default_rng(bits)
    rows, columns = 6, 8
    codes, aux = rng.integers(0, 1 << bits, (rows, columns)), rng.integers(0, 4, (rows, 2)).astype(np.uint8)
    mapped = rng.integers(0, 1 << bits, (256, 1 << bits)).astype(np.uint8)
    aux_columns = np.arange(columns) // 4
    i = np.arange(bits)
    tables: dict[str, NDArray[Any]] = {
        "source_rows": np.arange(rows)[:, None] * (columns * bits) + 0 * i,
        "source_columns": np.arange(columns)[::-1, None] * bits + i[::-1],
        "target_rows": np.arange(rows)[::-1, None] * 64 + 0 * i,
        "target_columns": (np.arange(columns) // 2)[:, None] + 4 * i,
        "row_slot": np.arange(rows) % 2 * 2,
        "column_slot": np.arange(columns) % 2,
        "jump": np.array([0, 32, 64 * rows, 64 * rows + 32])[:, None] + 0 * i,
        "aux_columns": aux_columns,
    }
    arrays: dict[str, NDArray[Any]] = {x: np.ascontiguousarray(y, np.int64) for x, y in tables.items()}
    at = (arrays["source_rows"][:, None] + arrays["source_columns"]).reshape(-1, bits)
    to = arrays["target_rows"][:, None] + arrays["target_columns"] + arrays["jump"][arrays["row_slot"][:, None] + arrays["column_slot"]]
    arrays |= {"source": _laid(codes.reshape(-1), at, rows * columns * bits // 8 + 8), "aux": aux, "table": mapped}
    new = mapped[aux[:, aux_columns], codes].astype(np.int64)
    return KnownBox(arrays=arrays, aux_pitch=2, expected=_laid(new.reshape(-1), to.reshape(-1, bits), 32 * rows), codes=new, at=to)


def general_holds(bits: int, purpose: Purpose, kernel: Kernel) -> bool:
    """Whether the general kernel does to a known box what it should."""
    box = known_box(bits)
    rows, columns = box.codes.shape
    expected = box.expected
    written, result = np.zeros_like(expected), np.zeros(8, np.int64)
    arrays = box.arrays | {"result": result, "target": written if purpose == "pack" else expected}
    values = {x: address(y) for x, y in arrays.items()} | {"rows": rows, "columns": columns, "aux_pitch": box.aux_pitch}
    parameters = np.array([values[x] for x in GENERAL], np.int64)
    found = kernel(parameters)
    if purpose == "pack":
        return bool((written == expected).all())
    if found or result[0] != rows * columns:
        return False
    n, k = 3, 5
    bit = int(box.at[n, k, 0])
    expected[bit >> 3] ^= 1 << (bit & 7)
    found = kernel(parameters)
    return found == 1 and result[:6].tolist() == [rows * columns, 1, n, k, int(box.codes[n, k]) ^ 1, int(box.codes[n, k])]
