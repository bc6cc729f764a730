"""An expert's weight window by window: read, pack, write, read back through the file, digest, prove, while all of it is in the cache.

On this processor some megabytes of windows are one list of calls, made without the interpreter, so that workers do not wait for each other.
A window that needs Python (single padded codes, another processor, mapped files) goes step by step. A call that did not do all that was
wanted (a short write, a full disk, a difference) is done again from Python, which finishes it or says what is wrong. Sampled windows are
proved once more, from where Python says that their source and their words are.
Facts: architecture.md 5, 6.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import closing
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert import passes
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.engine import programs
from humming_convert.engine.digest import Digest, update_call
from humming_convert.engine.output import OutputWriter, as_bytes, read_into
from humming_convert.engine.programs import MARKS, shaped, slot_base
from humming_convert.engine.worker import Worker
from humming_convert.proof.stream import Ahead, ExpertStream, Step

PIECE = 1 << 18  # bytes written and read back at once, step by step: what was written is still in L2 when it is read


def stream_expert(expert: ExpertStream, writer: OutputWriter, at: int, digest: Digest, worker: Worker) -> None:
    """Writes and proves one expert's words from byte `at` on. digest: of the tensor. Raises ProofFailed, Stopped, SourceError, OSError."""
    worker.clock.start()
    if worker.mapped or worker.packer is not None or not digest.state:
        with closing(expert.steps()) as steps:
            for step in steps:
                _one(expert, step, writer, at, digest, worker)
    else:
        _Calls(expert, writer, at, digest, worker).make()
    expert.finish()


def _one(expert: ExpertStream, step: Step, writer: OutputWriter, at: int, digest: Digest, worker: Worker) -> None:
    worker.check()
    clock = worker.clock
    words = expert.words(step, worker.arena.take)
    raw, offset = as_bytes(words), at + 4 * step.window.first
    clock.add("read")
    expert.pack(step, words)
    clock.add("pack")
    for start in range(0, len(raw), PIECE):
        piece = raw[start : start + PIECE]
        writer.write(piece, offset + start)
        clock.add("write")
        writer.read_back(piece, offset + start)
        digest.update(piece)
        clock.add("prove")
    expert.prove(step, words)
    clock.add("prove")


# ------------------------------------------------------------------ tensors as they are
# bases of a copy: descriptors and first bytes of the output and the source, memory of a block as it is read and as it is read back, times, the file's digest
OUT, AT, IN, FROM, SOURCE, BACK, TIMES, COPIED = range(2, 10)


def copy_stored(view: TensorView, writer: OutputWriter, at: int, worker: Worker) -> bool:
    """Copies a stored tensor to byte `at` on, each block read back through the file. Whether the file holds what the source does."""
    worker.clock.start()
    for start in range(0, view.nbytes, programs.LIST):
        worker.check()
        nbytes = min(programs.LIST, view.nbytes - start)
        part = replace(view, dtype="U8", shape=(nbytes,), offset=view.offset + start, nbytes=nbytes)
        copy = _copy_in_list if not worker.mapped and worker.packer is None and writer.digest_state else _copy_in_steps
        if not copy(part, writer, at + start, worker):
            return False
    return True


def _copy_in_steps(view: TensorView, writer: OutputWriter, at: int, worker: Worker) -> bool:
    clock = worker.clock
    for start in range(0, view.nbytes, PIECE):
        nbytes = min(PIECE, view.nbytes - start)
        source = worker.fetch(0, replace(view, shape=(nbytes,), offset=view.offset + start, nbytes=nbytes))
        back = worker.arena.take("copied", nbytes)
        clock.add("read")
        writer.write(source.data, at + start)
        clock.add("write")
        writer.read_back(back.data, at + start)
        same = np.array_equal(source, back)
        clock.add("prove")
        if not same:
            return False
    return True


