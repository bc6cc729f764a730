"""One layer: source words to packed words in its output file, proven by reading them back through the file.

Small tensors (scales, zero points, biases) are computed whole; the weight goes expert by expert, block by block in its source packing,
through a compiled pass where there is one and the numpy reference where not. Facts: architecture.md 5, 6.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from humming_convert.checkpoint.reading import Pread, reader
from humming_convert.checkpoint.tensors import DTYPES, Read, TensorView
from humming_convert.engine.output import BLOCK, Arena, OutputWriter, as_bytes
from humming_convert.layouts import WeightAux, pack_small, pack_weight
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.prepare import measure_e8m0_range
from humming_convert.manifest.types import LayerResult, Proof
from humming_convert.plan.types import PlainTensor, PlannedLayer, PlannedTensor
from humming_convert.proof.failed import ProofFailed
from humming_convert.proof.roundtrip import prove_standard_weight, prove_weight
from humming_convert.proof.small import prove_small
from humming_convert.proof.stream import ExpertStream, Packer, Packers, scale_pass, streams
from humming_convert.standard.expr import Context, Stored, Weight
from humming_convert.standard.lossy import Meter

PIECE = 1 << 18  # bytes written and read back at once: what was written is still in L2 when it is read


class Stopped(Exception):
    """The run is being stopped; this worker's tensor is unfinished."""


Phase = Literal["read", "pack", "prove", "write"]


class Clock:
    """Seconds of one worker by phase. Phases are not nested."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(("read", "pack", "prove", "write"), 0.0)
        self._last = time.perf_counter()

    def start(self) -> None:
        """What passed since the last call is nobody's."""
        self._last = time.perf_counter()

    def add(self, phase: Phase) -> None:
        """What passed since the last call was this phase."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.start()
        yield
        self.add(phase)


@dataclass(slots=True)
class Worker:
    """What one worker owns: a way to read, buffers, and the signal to stop. `mapped`: source files are mapped, not read.

    packer: packs and proves in place of this processor; it is given words that were read into its own kind of memory."""

    read: Read
    files: Pread
    arena: Arena
    stop: threading.Event
    mapped: bool = False
    packer: Packer | None = None
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def make(cls, io: Literal["mmap", "read"], stop: threading.Event, packers: Packers | None = None) -> Worker:
        files, packer = Pread(), packers.packer() if packers is not None else None
        read = reader("mmap") if io == "mmap" else files
        arena = Arena(packer.empty) if packer is not None else Arena()
        return cls(read=read, files=files, arena=arena, stop=stop, mapped=io == "mmap" and packer is None, packer=packer)

    def fetch(self, slot: int, view: TensorView) -> NDArray[Any]:
        """A stored tensor, or part of one, in this worker's own memory (the slot's last one is overwritten) or in the mapped file."""
        if self.mapped:
            return self.read(view)
        raw = self.arena.take(f"source {slot}", view.nbytes)
        self.files.fill(view, raw.data)
        return raw.view(view.numpy).reshape(view.shape)

    def check(self) -> None:
        if self.stop.is_set():
            raise Stopped


def write_tensor(writer: OutputWriter, tensor: PlannedTensor, value: NDArray[Any], clock: Clock) -> NDArray[Any]:
    """Writes a whole tensor and returns it as read back through the file."""
    assert value.dtype == DTYPES[tensor.dtype] and value.shape == tensor.shape, (
        tensor.name,
        value.dtype,
        value.shape,
        tensor.dtype,
        tensor.shape,
    )
    with clock.phase("write"):
        writer.write(as_bytes(value), tensor.offset)
    with clock.phase("prove"):
        back = np.empty(tensor.nbytes, np.uint8)
        writer.read_back(back.data, tensor.offset)
    return back.view(value.dtype).reshape(value.shape)


def digest_of(value: NDArray[Any]) -> str:
    return "xxh3:" + xxh3_128(as_bytes(value)).hexdigest()


def write_layer(planned: PlannedLayer, writer: OutputWriter, worker: Worker) -> LayerResult:
    """All tensors of one layer. Raises ProofFailed if what the file holds is not what the source says."""
    meter = Meter()
    context = Context(read=worker.read, meter=meter)
    layer = planned.layer
    clock = worker.clock
    with clock.phase("read"):
        small = {role: expr.evaluate(context) for role, expr in layer.tensors.items() if role != "weight"}
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)
    digests: dict[str, str] = {}
    if planned.recipe is None:
        packed, aux = small, None
    else:
        with clock.phase("pack"):
            packed, aux = pack_small(planned.recipe, small, meter, scale_pass(weight))
    # a weight the compiled passes cannot take, or too small to wait for them, goes through the reference
    if planned.recipe is not None:
        assert aux is not None
        digests["weight"] = _write_packed_weight(planned, planned.recipe, weight, aux, writer, context, worker)
    else:
        digests["weight"] = _write_standard_weight(planned, weight, writer, context, worker)
    back: dict[str, NDArray[Any]] = {}
    for role, tensor in planned.outputs.items():
        if role != "weight":
            worker.check()
            back[role] = write_tensor(writer, tensor, packed[role], clock)
            digests[role] = digest_of(back[role])
    with clock.phase("prove"):
        prove_small(planned, small, packed, back)
    return LayerResult(digests=digests, lossy=tuple(meter.found.values()), proof=Proof.of(meter))


def _write_packed_weight(
    planned: PlannedLayer, recipe: LayerRecipe, weight: Weight, aux: WeightAux, writer: OutputWriter, context: Context, worker: Worker
) -> str:
    """Packs, writes, reads back and proves expert by expert; returns the digest of the whole tensor, taken in the proof's read."""
    tensor, digest = planned.outputs["weight"], xxh3_128()
    step = tensor.nbytes // (weight.experts or 1)
    compiled = streams(recipe, weight)
    for expert in range(weight.experts or 1):
        mine, at = aux.of_expert(expert), tensor.offset + expert * step
        if compiled:
            stream = ExpertStream if worker.packer is None else worker.packer.stream
            _stream(stream(planned, recipe.weight, weight, expert, mine, worker.fetch), writer, at, digest, worker)
        else:
            worker.check()
            with worker.clock.phase("pack"):
                words = pack_weight(recipe.weight, weight.expert_codes(context, expert), mine).view(np.uint32).reshape(-1)
            worker.check()
            with worker.clock.phase("write"):
                writer.write(as_bytes(words), at)
            with worker.clock.phase("prove"):
                back = np.empty(words.shape, np.uint32)
                writer.read_back(as_bytes(back), at)
                digest.update(as_bytes(back))
                prove_weight(planned, recipe, weight, expert, back, mine, weight.expert_codes(context, expert))
        if mine.offsets is not None and mine.offsets.any():
            # rare: groups more than 2^11 below the largest of their row; the step is named by what it did
            measure_e8m0_range(recipe, weight.expert_codes(context, expert), mine, context.meter)
    return "xxh3:" + digest.hexdigest()


