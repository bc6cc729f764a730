"""Which output file holds which tensor, and where.

Packed: layers in `model-packed-tp1of1-*`, all else in `model-common-*`; standard: everything in `model-*` (architecture.md 9.4).
A series is cut at --shard-size, and into several files long before that, so that several workers write at once
(writes to one file are serial in the kernel, passes_cpu.md 3). The cut depends on the plan alone, never on the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from humming_convert.checkpoint.writing import build_header
from humming_convert.plan.types import OutputFile, PlainTensor, PlannedLayer, PlannedTensor

METADATA = {"format": "pt"}  # transformers refuses a file whose metadata does not say so
SERIES = 8  # files that a large series has at least
WORTH = 64_000_000  # bytes below which a file is not cut further


def lay_out(
    layers: Sequence[PlannedLayer], plain: Sequence[PlainTensor], *, packed: bool, shard_size: int
) -> tuple[list[OutputFile], list[PlannedLayer], list[PlainTensor]]:
    """Files in the order of their names, and the layers and plain tensors with their places filled in."""
    units = [tuple(x.outputs.values()) for x in layers]
    singles = [(x.output,) for x in plain]
    if packed:
        places, files = _series("model-packed-tp1of1", units, shard_size)
        common, common_files = _series("model-common", singles, shard_size)
        places, files = places | common, common_files + files
    else:
        places, files = _series("model", [*units, *singles], shard_size)
    placed_layers = [replace(x, outputs={role: places[t.name] for role, t in x.outputs.items()}) for x in layers]
    return files, placed_layers, [replace(x, output=places[x.output.name]) for x in plain]


def _series(stem: str, units: Sequence[tuple[PlannedTensor, ...]], shard_size: int) -> tuple[dict[str, PlannedTensor], list[OutputFile]]:
    """One series of files. A unit (the tensors of a layer) stays in one file. Names are unique: a clash is a bug upstream."""
    total = sum(t.nbytes for u in units for t in u)
    limit = min(shard_size, max(WORTH, -(-total // SERIES)))
    shards: list[list[PlannedTensor]] = []
    size = limit + 1
    for unit in units:
        nbytes = sum(t.nbytes for t in unit)
        if size + nbytes > limit and (size or not shards):
            shards.append([])
            size = 0
        shards[-1] += unit
        size += nbytes
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
