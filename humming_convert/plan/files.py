"""Which output file holds which tensor, and where.

Packed: layers in `model-packed-tpRofT-*`, a series a rank, all else in `model-common-*`; standard: everything in `model-*`
(architecture.md 9.4).
A series is cut at --shard-size, and into several files long before that, so that several workers write at once
(writes to one file are serial in the kernel, passes_cpu.md 3). The cut depends on the plan alone, never on the workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from humming_convert.checkpoint.writing import build_header
from humming_convert.plan.types import OutputFile, PlainTensor, PlannedLayer, PlannedTensor

METADATA = {"format": "pt"}  # transformers refuses a file whose metadata does not say so
SERIES = 8  # files of about one size that a large series has at least
WORTH = 64_000_000  # bytes below which a file is not cut further


def lay_out(
    layers: Sequence[PlannedLayer], plain: Sequence[PlainTensor], *, labels: Sequence[str] | None, shard_size: int
) -> tuple[list[OutputFile], list[PlannedLayer], list[PlainTensor]]:
    """Files in the order of their names, and the layers and plain tensors with their places filled in.

    labels: of the ranks of a packed folder, in their order; None: the standard form.
    """
    singles = [(x.output,) for x in plain]
    placed: list[PlannedLayer] = []
    if labels is None:
        places, files = _series("model", [*(tuple(x.outputs.values()) for x in layers), *singles], shard_size)
        placed = [_placed(x, places) for x in layers]
    else:
        places, files = _series("model-common", singles, shard_size)
        for rank, label in enumerate(labels):
            mine = [x for x in layers if x.rank == rank]
            of_rank, more = _series(f"model-packed-{label}", [tuple(x.outputs.values()) for x in mine], shard_size)
            placed += [_placed(x, of_rank) for x in mine]
            files += more
    return files, placed, [replace(x, output=places[x.output.name]) for x in plain]


def _placed(layer: PlannedLayer, places: dict[str, PlannedTensor]) -> PlannedLayer:
    return replace(layer, outputs={role: places[t.name] for role, t in layer.outputs.items()})


def _series(stem: str, units: Sequence[tuple[PlannedTensor, ...]], shard_size: int) -> tuple[dict[str, PlannedTensor], list[OutputFile]]:
    """One series of files. A unit (the tensors of a layer) stays in one file. Names are unique: a clash is a bug upstream."""
    sizes = [sum(t.nbytes for t in unit) for unit in units]
    total, done, size, end = sum(sizes), 0, 0, 0
    parts = max(-(-total // shard_size), min(SERIES, -(-total // WORTH)))
    shards: list[list[PlannedTensor]] = []
    for unit, nbytes in zip(units, sizes, strict=True):
        # where the middle of the unit lies beyond the end of the equal part in which the file's first one lies, a file begins: files of one size
        # keep all workers busy to the end
        middle = 2 * done + nbytes
        if not shards or (size and nbytes and (parts * middle > end or size + nbytes > shard_size)):
            shards.append([])
            size, end = 0, (parts * middle // max(2 * total, 1) + 1) * 2 * total
        shards[-1] += unit
        size, done = size + nbytes, done + nbytes
    places: dict[str, PlannedTensor] = {}
    files: list[OutputFile] = []
    for number, tensors in enumerate(shards, 1):
        name = f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors"
        header = build_header([(t.name, t.dtype, t.shape) for t in tensors], METADATA)
        at = len(header)
        for t in tensors:
            assert t.name not in places, t.name
            places[t.name] = replace(t, file=name, offset=at)
            at += t.nbytes
        files.append(OutputFile(name=name, header=header, nbytes=at))
    return places, files