def _copy_in_list(view: TensorView, writer: OutputWriter, at: int, worker: Worker) -> bool:
    """The same as calls. A block that a call did not do whole is done in steps."""
    source, back = worker.source(0, PIECE), worker.arena.take("copied", PIECE)
    blocks = _copied_blocks(view.nbytes)
    times = np.zeros((len(blocks), 4, 2), np.int64)
    bases = np.zeros(COPIED + 1, np.int64)
    bases[OUT], bases[AT], bases[IN], bases[FROM] = writer.fd, at, worker.files.descriptor(view), view.offset
    bases[SOURCE], bases[BACK], bases[TIMES] = passes.address(source), passes.address(back), passes.address(times)
    bases[COPIED] = writer.digest_state
    linked = programs.kept(("copies", PIECE, view.nbytes), lambda: _copies(view.nbytes)).linked(bases)
    calls = linked.calls
    many, done = len(calls) // len(blocks), 0
    while done < len(calls):
        before = done // many
        done, error = passes.make(calls, done)
        block = done // many
        writer.advance(sum(n for _, n in blocks[before:block]))
        worker.clock.noted(times[before:block], ("read", "write", "prove"))
        if done == len(calls):
            break
        if done % many == many - 2:  # the comparison
            return False
        if error and error != errno.EINTR:
            failed = OSError(error, os.strerror(error))
            raise worker.files.failed(view, failed) if done % many == 1 else failed
        start, n = blocks[block]
        worker.clock.start()
        if not _copy_in_steps(replace(view, shape=(n,), offset=view.offset + start, nbytes=n), writer, at + start, worker):
            return False
        done = (block + 1) * many
    return True


def _copied_blocks(nbytes: int) -> list[tuple[int, int]]:
    return [(start, min(PIECE, nbytes - start)) for start in range(0, nbytes, PIECE)]


def _copies(nbytes: int) -> passes.Program:
    """Nine calls a block: the time, read, the time, write, the time, read back, digest, compare, the time."""
    read, write, clock = passes.function("pread64", "pread"), passes.function("pwrite64", "pwrite"), passes.function("clock_gettime")
    listing = passes.Listing()
    for number, (start, n) in enumerate(_copied_blocks(nbytes)):
        stamps = [passes.At(TIMES, 16 * (4 * number + i)) for i in range(4)]
        place = passes.At(AT, start)
        listing.call(clock, time.CLOCK_MONOTONIC, stamps[0])
        listing.call(read, passes.At(IN), passes.At(SOURCE), n, passes.At(FROM, start), want=n)
        listing.call(clock, time.CLOCK_MONOTONIC, stamps[1])
        listing.call(write, passes.At(OUT), passes.At(SOURCE), n, place, want=n)
        listing.call(clock, time.CLOCK_MONOTONIC, stamps[2])
        listing.call(read, passes.At(OUT), passes.At(BACK), n, place, want=n)
        listing.call(update_call(), passes.At(COPIED), passes.At(BACK), n)
        listing.call(passes.function("memcmp"), passes.At(SOURCE), passes.At(BACK), n)
        listing.call(clock, time.CLOCK_MONOTONIC, stamps[3])
    return listing.done()


