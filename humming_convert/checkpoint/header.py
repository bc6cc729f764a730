"""The header of a safetensors file: 8 length bytes, JSON, data without holes. Every rule of the format is checked.

In: a path.  Out: a Header, or everything that is wrong with the file. Sizes are compared with the file before anything is read or made.
Facts: R10 to R24 (rules.py). Stricter than safetensors 0.8.0 in that entries hold nothing else, no key stands twice in any object and
shapes have at most 32 dimensions (numpy); as strict in that __metadata__ maps strings to strings (or is null).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint import rules
from humming_convert.checkpoint.files import LIMIT, opened, read_exactly
from humming_convert.checkpoint.rules import broken
from humming_convert.checkpoint.strict_json import parse_object
from humming_convert.checkpoint.tensors import DTYPES, TensorView
from humming_convert.findings import Finding, counted

WIDTHS = {name: dtype.itemsize for name, dtype in DTYPES.items()}
KEYS = frozenset(("dtype", "shape", "data_offsets"))
DIMENSIONS = 32  # numpy 1.26
TOP = 2**63 - 1

# dtypes of the format that are not read, and why
UNREAD = {
    "F8_E4M3FNUZ": "the FNUZ numbers of AMD MI300 have another bias; export it as F8_E4M3",
    "F8_E5M2FNUZ": "the FNUZ numbers of AMD MI300 have another bias; export it as F8_E5M2",
    "F4": "packed 4-bit numbers are read as U8 only; export them so",
    "F6_E2M3": "packed 6-bit numbers are not read; export another format",
    "F6_E3M2": "packed 6-bit numbers are not read; export another format",
    "C64": "complex numbers are not read; leave the tensor out",
}

AGAIN = "fetch or export the file again"


class Header(Struct, frozen=True, kw_only=True):
    """What a weight file holds. tensors: in the order of the header. header_bytes: the 8 length bytes and the JSON."""

    tensors: dict[str, TensorView]
    metadata: Mapping[str, str]
    header_bytes: int
    nbytes: int


def read_header(path: Path) -> Header | list[Finding]:
    """The header of a file, or all that is wrong with it (at least one error)."""
    with opened(path) as got:
        if isinstance(got, Finding):
            return [got]
        fd, state = got
        try:
            raw = _header_bytes(fd, state.st_size, path.name)
        except OSError as e:
            return [
                broken(rules.FILE_UNREADABLE, f"{path.name} cannot be read: {e.strerror or e}", file=path.name, advice="check the disk")
            ]
    return [raw] if isinstance(raw, Finding) else _parse(raw, path, state)


def _header_bytes(fd: int, size: int, file: str) -> bytes | Finding:
    if size < 8:
        return broken(rules.HEADER_SHORT, f"{file} has {size} bytes, fewer than the 8 of a header's length", file=file, advice=AGAIN)
    first = read_exactly(fd, min(size, 64), 0)
    length = int.from_bytes(first[:8], "little")
    if first.startswith(b"version https://git-lfs"):
        why = f"{file} is a Git LFS pointer, not the file"
        return broken(rules.HEADER_LENGTH, why, file=file, advice="run `git lfs pull` in the checkpoint's repository")
    if length > LIMIT:
        why = f"{file} claims a header of {length:,} bytes, more than {LIMIT:,}; it is damaged or no safetensors file"
        return broken(rules.HEADER_LIMIT, why, file=file, advice=AGAIN)
    if length > size - 8:
        why = f"{file} claims a header of {length:,} bytes and has {size:,} bytes in all; it is cut off or no safetensors file"
        return broken(rules.HEADER_LENGTH, why, file=file, advice=AGAIN)
    raw = read_exactly(fd, length, 8)
    if len(raw) < length:
        return broken(
            rules.HEADER_LENGTH, f"{file} became shorter while it was read", file=file, advice="wait for whatever writes it, then try again"
        )
    if not raw.lstrip(b" \t\r\n").startswith(b"{"):
        return broken(rules.HEADER_START, f"the header of {file} does not begin with {{", file=file, advice=AGAIN)
    return raw


def _parse(raw: bytes, path: Path, state: os.stat_result) -> Header | list[Finding]:
    file = path.name
    entries, found = parse_object(raw, file, f"the header of {file}")
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(type(v) is str for v in metadata.values())):
        found.append(
            broken(
                rules.HEADER_METADATA, f"__metadata__ of {file} does not map strings to strings", file=file, advice="export the file again"
            )
        )
    data = len(raw) + 8
    tensors: dict[str, TensorView] = {}
    spans: list[tuple[int, int, str]] = []
    unplaced = 0
    for name, entry in entries.items():
        wrong: Sequence[Finding] = ()
        span = _good(entry)
        if span is None:
            wrong, span = _check(name, entry, file)
            found += wrong
        if span is None:
            unplaced += 1
            continue
        begin, end = span
        spans.append((begin, end, name))
        if not wrong:
            tensors[name] = TensorView(
                name=name, file=path, dtype=entry["dtype"], shape=tuple(entry["shape"]), offset=data + begin, nbytes=end - begin
            )
    if unplaced == 0 and (entries or not found):
        # an entry without offsets leaves a hole that is not the file's fault
        found += _places(sorted(spans), state.st_size - data, file)
    if found:
        return found
    return Header(tensors=tensors, metadata=metadata or {}, header_bytes=data, nbytes=state.st_size)


def _good(entry: Any) -> tuple[int, int] | None:
    """The place of an entry that keeps R15 to R19, None for any other: `_check` says why. Real checkpoints have 100,000 of them."""
    try:
        begin, end = entry["data_offsets"]
        shape = entry["shape"]
        nbytes = WIDTHS[entry["dtype"]]
        if len(entry) != 3 or type(shape) is not list or len(shape) > DIMENSIONS:
            return None
    except (KeyError, TypeError, ValueError):
        return None
    for d in shape:
        if type(d) is not int or d <= 0:  # 0 is legal and rare: `_check`
            return None
        nbytes *= d
    if type(begin) is int and type(end) is int and begin >= 0 and end - begin == nbytes and end <= TOP:
        return begin, end
    return None


def _check(name: str, entry: Any, file: str) -> tuple[list[Finding], tuple[int, int] | None]:
    """What is wrong with one entry by itself, and its place in the data if it has one."""
    if type(entry) is not dict or entry.keys() != KEYS:
        keys = sorted(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
        return [
            broken(rules.HEADER_ENTRY, f"the entry has {keys}, not dtype, shape and data_offsets", tensor=name, file=file, advice=AGAIN)
        ], None
    found: list[Finding] = []
    span = _span(entry["data_offsets"])
    if isinstance(span, str):
        found.append(broken(rules.HEADER_OFFSETS, f"data_offsets {span}", tensor=name, file=file, advice=AGAIN))
    dtype = entry["dtype"]
    width = WIDTHS.get(dtype) if type(dtype) is str else None
    if width is None:
        why = UNREAD.get(dtype) if type(dtype) is str else None
        found.append(broken(rules.HEADER_DTYPE, f"dtype {_shown(dtype)} is not read", tensor=name, file=file, advice=why or AGAIN))
    nbytes = _nbytes(entry["shape"], width or 1)
    if isinstance(nbytes, str):
        found.append(broken(rules.HEADER_SHAPE, f"shape {nbytes}", tensor=name, file=file, advice=AGAIN))
    elif width is not None and not isinstance(span, str) and span[1] - span[0] != nbytes:
        why = f"{dtype} of shape {entry['shape']} takes {nbytes:,} bytes, data_offsets give it {span[1] - span[0]:,}"
        found.append(broken(rules.HEADER_SIZE, why, tensor=name, file=file, advice=AGAIN))
    return found, None if isinstance(span, str) else span


def _span(offsets: Any) -> tuple[int, int] | str:
    """begin, end; or what is wrong."""
    if type(offsets) is not list or len(offsets) != 2 or type(offsets[0]) is not int or type(offsets[1]) is not int:
        return f"{_shown(offsets)} are not two integers"
    begin, end = offsets
    if begin < 0 or end > TOP:
        return f"{_shown(offsets)} are not within 0 and 2**63"
    if end < begin:
        return f"{offsets} end before they begin"
    return begin, end


def _nbytes(shape: Any, width: int) -> int | str:
    """The bytes that a shape takes; or what is wrong. No dimension of 0 excuses the others: index arithmetic would overflow."""
    if type(shape) is not list or len(shape) > DIMENSIONS:
        return f"{_shown(shape)} is not a list of at most {DIMENSIONS} integers"
    whole = width
    empty = False
    for d in shape:
        if type(d) is not int or d < 0:
            return f"{_shown(shape)} does not consist of integers of 0 or more"
        if d:
            whole *= d
        else:
            empty = True
        if whole > TOP:
            return f"{_shown(shape)} takes 2**63 bytes or more"
    return 0 if empty else whole


def _places(spans: Iterable[tuple[int, int, str]], size: int, file: str) -> Iterable[Finding]:
    """Overlaps, holes and ends. `spans`: begin, end, name in the order of begin and end; `size`: bytes of data in the file."""
    found: list[Finding] = []
    outside: list[tuple[int, int, str]] = []
    reach, holder = 0, ""
    for begin, end, name in spans:
        if begin < reach:
            why = f"its bytes {begin:,} to {end:,} overlap those of {holder}, which end at {reach:,}"
            found.append(broken(rules.HEADER_OVERLAP, why, tensor=name, file=file, advice=AGAIN))
        elif begin > reach:
            found.append(
                broken(rules.HEADER_HOLE, f"{begin - reach:,} bytes before it belong to no tensor", tensor=name, file=file, advice=AGAIN)
            )
        if end > size:
            outside.append((begin, end, name))
        if end >= reach:
            reach, holder = end, name
    if outside and not found:
        # every tensor is where it should be: the file is what is wrong, and one finding says it
        why = f"{file} is cut off: its header describes {reach:,} bytes of data, {size:,} are there; {counted(len(outside), 'tensor is', 'tensors are')} incomplete"
        return [broken(rules.FILE_TRUNCATED, why, tensor=outside[0][2], file=file, count=len(outside), advice="fetch the file again")]
    for begin, end, name in outside:
        why = f"its bytes {begin:,} to {end:,} lie beyond the {size:,} bytes of data in the file"
        found.append(broken(rules.HEADER_OUTSIDE, why, tensor=name, file=file, advice=AGAIN))
    if reach < size:
        why = f"{file} goes on for {size - reach:,} bytes after its last tensor"
        found.append(broken(rules.FILE_TRAILING, why, file=file, advice=AGAIN))
    return found


def _shown(value: Any) -> str:
    """A value of the file in a message: its repr, cut to 80 characters, and never longer to make than to read."""
    if isinstance(value, (list, dict)) and len(value) > 16:
        return f"of {len(value)} entries"
    if isinstance(value, int) and abs(value) > 2**128:
        return "of more than 128 bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