def _stream(stream: ExpertStream, writer: OutputWriter, at: int, digest: Any, worker: Worker) -> None:
    """One expert window by window: pack, write, read back through the file, digest, prove, while all of it is in the cache."""
    clock = worker.clock
    clock.start()
    with closing(stream.steps()) as steps:
        for step in steps:
            worker.check()
            words = stream.words(step, worker.arena.take)
            raw, offset = as_bytes(words), at + 4 * step.window.first
            clock.add("read")
            stream.pack(step, words)
            clock.add("pack")
            for start in range(0, len(raw), PIECE):
                piece = raw[start : start + PIECE]
                writer.write(piece, offset + start)
                clock.add("write")
                writer.read_back(piece, offset + start)
                digest.update(piece)
                clock.add("prove")
            stream.prove(step, words)
            clock.add("prove")
    stream.finish()


def _write_standard_weight(planned: PlannedLayer, weight: Weight, writer: OutputWriter, context: Context, worker: Worker) -> str:
    """The standard form's words, expert by expert; returns the digest of the whole tensor."""
    tensor, digest = planned.outputs["weight"], xxh3_128()
    step = tensor.nbytes // (weight.experts or 1)
    for expert in range(weight.experts or 1):
        worker.check()
        with worker.clock.phase("pack"):
            value = weight.expert_words(context, expert)
        at = tensor.offset + expert * step
        worker.check()
        with worker.clock.phase("write"):
            writer.write(as_bytes(value), at)
        with worker.clock.phase("prove"):
            back = np.empty(value.shape, value.dtype)
            writer.read_back(as_bytes(back), at)
            digest.update(as_bytes(back))
            prove_standard_weight(planned, weight, expert, back, context)
    return "xxh3:" + digest.hexdigest()


def copy_plain(plain: PlainTensor, writer: OutputWriter, worker: Worker) -> Meter:
    """A tensor of no quantized layer: its bytes, or the dequantized matrix."""
    meter = Meter()
    if isinstance(plain.expr, Stored):
        _copy(plain, plain.expr.view, writer, worker)
        return meter
    with worker.clock.phase("pack"):
        value = plain.expr.evaluate(Context(read=worker.read, meter=meter))
    back = write_tensor(writer, plain.output, value, worker.clock)
    if as_bytes(back) != as_bytes(value):
        raise ProofFailed(plain, "", f"{plain.output.name}: the file does not hold what was written")
    return meter


def _copy(plain: PlainTensor, view: TensorView, writer: OutputWriter, worker: Worker) -> None:
    """A stored tensor block by block, each read back through the file and compared."""
    clock = worker.clock
    clock.start()
    for start in range(0, view.nbytes, BLOCK):
        worker.check()
        nbytes = min(BLOCK, view.nbytes - start)
        block = replace(view, dtype="U8", shape=(nbytes,), offset=view.offset + start, nbytes=nbytes)
        source, back = worker.fetch(0, block), worker.arena.take("copied", nbytes)
        clock.add("read")
        writer.write(source.data, plain.output.offset + start)
        clock.add("write")
        writer.read_back(back.data, plain.output.offset + start)
        clock.add("prove")
        if not np.array_equal(source, back):
            raise ProofFailed(plain, "", f"{plain.output.name}: the file does not hold what the source says")
