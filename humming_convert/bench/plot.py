"""The picture of a document: how many times as quick as cuBLAS each contender is, over the rows, a panel for each kind of layer.

In: a Document.  Out: bytes of a self-contained SVG or PNG. The same document gives the same bytes with the same matplotlib.
Where cuBLAS was not measured, the share of the read floor is shown in its place, which the axis says.
"""

from __future__ import annotations

import io
from typing import Any

from humming_convert.bench.document import CORE, CUBLAS, LIBRARY, NAMES, SCALED, Document, LayerResult, Point

FORMATS = (".svg", ".png")
INSTALL = "python -m pip install 'matplotlib>=3.8', or humming-convert[plot]"
ACROSS = 3  # panels
SIZE = (4.2, 3.2)  # inches of one
# lines differ in dashes and marks, not in colour alone; colours that most colour-blind people tell apart (Okabe and Ito)
LINES = {CORE: ("#0072b2", "-", "o"), LIBRARY: ("#d55e00", "--", "s"), SCALED: ("#009e73", ":", "^")}
STYLE = {"svg.hashsalt": "humming-convert", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}


class MissingExtra(Exception):
    """A picture was asked for, and matplotlib is not installed."""


def library() -> Any:
    """matplotlib. MissingExtra where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra(f"--plot needs matplotlib, which is not installed: {INSTALL}") from None
    return matplotlib


def speed_up(point: Point, name: str, base: str | None) -> float | None:
    """Against cuBLAS; base None: the share of the read floor."""
    if base is not None:
        return point.ratio(base, name)
    us = point.us(name)
    return None if us is None else point.floor_us / us


def lines(layer: LayerResult, base: str | None) -> dict[str, list[tuple[int, float]]]:
    """Contender -> (rows, value), where there is one."""
    found = {name: [(p.rows, v) for p in layer.points if (v := speed_up(p, name, base)) is not None] for name in LINES}
    return {name: values for name, values in found.items() if values}


def base_of(document: Document) -> str | None:
    """cuBLAS where every layer has it."""
    return CUBLAS if all(p.us(CUBLAS) for x in document.layers for p in x.points) else None


def picture(document: Document, suffix: str) -> bytes:
    """suffix: of FORMATS."""
    matplotlib = library()
    from matplotlib.figure import Figure

    base = base_of(document)
    count = len(document.layers)
    across = min(ACROSS, count)
    down = -(-count // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] * across, SIZE[1] * down + 0.6), layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for panel, layer in zip(panels, document.layers, strict=False):
            _panel(panel, layer, base)
        for panel in panels[count:]:
            panel.remove()
        figure.suptitle(f"{document.device}: {'times as quick as cuBLAS' if base else 'share of the read floor'}, over rows")
        handles = {label: h for panel in figure.axes for h, label in zip(*panel.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(LINES), frameon=False)
        out = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(out, format=suffix[1:], metadata=metadata, dpi=150)
    return out.getvalue()


def _panel(panel: Any, layer: LayerResult, base: str | None) -> None:
    for name, values in lines(layer, base).items():
        colour, dash, mark = LINES[name]
        panel.plot(*zip(*values, strict=True), color=colour, linestyle=dash, marker=mark, markersize=3.5, label=NAMES[name])
    rows = [p.rows for p in layer.points]
    panel.set_xscale("log", base=2)
    panel.set_xticks(rows, [str(r) for r in rows])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.axhline(1, color="0.6", linewidth=0.8)
    experts = f"{layer.experts} experts of " if layer.experts else ""
    panel.set_title(f"{layer.weight}; {layer.act}\n{experts}{layer.n} x {layer.k}", fontsize=8)
    panel.set_xlabel("rows")
