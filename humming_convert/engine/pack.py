"""One layer: source words to packed words in its output file, proven by reading them back through the file.

Small tensors (scales, zero points, biases) are computed whole; the weight goes expert by expert, block by block in its source packing,
through a compiled pass where there is one and the numpy reference where not. Facts: architecture.md 5, 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from humming_convert.checkpoint.tensors import DTYPES, TensorView
from humming_convert.engine.digest import Digest
from humming_convert.engine.output import OutputWriter, as_bytes
from humming_convert.engine.scales import write_scales
from humming_convert.engine.streaming import copy_stored, stream_expert
from humming_convert.engine.worker import Worker
from humming_convert.layouts import Apart, WeightAux, pack_small, pack_weight
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.prepare import measure_e8m0_range
from humming_convert.manifest.types import LayerResult, Proof
from humming_convert.plan.types import PlainTensor, PlannedLayer, PlannedTensor
from humming_convert.proof.failed import ProofFailed
from humming_convert.proof.roundtrip import prove_standard_weight, prove_weight
from humming_convert.proof.scales import ROLE as SCALES
from humming_convert.proof.scales import ScaleStream, lows, scale_streams
from humming_convert.proof.small import prove_small
from humming_convert.proof.stream import ExpertStream, look_up_pass, small_passes, streams
from humming_convert.standard.expr import Context, Stored, Weight
from humming_convert.standard.lossy import Meter


def write_tensor(writer: OutputWriter, tensor: PlannedTensor, value: NDArray[Any], worker: Worker, slot: str) -> NDArray[Any]:
    """Writes a whole tensor and returns it as read back through the file, in memory `slot` of the worker's arena."""
    clock = worker.clock
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
        back = worker.arena.take(slot, tensor.nbytes)
        writer.read_back(back.data, tensor.offset)
    return back.view(value.dtype).reshape(value.shape)


def digest_of(value: NDArray[Any]) -> str:
    return "xxh3:" + xxh3_128(as_bytes(value)).hexdigest()


def write_layer(planned: PlannedLayer, writer: OutputWriter, worker: Worker) -> LayerResult:
    """All tensors of one layer. Raises ProofFailed if what the file holds is not what the source says."""
    meter = Meter()
    layer = planned.layer
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)
    context = Context(read=worker.read, meter=meter, look_up=look_up_pass(weight))
    clock = worker.clock
    apart = _scales_apart(planned, writer, worker)
    with clock.phase("read"):
        left = ("weight",) if apart is None else ("weight", SCALES)
        small = {role: expr.evaluate(context) for role, expr in layer.tensors.items() if role not in left}
    digests: dict[str, str] = {}
    if planned.recipe is None:
        packed, aux = small, None
    else:
        with clock.phase("pack"):
            known = None if apart is None else Apart(lows=lows(apart))
            packed, aux = pack_small(planned.recipe, small, meter, small_passes(weight), apart=known)
    # a weight the compiled passes cannot take, or too small to wait for them, goes through the reference
    if planned.recipe is not None:
        assert aux is not None
        digests["weight"] = _write_packed_weight(planned, planned.recipe, weight, aux, writer, context, worker)
    else:
        digests["weight"] = _write_standard_weight(planned, weight, writer, context, worker)
    back: dict[str, NDArray[Any]] = {}
    for role, tensor in planned.outputs.items():
        if role == SCALES and apart is not None:
            digests[role] = write_scales(apart, writer, worker, meter)
        elif role != "weight":
            worker.check()
            back[role] = write_tensor(writer, tensor, packed[role], worker, f"back {role}")
            digests[role] = digest_of(back[role])
    with clock.phase("prove"):
        prove_small(planned, small, packed, back)
    return LayerResult(digests=digests, lossy=tuple(meter.found.values()), proof=Proof.of(meter))


def _scales_apart(planned: PlannedLayer, writer: OutputWriter, worker: Worker) -> list[ScaleStream] | None:
    """The scales as streams, where lists of calls can be made and they only move."""
    calls = not worker.mapped and worker.packer is None and writer.digest_state
    with worker.clock.phase("read"):
        return scale_streams(planned, worker.files) if calls else None


def _write_packed_weight(
    planned: PlannedLayer, recipe: LayerRecipe, weight: Weight, aux: WeightAux, writer: OutputWriter, context: Context, worker: Worker
) -> str:
    """Packs, writes, reads back and proves expert by expert; returns the digest of the whole tensor, taken in the proof's read."""
    tensor, digest = planned.outputs["weight"], Digest()
    step = tensor.nbytes // (weight.experts or 1)
    compiled = streams(recipe, weight)
    for expert in range(weight.experts or 1):
        mine, at = aux.of_expert(expert), tensor.offset + expert * step
        if compiled:
            stream = ExpertStream if worker.packer is None else worker.packer.stream
            stream_expert(stream(planned, recipe.weight, weight, expert, mine, worker.fetch), writer, at, digest, worker)
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
        if mine.offsets is not None and mine.offsets.max(initial=0):  # `any` would make an array of booleans
            # rare: groups more than 2^11 below the largest of their row; the step is named by what it did
            measure_e8m0_range(recipe, weight.expert_codes(context, expert), mine, context.meter)
    return "xxh3:" + digest.hexdigest()


def _write_standard_weight(planned: PlannedLayer, weight: Weight, writer: OutputWriter, context: Context, worker: Worker) -> str:
    """The standard form's words, expert by expert; returns the digest of the whole tensor."""
    tensor, digest = planned.outputs["weight"], Digest()
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
    back = write_tensor(writer, plain.output, value, worker, "back weight")
    if as_bytes(back) != as_bytes(value):
        raise ProofFailed(plain, "", f"{plain.output.name}: the file does not hold what was written")
    return meter


def _copy(plain: PlainTensor, view: TensorView, writer: OutputWriter, worker: Worker) -> None:
    """A stored tensor block by block, each read back through the file and compared."""
    if not copy_stored(view, writer, plain.output.offset, worker):
        raise ProofFailed(plain, "", f"{plain.output.name}: the file does not hold what the source says")
