"""Scales that only move, as lists of calls: read, cast, placed, written, read back through the file, digested and compared, window by window.

In: the ScaleStreams of a layer.  Out: the tensor's digest, and what the casts changed. A call that did not do all that was wanted is done again
from Python, which finishes it or says what is wrong.
Facts: architecture.md 5, 6; docs/decisions/082.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.engine.digest import Digest, update_call
from humming_convert.engine.output import OutputWriter, read_into
from humming_convert.engine.programs import BACK, MARKS, OTHER, PROVE, READ, WRITE, Doing, kept
from humming_convert.engine.worker import Worker
from humming_convert.passes import At, Listing, Program
from humming_convert.passes.aux_values import LINE
from humming_convert.proof.scales import ROLE, ScaleStream
from humming_convert.standard.expr import cast_table
from humming_convert.standard.lossy import Meter

# bases after the program's own: the output's descriptor, the byte of it where the expert begins, memory of a window as it is read and as it is
# placed, times, what kernels count, the digests of file and tensor, the table of a cast and its counts, the padded matrix, what is taken off its
# bytes, the bytes of its new rows; then two for each part
OUT, EXPERT, SOURCE, PLACED, TIMES, RESULT, FILE_DIGEST, TENSOR_DIGEST, TABLE, COUNTS, PADDED, MINUS, ROW_FILL, PARTS = range(2, 16)
DESCRIPTOR, OFFSET = range(2)  # of a part
NUMBERS = 1 << 16  # of 16 bits
COUNTED = (1 << 32) - 1  # scales in counts of 32 bits


class _Listed(Struct, frozen=True):
    """doing: [calls, 3]: what a call does, the number of its window and of its part.  source_bytes, placed_bytes: of the largest window;
    padded_bytes: of the padded matrix, 0 for none."""

    program: Program
    doing: NDArray[np.int64]
    source_bytes: int
    placed_bytes: int
    padded_bytes: int


def _base(part: int, which: int) -> int:
    return PARTS + 2 * part + which


def _piece(stream: ScaleStream, part: int, groups: tuple[int, int]) -> TensorView:
    """What a window reads of a part."""
    p = stream.parts[part]
    return p.view.rows(*groups) if p.turned else p.view


def _starts(stream: ScaleStream, groups: tuple[int, int]) -> list[int]:
    """Bytes of SOURCE where the parts of a window begin, each at a cache line, and where they end."""
    out = [0]
    for part in range(len(stream.parts)):
        out.append(-(-(out[-1] + _piece(stream, part, groups).nbytes) // LINE) * LINE)
    return out


def _span(stream: ScaleStream, groups: tuple[int, int]) -> tuple[int, int]:
    """(byte of the expert's tensor, bytes) of a window."""
    if stream.sort.longer is not None:
        return 0, stream.nbytes  # one window
    row = stream.n * stream.size
    return groups[0] * row, (groups[1] - groups[0]) * row


def _listed(stream: ScaleStream) -> _Listed:
    """Looks at no file; the stream's sort decides all of it."""
    listing, doing = Listing(), Doing()
    read, write, clock = passes.function("pread64", "pread"), passes.function("pwrite64", "pwrite"), passes.function("clock_gettime")

    def mark(number: int, phase: int) -> None:
        listing.call(clock, time.CLOCK_MONOTONIC, At(TIMES, 16 * (MARKS * number + phase)))
        doing.upto(listing, OTHER, number)

    for number, groups in enumerate(stream.windows):
        starts, (at, nbytes) = _starts(stream, groups), _span(stream, groups)
        many = groups[1] - groups[0]
        mark(number, 0)
        for i, p in enumerate(stream.parts):
            view = _piece(stream, i, groups)
            descriptor, offset = At(_base(i, DESCRIPTOR)), At(_base(i, OFFSET), view.offset - p.view.offset)
            listing.call(read, descriptor, At(SOURCE, starts[i]), view.nbytes, offset, want=view.nbytes)
            doing.upto(listing, READ, number, i)
        mark(number, 1)
        places = []
        for i, p in enumerate(stream.parts):
            shape, here = stream.sort.shape(i, many), At(SOURCE, starts[i])
            if stream.cast is not None:
                passes.add_look_up(listing, here, At(TABLE), At(COUNTS), p.n * many)
            if stream.sort.longer is None:
                places.append((shape, here, At(PLACED, passes.placed_at(shape, p.row, 0))))
        if stream.sort.longer is not None:
            places.append((_add_padding(listing, stream, starts), At(PADDED), At(PLACED)))
        for place in places:
            passes.add_scales(listing, "pack", *place, RESULT)
        mark(number, 2)
        listing.call(write, At(OUT), At(PLACED), nbytes, At(EXPERT, at), want=nbytes)
        doing.upto(listing, WRITE, number)
        mark(number, 3)
        listing.call(read, At(OUT), At(PLACED), nbytes, At(EXPERT, at), want=nbytes)
        doing.upto(listing, BACK, number)
        for digest in (FILE_DIGEST, TENSOR_DIGEST):
            listing.call(update_call(), At(digest), At(PLACED), nbytes)
        doing.upto(listing, OTHER, number)
        for place in places:
            passes.add_scales(listing, "prove", *place, RESULT)
        doing.upto(listing, PROVE, number)
        mark(number, 4)
    largest = max(_span(stream, g)[1] for g in stream.windows)
    source = max(_starts(stream, g)[-1] for g in stream.windows)
    padded = 0 if stream.sort.longer is None else stream.nbytes
    return _Listed(listing.done(), np.array(doing.rows, np.int64), source, largest, padded)


def _add_padding(listing: Listing, stream: ScaleStream, starts: Sequence[int]) -> passes.ScaleShape:
    """Calls that make the padded matrix of what was read. Returns how it is placed."""
    sort, longer = stream.sort, stream.sort.longer
    assert longer is not None
    for i, p in enumerate(stream.parts):
        here, to = At(SOURCE, starts[i]), At(PADDED, p.row * sort.pitch)
        passes.add_pad_rows(listing, p.n, p.columns * sort.size, here, to, sort.pitch, longer.fill, At(MINUS))
    if longer.n > stream.n:
        rest = At(PADDED, stream.n * sort.pitch)
        listing.call(passes.function("memset"), rest, At(ROW_FILL), (longer.n - stream.n) * sort.pitch, want=rest)
    return sort.shape(0, stream.g)


def write_scales(streams: Sequence[ScaleStream], writer: OutputWriter, worker: Worker, meter: Meter) -> str:
    """Writes and proves the scales of all experts at the tensor's place; returns its digest. Raises ProofFailed, Stopped, SourceError, OSError."""
    digest = Digest()
    counts = worker.arena.take("counts", 4 * NUMBERS).view(np.uint32)
    counts[...] = 0
    left, calls = 0, None
    for stream in streams:
        if left + stream.n * stream.g > COUNTED:
            _record(stream, counts, meter)
            counts[...] = left = 0
        left += stream.n * stream.g
        worker.check()
        if calls is None or calls.sort != stream.sort:
            calls = _Calls(stream, writer, digest, worker, counts)
        calls.make(stream)
    _record(streams[0], counts, meter)
    return "xxh3:" + digest.hexdigest()


def _record(stream: ScaleStream, counts: NDArray[np.uint32], meter: Meter) -> None:
    cast = stream.cast
    if cast is not None:
        meter.record_counts(cast.step, cast.tensor, cast_table(cast.arg.dtype, cast.dtype)[1], counts)


class _Calls:
    """The calls for scales of one sort, expert by expert in the same memory."""

    def __init__(self, stream: ScaleStream, writer: OutputWriter, digest: Digest, worker: Worker, counts: NDArray[np.uint32]) -> None:
        self.sort = stream.sort
        self._writer, self._worker = writer, worker
        self._listed = kept(stream.sort, lambda: _listed(stream))
        self._source = worker.arena.take("scales", self._listed.source_bytes)
        self._placed = worker.arena.take("packed", self._listed.placed_bytes)
        self._times, result = np.zeros((len(stream.windows), MARKS, 2), np.int64), np.zeros(8, np.int64)
        bases = np.zeros(_base(len(stream.parts), 0), np.int64)
        bases[OUT], bases[FILE_DIGEST], bases[TENSOR_DIGEST] = writer.fd, writer.digest_state, digest.state
        padded = worker.arena.take("padded", self._listed.padded_bytes)
        memory: dict[int, NDArray[Any]] = {SOURCE: self._source, PADDED: padded, PLACED: self._placed}
        memory |= {TIMES: self._times, RESULT: result, COUNTS: counts}
        if stream.cast is not None:
            memory[TABLE] = cast_table(stream.cast.arg.dtype, stream.cast.dtype)[0]
        for base, array in memory.items():
            bases[base] = passes.address(array)
        self._memory = memory  # two threads that make a table at a time have one each, of which one is kept elsewhere
        self._bases = bases

    def make(self, stream: ScaleStream) -> None:
        """All windows of an expert's, and some groups once more from Python."""
        assert stream.sort == self.sort, (stream.sort, self.sort)
        self._stream, bases = stream, self._bases
        self._at = stream.planned.outputs[ROLE].offset + stream.expert * stream.nbytes
        bases[EXPERT], bases[MINUS], bases[ROW_FILL] = self._at, stream.minus, stream.row_fill
        for i, p in enumerate(stream.parts):
            bases[_base(i, DESCRIPTOR)], bases[_base(i, OFFSET)] = self._worker.files.descriptor(p.view), p.view.offset
        linked = self._listed.program.linked(bases)
        calls = linked.calls
        assert self._at == self._writer.upto, (self._writer.path.name, self._at, self._writer.upto)
        done, error = passes.make(calls)
        while done < len(calls):
            doing, window, part = self._listed.doing[done].tolist()
            self._again(doing, stream.windows[window], part, error)
            done, error = passes.make(calls, done + 1)
        self._writer.advance(stream.nbytes)
        self._worker.clock.noted(self._times)
        with self._worker.clock.phase("prove"):
            stream.prove_samples(self._worker.files, self._read_file)

    def _again(self, doing: int, groups: tuple[int, int], part: int, error: int) -> None:
        """What a call did not do, or not all of, from Python. error: why; a call that was interrupted is made again."""
        failed = OSError(error, os.strerror(error)) if error and error != errno.EINTR else None
        at, nbytes = _span(self._stream, groups)
        placed = self._placed[:nbytes].data
        if doing == READ:
            view = _piece(self._stream, part, groups)
            if failed is not None:
                raise self._worker.files.failed(view, failed) from failed
            start = _starts(self._stream, groups)[part]
            self._worker.files.fill(view, self._source[start : start + view.nbytes].data)
        elif failed is not None and doing in (WRITE, BACK):
            raise failed
        elif doing == WRITE:
            self._writer.write(placed, self._at + at)
        elif doing == BACK:
            read_into(self._writer.fd, placed, self._at + at, self._writer.path)
        elif doing == PROVE:
            raise self._stream.failed(f"the file does not hold the source's scales in groups {groups[0]} to {groups[1] - 1}")
        else:
            raise AssertionError("a call that cannot fail did")

    def _read_file(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        out = np.empty(nbytes, np.uint8)
        read_into(self._writer.fd, out.data, self._at + offset, self._writer.path)
        return out
