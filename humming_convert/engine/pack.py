"""One layer: source words to packed words in its output file, proven by reading them back through the file.

Small tensors (scales, zero points, biases) are computed whole; the weight goes expert by expert, block by block in its source packing,
through a compiled pass where there is one and the numpy reference where not. Facts: architecture.md 5, 6.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from humming_convert import passes
from humming_convert.checkpoint.tensors import DTYPES, Read
from humming_convert.engine.output import Arena, OutputWriter, as_bytes
from humming_convert.layouts import WeightAux, pack_small, pack_weight
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.prepare import measure_e8m0_range
from humming_convert.manifest.types import LayerResult, Proof
from humming_convert.plan.types import PlainTensor, PlannedLayer, PlannedTensor
from humming_convert.proof.roundtrip import ProofFailed, prove_small, prove_standard_weight, prove_weight
from humming_convert.standard.expr import CodeBlock, Context, Weight
from humming_convert.standard.lossy import Meter

SMALL = 1 << 22  # codes; below it the numpy reference is faster than loading compiled code


class Stopped(Exception):
    """The run is being stopped; this worker's tensor is unfinished."""


@dataclass(slots=True)
class Worker:
    """What one worker owns: a way to read, buffers, and the signal to stop."""

    read: Read
    arena: Arena
    stop: threading.Event

    def check(self) -> None:
        if self.stop.is_set():
            raise Stopped


def write_tensor(writer: OutputWriter, tensor: PlannedTensor, value: NDArray[Any]) -> NDArray[Any]:
    """Writes a whole tensor and returns it as read back through the file."""
    assert value.dtype == DTYPES[tensor.dtype] and value.shape == tensor.shape, (
        tensor.name,
        value.dtype,
        value.shape,
        tensor.dtype,
        tensor.shape,
    )
    writer.write(as_bytes(value), tensor.offset)
    back = np.empty(tensor.nbytes, np.uint8)
    writer.read_back(memoryview(back), tensor.offset)
    return back.view(value.dtype).reshape(value.shape)


def digest_of(value: NDArray[Any]) -> str:
    return "xxh3:" + xxh3_128(as_bytes(value)).hexdigest()


def write_layer(planned: PlannedLayer, writer: OutputWriter, worker: Worker) -> LayerResult:
    """All tensors of one layer. Raises ProofFailed if what the file holds is not what the source says."""
    meter = Meter()
    context = Context(read=worker.read, meter=meter)
    layer = planned.layer
    small = {role: expr.evaluate(context) for role, expr in layer.tensors.items() if role != "weight"}
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)
    digests: dict[str, str] = {}
    if planned.recipe is None:
        packed, aux = small, None
    else:
        packed, aux = pack_small(planned.recipe, small, meter)
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
            back[role] = write_tensor(writer, tensor, packed[role])
            digests[role] = digest_of(back[role])
    prove_small(planned, packed, back)
    return LayerResult(digests=digests, lossy=tuple(meter.found.values()), proof=Proof.of(meter))


def _write_packed_weight(
    planned: PlannedLayer, recipe: LayerRecipe, weight: Weight, aux: WeightAux, writer: OutputWriter, context: Context, worker: Worker
) -> str:
    """Packs, writes, reads back and proves expert by expert; returns the digest of the whole tensor, taken in the proof's read."""
    tensor, digest = planned.outputs["weight"], xxh3_128()
    step = tensor.nbytes // (weight.experts or 1)
    for expert in range(weight.experts or 1):
        worker.check()
        blocks = weight.of_expert(expert)
        out = worker.arena.take("packed", step)
        words, mine = out.view(np.uint32), aux.of_expert(expert)
        codes: NDArray[np.uint8] | None = None
        if _compiled(recipe, blocks, weight):
            stored = [worker_read(worker, i, block) for i, (_, block) in enumerate(blocks)]
            for (row, block), source in zip(blocks, stored, strict=True):
                passes.pack_block(
                    recipe.weight, packing=block.packing, stored=source, n=block.n, k=block.k, row=row, out=words, aux=mine.array
                )
            passes.fill_padding(recipe.weight, words, mine.array)
        else:
            stored = None
            codes = weight.expert_codes(context, expert)
            words[:] = pack_weight(recipe.weight, codes, mine).view(np.uint32).reshape(-1)
        at = tensor.offset + expert * step
        writer.write(memoryview(out), at)
        out[:] = 0  # what is proven below comes from the file
        writer.read_back(memoryview(out), at)
        digest.update(memoryview(out))
        prove_weight(planned, recipe, blocks, expert, words, mine, stored, codes, context)
        if mine.offsets is not None and mine.offsets.any():
            # rare: groups more than 2^11 below the largest of their row; the step is named by what it did
            measure_e8m0_range(recipe, weight.expert_codes(context, expert) if codes is None else codes, mine, context.meter)
    return "xxh3:" + digest.hexdigest()


def _compiled(recipe: LayerRecipe, blocks: tuple[tuple[int, CodeBlock], ...], weight: Weight) -> bool:
    """Whether every block has a compiled pass, and the layer is worth it."""
    if weight.n * weight.k * (weight.experts or 1) < SMALL:
        return False
    return all(b.straight and passes.supported(recipe.weight, b.packing, b.bits, b.n, b.k) for _, b in blocks)


def worker_read(worker: Worker, slot: int, block: CodeBlock) -> NDArray[Any]:
    """The stored array of a block."""
    return worker.read(block.view.at(block.index))


def _write_standard_weight(planned: PlannedLayer, weight: Weight, writer: OutputWriter, context: Context, worker: Worker) -> str:
    """The standard form's words, expert by expert; returns the digest of the whole tensor."""
    tensor, digest = planned.outputs["weight"], xxh3_128()
    step = tensor.nbytes // (weight.experts or 1)
    for expert in range(weight.experts or 1):
        worker.check()
        value = weight.expert_words(context, expert)
        at = tensor.offset + expert * step
        writer.write(as_bytes(value), at)
        back = np.empty(value.shape, value.dtype)
        writer.read_back(memoryview(back.view(np.uint8).reshape(-1)), at)
        digest.update(as_bytes(back))
        prove_standard_weight(planned, weight, expert, back, context)
    return "xxh3:" + digest.hexdigest()


def copy_plain(plain: PlainTensor, writer: OutputWriter, worker: Worker) -> Meter:
    """A tensor of no quantized layer: its bytes, or the dequantized matrix."""
    meter = Meter()
    value = plain.expr.evaluate(Context(read=worker.read, meter=meter))
    back = write_tensor(writer, plain.output, value)
    if as_bytes(back) != as_bytes(value):
        raise ProofFailed(plain.output.name, None, f"{plain.output.name}: the file does not hold what was written")
    return meter
