"""Flat code: a compiled kernel as one block of bytes that runs wherever it is put, so that no later process needs a linker for it.

In: an ELF object of one x86-64 function, as LLVM makes it for running in place.  Out: the block, or None for any other object, which LLVM loads.
LLVM's binding takes 25 ms to import and each object 1 to 3 ms to load; a block takes some microseconds.
Facts: the ELF-64 object file format; System V ABI, AMD64 supplement, table 4.9 (relocations).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

HEADER = struct.Struct("<16s HHI QQQ I HHHHHH")
SECTION = struct.Struct("<II QQQQ II QQ")
SYMBOL = struct.Struct("<I BBH QQ")
RELOCATION = struct.Struct("<QQq")
IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
RELOCATABLE, X86_64 = 1, 62
SYMBOLS, RELOCATIONS, NO_BITS = 2, 4, 8  # kinds of sections
WRITTEN, HELD = 1, 2  # flags of a section: it is written to; it is in memory at all
PC64, GOTOFF64, GOTPC64 = 24, 25, 29  # of 64 bits: symbol - place; symbol - table; table - place
TABLE = "_GLOBAL_OFFSET_TABLE_"  # no symbol but the point that others are counted from: here the block's start


class Flat(Struct, frozen=True):
    """entry: byte at which the function begins."""

    code: bytes
    entry: int


class _Section(Struct, frozen=True):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    unit: int
    entry_size: int


class _Unknown(Exception):
    """The object asks for something that is not known here."""


def flattened(code: bytes, function: str) -> Flat | None:
    """None for another processor, another format, data that is written to, or symbols of other objects."""
    try:
        return _flattened(code, function)
    except _Unknown:
        return None


def _flattened(code: bytes, function: str) -> Flat:
    identity, kind, machine, _, _, _, start, _, _, _, _, size, count, _ = HEADER.unpack_from(code)
    if not identity.startswith(IDENTITY) or (kind, machine, size) != (RELOCATABLE, X86_64, SECTION.size):
        raise _Unknown
    sections = [_Section(*SECTION.unpack_from(code, start + size * i)) for i in range(count)]
    # tables for unwinding are for exceptions, which kernels do not raise; only they are relocated without being code or constants
    held = [i for i, x in enumerate(sections) if x.flags & HELD and x.size and not _unwinds(code, sections, x)]
    block, places = bytearray(), {}
    for i in held:
        x = sections[i]
        if x.flags & WRITTEN or x.kind == NO_BITS:
            raise _Unknown
        block += bytes(-len(block) % max(x.unit, 1))
        places[i] = len(block)
        block += code[x.offset : x.offset + x.size]
    symbols = _symbols(code, sections, places)
    for x in sections:
        if x.kind == RELOCATIONS and x.info in places:
            _relocate(code, x, block, places[x.info], symbols)
    entries = [place for name, place in symbols if name == function and place is not None]
    if len(entries) != 1:
        raise _Unknown
    return Flat(bytes(block), entries[0])


def _text(code: bytes, table: _Section, at: int) -> str:
    start = table.offset + at
    return code[start : code.index(b"\0", start)].decode()


def _unwinds(code: bytes, sections: Sequence[_Section], x: _Section) -> bool:
    names = next(y for y in sections if y.kind == 3)  # the one table of strings holds the names of sections too
    return _text(code, names, x.name) == ".eh_frame"


def _symbols(code: bytes, sections: Sequence[_Section], places: dict[int, int]) -> list[tuple[str, int | None]]:
    """(name, place in the block; None where it is in no section that is held)."""
    (table,) = [x for x in sections if x.kind == SYMBOLS]
    out: list[tuple[str, int | None]] = []
    for at in range(table.offset, table.offset + table.size, SYMBOL.size):
        name, _, _, section, value, _ = SYMBOL.unpack_from(code, at)
        text = _text(code, sections[table.link], name)
        out.append((text, 0 if text == TABLE else places[section] + value if section in places else None))
    return out


def _relocate(code: bytes, x: _Section, block: bytearray, place: int, symbols: Sequence[tuple[str, int | None]]) -> None:
    for at in range(x.offset, x.offset + x.size, RELOCATION.size):
        offset, info, addend = RELOCATION.unpack_from(code, at)
        to, here = symbols[info >> 32][1], place + offset
        what = info & 0xFFFFFFFF
        if to is None or what not in (PC64, GOTOFF64, GOTPC64):
            raise _Unknown
        struct.pack_into("<q", block, here, to + addend - (0 if what == GOTOFF64 else here))


@lru_cache(maxsize=1)
def _protect() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def placed(flat: Flat) -> tuple[int, object] | None:
    """(address of the function, what owns its memory); None where the system lets no process run memory that it has written."""
    memory = mmap.mmap(-1, len(flat.code))
    memory.write(flat.code)
    held = ctypes.c_char.from_buffer(memory)  # keeps the mapping, and is kept by the kernel
    start = ctypes.addressof(held)
    if _protect()(start, len(flat.code), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        return None
    return start + flat.entry, held
