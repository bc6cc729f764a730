"""The table of a document: microseconds, and what they come to beside the read floor and the others.

In: a Document.  Out: heads and rows of words, for whoever prints them.
"""

from __future__ import annotations

from humming_convert.bench.document import CORE, CUBLAS, LIBRARY, NAMES, SCALED, Document, LayerResult, Point

HEAD = ("rows", "core", "library", "cuBLAS", "_scaled_mm", "floor", "core/floor", "cuBLAS/core", "library/core", "error", "kernel")
RIGHT = frozenset(range(len(HEAD) - 1))
NOTHING = "-"


def title(layer: LayerResult) -> str:
    experts = f"{layer.experts} experts of " if layer.experts else ""
    more = f", {layer.alike} layers" if layer.alike > 1 else ""
    return f"{layer.name}: {experts}{layer.n} x {layer.k}, {layer.weight}; {layer.act}{more}"


def rows(layer: LayerResult) -> list[tuple[str, ...]]:
    return [_row(p) for p in layer.points]


def _row(p: Point) -> tuple[str, ...]:
    core = p.contenders.get(CORE)
    others = (_us(p.us(name)) for name in (LIBRARY, CUBLAS, SCALED))
    floor = _ratio(core.us / p.floor_us if core else None)
    error = NOTHING if core is None or core.error is None else f"{core.error:.0e}"
    if core is not None and core.ok is False:
        error = "WRONG"
    ratios = (floor, _ratio(p.ratio(CUBLAS, CORE)), _ratio(p.ratio(LIBRARY, CORE)))
    kernel = (core.kernel if core else None) or NOTHING
    return (str(p.rows), _us(core.us if core else None), *others, _us(p.floor_us), *ratios, error, kernel)


def notes(document: Document) -> list[str]:
    """Who was measured by what, who was not and why."""
    out = [f"{document.device}, sm_{document.sm}, NVRTC {document.compiler}; microseconds, medians of CUDA graphs; {document.tuning}"]
    out += [f"{NAMES[name]}: {how}" for name, how in document.contenders.items()]
    out += [f"{NAMES[name]}: not measured: {why}" for name, why in document.absent.items()]
    for layer in document.layers:
        out += [f"{layer.name}: {NAMES[name]}: not measured: {why}" for name, why in layer.absent.items()]
    return out


def _us(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"
