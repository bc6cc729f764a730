"""What a format reader gets: the checkpoint, its quantization config, the options, and a place for findings.

Facts: formats.md 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Findings


class ReadOptions(Struct, frozen=True, kw_only=True):
    """The options of architecture.md 9.1 that decide what a source means."""

    gptq_zeros: Literal["auto", "v1", "v2"] = "auto"
    gptq_wrap: Literal["auto", "word", "field"] = "auto"
    on_desc_act: Literal["refuse", "dequantize", "requant"] = "refuse"
    e8m0_nan: Literal["refuse", "zero-group"] = "refuse"
    missing_input_scale: Literal["refuse", "max"] = "refuse"
    qkv_layout: Literal["auto", "plain", "chunked"] = "auto"


class Module(Struct, frozen=True, kw_only=True):
    """All tensors that share a name up to the last dot. `tensors`: suffix -> view."""

    name: str
    tensors: Mapping[str, TensorView]

    def has(self, *suffixes: str) -> bool:
        return all(s in self.tensors for s in suffixes)


class Source(Struct, kw_only=True):
    """One reading. `method`: normalised quant_method of the primary section, "" if there is none (the tensors decide).

    `config`: the primary quantization section ({} if none). `headers_only`: data must not be read, questions stay open.
    `shared`: what a method works out once for all modules (its `prepare` hook).
    """

    checkpoint: Checkpoint
    method: str
    config: Mapping[str, Any]
    options: ReadOptions
    read: Read
    findings: Findings
    headers_only: bool = False
    shared: dict[str, Any] = field(default_factory=dict)
