"""Routes: what is compiled into a kernel, and the names of its parameters.

In: orders of address bits and maps, chosen by `routes`.  Out: a value that names a kernel, equal for equal code.
Facts: layouts.md 5 by way of `orders`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from humming_convert.layouts.recipe import CodeMap
from humming_convert.passes.maps import Fields
from humming_convert.passes.orders import LANE_BITS, Network, log2, network

Reading = Literal["vectors", "runs", "gathered"]
Purpose = Literal["pack", "prove", "zeros"]

ROW = 4  # int64 values of a table row: source, target and aux offsets in bytes, and how many new rows or columns it covers


HEAD = ("source", "target", "aux", "outer", "outers", "inner", "inners", "rest", "rests", "result", "lane", "run")
"""First parameters of a tile kernel: addresses, tables and their lengths, bytes between lanes and between word rows of a run."""


class Route(Struct, frozen=True, kw_only=True):
    """All that is compiled in.

    width, bits: W and B.  source, target: bits of the tile (fields, lanes, registers), low first.
    read: `vectors` (a register is 64 bytes in a row), `runs` (B word rows hold 32 codes a lane), `gathered` (the same, each lane by itself).
    near: leading registers of the source that come out of one run.  slots: leading registers of the target that make one sub-block;
    fixed: byte strides of the registers after them that lie between the words of a lane.  jumps: byte offset of word w of a sub-block.
    sign: exchanges of field bits for the top bits.  flip: codes are stored in two's complement.
    aux: `lanes` (a byte a lane), `spread<m>` (m bytes over the lanes), `words` (fields as the source's).  aux_registers: register bits
    that move in aux.
    past: vectors are written past the caches, each to a line's start.
    ahead: bytes beyond each vector at which one is fetched while this is packed, 0 for none.
    """

    width: int
    bits: int
    source: tuple[str, ...]
    target: tuple[str, ...]
    read: Reading
    near: int = 0
    slots: int = 0
    fixed: tuple[int, ...] = ()
    jumps: tuple[int, ...] = ()
    sign: tuple[tuple[int, int], ...] = ()
    flip: bool = False
    maps: tuple[CodeMap, ...] = ()
    aux: str = ""
    aux_registers: tuple[int, ...] = ()
    past: bool = False
    ahead: int = 0

    @property
    def fields(self) -> Fields:
        return Fields(self.bits, self.width)

    @property
    def inside(self) -> int:
        return log2(32 // self.width) + LANE_BITS

    @property
    def source_registers(self) -> tuple[str, ...]:
        return self.source[self.inside :]

    @property
    def target_registers(self) -> tuple[str, ...]:
        return self.target[self.inside :]

    @property
    def network(self) -> Network:
        return network(self.source, self.target, self.inside, log2(max(8 // self.width, 1)))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, in order."""
        s = tuple(f"s:{x}" for x in self.source_registers[self.near :])
        d = tuple(f"d:{x}" for x in self.target_registers[self.slots + len(self.fixed) :])
        a = tuple(f"a:{self.source_registers[i]}" for i in self.aux_registers)
        return HEAD + s + d + a


GENERAL = (
    *("source", "target", "table", "aux", "aux_pitch", "aux_columns", "rows", "columns", "result"),
    *("source_rows", "source_columns", "target_rows", "target_columns", "row_slot", "column_slot", "jump"),
)
"""Parameters of the general kernel: addresses of the arrays of `positions` for a box of rows x columns, and of `maps.table`."""