class _Calls:
    """The calls of one expert."""

    def __init__(self, expert: ExpertStream, writer: OutputWriter, at: int, digest: Digest, worker: Worker) -> None:
        self._expert, self._writer, self._at, self._digest, self._worker = expert, writer, at, digest, worker
        self._listed = programs.program_of(expert)
        self._packed = worker.arena.take("packed", 4 * max(w.words for w in self._listed.windows))
        # as clock_gettime gives them: seconds, nanoseconds; the last window's row is followed by one of turning
        self._times = np.zeros((len(self._listed.windows) + 1, MARKS, 2), np.int64)
        self._result = np.zeros(8, np.int64)
        self._sources = {slot: worker.source(slot, nbytes) for slot, nbytes in self._listed.reads.items()}
        self._turned = {slot: worker.arena.take(f"turned {slot}", x.shape[0] * x.shape[1]) for slot, x in self._listed.turned.items()}
        self._band = worker.arena.take("band", self._listed.band_bytes)
        self._calls = self._listed.program.linked(self._bases())
        worker.clock.add("read")

    def _bases(self) -> NDArray[np.int64]:
        blocks, values = self._expert.weight.of_expert(self._expert.expert), self._expert.values
        bases = np.zeros(slot_base(len(blocks), 0), np.int64)
        for base, value in (
            (programs.OUT, self._writer.fd),
            (programs.EXPERT, self._at),
            (programs.WORDS, passes.address(self._packed)),
            (programs.TIMES, passes.address(self._times)),
            (programs.RESULT, passes.address(self._result)),
            (programs.FILE_DIGEST, self._writer.digest_state),
            (programs.TENSOR_DIGEST, self._digest.state),
            (programs.BAND, passes.address(self._band)),
        ):
            bases[base] = value
        for i, kind in enumerate(passes.AUX_KINDS):
            if values is not None and (self._listed.program.parameter_bases == programs.AUX + i).any():
                bases[programs.AUX + i] = passes.address(values.arranged(kind))
        for slot, (_, block) in enumerate(blocks):
            view = block.view.at(block.index)
            memory = self._sources.get(slot, self._turned.get(slot))
            if memory is not None:
                bases[slot_base(slot, programs.DESCRIPTOR)] = self._worker.files.descriptor(view)
                bases[slot_base(slot, programs.OFFSET)] = view.offset
                bases[slot_base(slot, programs.MEMORY)] = passes.address(memory)
            else:
                bases[slot_base(slot, programs.MEMORY)] = passes.address(self._expert.once(slot))
        return bases

    def make(self) -> None:
        for some in self._listed.lists(frozenset(self._expert.sampled(len(self._listed.windows)))):
            if some.listed:
                self._make(some)
                if some.sampled:
                    self._once_more(some.last - 1)
            else:
                self._worker.clock.start()
                ahead = self._expert.ahead(self._listed.windows[some.number], some.sampled)
                _one(self._expert, self._expert.step(ahead), self._writer, self._at, self._digest, self._worker)
        self._worker.clock.noted(self._times)

    def _once_more(self, number: int) -> None:
        """A sampled window that calls wrote, proved without them too: its source is read again from where Python says it is, its words from
        where Python says that they are in the file."""
        self._worker.clock.start()
        ahead = self._expert.ahead(self._listed.windows[number], True).few_rows(self._listed.turned, number)
        compared = self._expert.compared
        words = self._packed[: 4 * ahead.window.words].view(np.uint32)
        read_into(self._writer.fd, as_bytes(words), self._at + 4 * ahead.window.first, self._writer.path)
        self._expert.prove(self._expert.step(ahead), words)
        self._expert.compared = compared
        self._worker.clock.add("prove")

    def _make(self, some: programs.List) -> None:
        """The calls of some windows."""
        self._worker.check()
        start = self._at + 4 * self._listed.windows[some.number].first
        assert start == self._writer.upto, (self._writer.path.name, start, self._writer.upto)
        calls = self._calls.calls[: some.end]
        done, error = passes.make(calls, some.first)
        while done < some.end:
            doing, window, piece = self._listed.doing[done].tolist()
            self._again(doing, window, piece, OSError(error, os.strerror(error)) if error else None)
            done, error = passes.make(calls, done + 1)
        self._writer.advance(some.nbytes)
        self._expert.compared += some.codes

    def _again(self, doing: int, number: int, piece: int, error: OSError | None) -> None:
        """What a call did not do, or not all of, from Python. error: why; a call that was interrupted is made again."""
        window = self._listed.windows[number]
        ahead = self._expert.ahead(window)
        words = self._packed[: 4 * window.words].view(np.uint32)
        raw, offset = as_bytes(words), self._at + 4 * window.first
        failed = None if error is None or error.errno == errno.EINTR else error
        if doing == programs.READ:
            p = ahead.pieces[piece]
            if failed is not None:
                raise self._worker.files.failed(p.view, failed) from failed
            self._worker.files.fill(p.view, self._sources[p.slot][: p.view.nbytes].data)
        elif doing == programs.TURN:
            slot, r0, r1 = self._listed.bands[piece]
            view = self._expert.turned()[slot].view.rows(r0, r1)
            if failed is not None:
                raise self._worker.files.failed(view, failed) from failed
            self._worker.files.fill(view, self._band[: view.nbytes].data)
        elif failed is not None and doing in (programs.WRITE, programs.BACK):
            raise failed
        elif doing == programs.WRITE:
            self._writer.write(raw, offset)
        elif doing == programs.BACK:
            read_into(self._writer.fd, raw, offset, self._writer.path)
        else:
            self._expert.prove(ahead.step(self._memory(ahead)), words)
            raise AssertionError("a call that cannot fail did, or a proof found what it cannot find again")

    def _memory(self, ahead: Ahead) -> dict[int, NDArray[Any]]:
        return {p.slot: self._expert.once(p.slot) if p.once else shaped(self._sources[p.slot], p.view) for p in ahead.pieces}
