"""What a run of `bench` found, as a document of its own format and version.

In: measurements.  Out: JSON, and the same back. Schema: schemas/bench.schema.json.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

FORMAT, VERSION = "humming-bench", 1
CORE, LIBRARY, CUBLAS, SCALED = "core", "library", "cublas", "scaled_mm"
NAMES = {CORE: "core", LIBRARY: "humming-kernels", CUBLAS: "cuBLAS", SCALED: "torch._scaled_mm"}
"""Contenders in the order of tables, and what people call them."""


class Measured(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """us: microseconds of a call, the median; low, high: quartiles.  error: largest difference from float64 over the sum of magnitudes, at the
    places that were compared; ok: within the tolerance; None where the weights are not the layer's, error also where a result is no number.  kernel: what multiplied."""

    us: float
    low: float
    high: float
    error: float | None = None
    ok: bool | None = None
    kernel: str | None = None


class Point(Struct, frozen=True, kw_only=True):
    """rows: of x, all experts together.  floor_us: reading the packed bytes that are needed, once.  nbytes: those bytes."""

    rows: int
    nbytes: int
    floor_us: float
    contenders: dict[str, Measured]

    def us(self, name: str) -> float | None:
        return self.contenders[name].us if name in self.contenders else None

    def ratio(self, of: str, over: str) -> float | None:
        """Time of one over the time of another: how many times as quick the second is."""
        a, b = self.us(of), self.us(over)
        return None if a is None or b is None else a / b


class LayerResult(Struct, frozen=True, kw_only=True):
    """name: one of `alike` layers of the same configuration and shape.  weight, act: in words.  n, k: without padding.
    absent: contender -> why it has no times here."""

    name: str
    alike: int
    weight: str
    act: str
    n: int
    k: int
    experts: int
    kernels: str
    points: tuple[Point, ...]
    absent: dict[str, str]


class Document(Struct, frozen=True, kw_only=True):
    """contenders: who was measured, and by what.  absent: who was not at all, and why.  compiler: NVRTC.  templates: digest of the kernels' text."""

    format: str = FORMAT
    format_version: int = VERSION
    device: str
    sm: int
    multiprocessors: int
    compiler: str
    templates: str
    tuning: str
    contenders: dict[str, str]
    absent: dict[str, str]
    layers: tuple[LayerResult, ...]

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    @property
    def wrong(self) -> list[tuple[LayerResult, Point, str]]:
        """Products that were not right."""
        return [(x, p, name) for x in self.layers for p in x.points for name, m in p.contenders.items() if m.ok is False]


def read(text: bytes | str) -> Document:
    """ValueError if it is no document of this version."""
    try:
        document = msgspec.json.decode(text, type=Document)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no result of bench: {error}") from None
    if (document.format, document.format_version) != (FORMAT, VERSION):
        raise ValueError(f"{document.format} {document.format_version} is not read, {FORMAT} {VERSION} is")
    return document
