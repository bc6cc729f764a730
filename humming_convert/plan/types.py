"""The plan: everything that is written, known before the first byte.

`inspect`, `plan`, `convert`, dry runs, resume and progress are readings of one `Plan`. Facts: architecture.md 1, 4, 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Literal

from msgspec import Struct, field

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.reading import FileState
from humming_convert.checkpoint.tensors import DTYPES
from humming_convert.findings import Finding
from humming_convert.formats.source import ReadOptions
from humming_convert.layouts.config import LayerRecipe
from humming_convert.model.parallel import Rank, ranks
from humming_convert.standard.expr import Expr
from humming_convert.standard.layer import StandardLayer
from humming_convert.targets.table import Target


class Request(Struct, frozen=True, kw_only=True):
    """What was asked for: the options of `convert` and `plan` that shape bytes (architecture.md 9.1). `target` None: the standard form."""

    target: Target | None
    act: str = "auto"
    act_fallback: bool = False
    fuse: Literal["auto", "vllm", "none"] = "auto"
    on_mixed: Literal["refuse", "dequantize", "unfuse"] = "refuse"
    pad_n: int = 256
    pad_k: int = 128
    e0m: Literal["auto", "never"] = "auto"
    entry: Literal["vllm", "humming-layer"] = "vllm"
    humming_version: str = "0.1.20"
    cuda_compiler_version: str = "13.0"
    cubin_patch: bool = True
    dtype: Literal["BF16", "F16"] = "BF16"
    lm_head: Literal["dequantize", "keep"] = "dequantize"
    w13: Literal["keep", "contiguous"] = "keep"
    scale_dtype: Literal["model", "source"] = "model"
    read: ReadOptions = ReadOptions()
    include: str | None = None
    exclude: str | None = None
    tp: int = 1
    ep: int = 1
    shard_size: int = 5_000_000_000
    allow_lossy: bool = False
    strict: bool = False

    @property
    def standard(self) -> bool:
        return self.target is None

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return ranks(self.tp, self.ep)


class PlannedTensor(Struct, frozen=True, kw_only=True):
    """One output tensor: full `name`, safetensors `dtype`, where it stands. `offset`: first byte in `file`. `role`: None if it is of no layer."""

    name: str
    role: str | None
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str = ""
    offset: int = 0


def planned_tensor(name: str, role: str | None, dtype: str, shape: tuple[int, ...]) -> PlannedTensor:
    """A tensor without a place yet."""
    return PlannedTensor(name=name, role=role, dtype=dtype, shape=shape, nbytes=prod(shape) * DTYPES[dtype].itemsize)


class PlannedLayer(Struct, frozen=True, kw_only=True):
    """One entry of the manifest's `layers`. `recipe`: None in the standard form. `outputs`: role -> tensor.

    `vllm`: the prefix that vLLM asks for, None if unknown. `answers`: data questions by name and what the data said.
    `rank`: number of the rank in `Request.ranks` whose layer this is; layers of the same name of several ranks differ in their cut.
    `max_tp`: the largest number of tensor-parallel ranks that the whole layer can be cut for, None: any, it is not cut.
    """

    layer: StandardLayer
    vllm: str | None
    recipe: LayerRecipe | None
    outputs: Mapping[str, PlannedTensor]
    answers: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    max_tp: int | None = None

    @property
    def key(self) -> str:
        """Of this layer among those of all ranks."""
        return f"{self.layer.name} of rank {self.rank}" if self.rank else self.layer.name


class PlainTensor(Struct, frozen=True, kw_only=True):
    """A tensor of no quantized layer: copied (`expr` is a Stored) or written as a plain matrix (`dequantized` says of what and why)."""

    output: PlannedTensor
    expr: Expr
    dequantized: Dequantized | None = None


class Dequantized(Struct, frozen=True, kw_only=True):
    """`name`: the module; `source_tensors`: what it was made from; `step`: a name of standard.lossy.STEPS."""

    name: str
    source_tensors: tuple[str, ...]
    reason: str
    step: str


class OutputFile(Struct, frozen=True, kw_only=True):
    """A safetensors file of the output. `header`: the 8 length bytes and the JSON; tensors follow without holes."""

    name: str
    header: bytes
    nbytes: int


class Plan(Struct, frozen=True, kw_only=True):
    """What will be written. `families`: of the source, sorted. `fingerprint`: digest of all that shapes the bytes.

    `states`: the source's weight files as they were before the first of them was read for this plan.
    """

    source: Checkpoint
    request: Request
    act: str
    layers: tuple[PlannedLayer, ...]
    plain: tuple[PlainTensor, ...]
    files: tuple[OutputFile, ...]
    findings: tuple[Finding, ...]
    families: tuple[str, ...]
    fingerprint: str
    totals: Mapping[str, Any]
    states: tuple[FileState, ...] = ()

    def of_rank(self, rank: int) -> tuple[PlannedLayer, ...]:
        """The layers of one rank."""
        return tuple(p for p in self.layers if p.rank == rank)
