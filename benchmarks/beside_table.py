"""Tables of `gemm_beside.py`: one run, or two of alternating order, from which better and worse are told.

    python benchmarks/beside_table.py RUN.json [OTHER.json] [--out FILE.md]

A cell is better or worse than the library where both runs say so beyond the spread of such measurements: 8 % up to 256 rows, 6 % from 1024 on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

Row = dict[str, Any]
Cell = tuple[str | None, int, int, str, int]  # moe, n, k, format, m
SPREAD_FEW, SPREAD_MANY, MANY = 1.08, 1.06, 1024
CORE, LIBRARY, CUBLAS, SCALED = "core", "humming", "cublas_bf16", "torch_scaled_mm"
BASE = {CUBLAS: "bf16", SCALED: "fp8_rowwise"}
HEAD = ("M", "core", "library", "cuBLAS", "scaled_mm", "floor", "core/floor", "library/core", "cuBLAS/core", "is", "kernel")


def spread(m: int) -> float:
    return SPREAD_MANY if m >= MANY else SPREAD_FEW


def verdict(core: Sequence[float], library: Sequence[float], m: int) -> str:
    """Of microseconds, run by run."""
    said = {1 if b / a > spread(m) else -1 if a / b > spread(m) else 0 for a, b in zip(core, library, strict=True)}
    if said == {1}:
        return "better"
    if said == {-1}:
        return "worse"
    return "even" if said == {0} else "unsure"


def by_cell(document: dict[str, Any]) -> dict[tuple[str, Cell], Row]:
    return {(r["contender"], (r["moe"], r["n"], r["k"], r["format"], r["m"])): r for r in document["results"]}


def _times(runs: list[dict[tuple[str, Cell], Row]], contender: str, cell: Cell) -> list[float]:
    """Of every run; empty where one of them has none."""
    out = [r["us"] for run in runs if (r := run.get((contender, cell))) is not None and "us" in r]
    return out if len(out) == len(runs) else []


def _base(contender: str, cell: Cell) -> Cell:
    moe, n, k, _, m = cell
    return ("grouped" if moe else None, n, k, BASE[contender], m)


def _us(times: list[float]) -> str:
    return f"{fmean(times):.1f}" if times else "-"


def _ratio(a: list[float], b: list[float]) -> str:
    return f"{fmean(a) / fmean(b):.2f}" if a and b else "-"


def kernel_of(row: Row) -> str:
    t = row.get("tuning") or {}
    if not t:
        return "-"
    parts = f", {t['parts']} parts" if t["parts"] > 1 else ""
    return f"{t['family']} {t['tile_m']} rows, {t['threads']} threads, {t['stages']} stages{parts}"


def report(documents: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown."""
    runs = [by_cell(d) for d in documents]
    first = documents[0]
    library = f"humming-kernels {first['library']}" if first["library"] else "humming-kernels not measured"
    out = [
        f"{first['device']}, torch {first['torch']}, CUDA {first['cuda']}, {library}; {' and '.join(d['order'] for d in documents)}. Microseconds."
    ]
    cells = sorted({c for run in runs for who, c in run if who == CORE}, key=lambda c: (c[0] or "", c[1:3], c[3], c[4]))
    worse: list[str] = []
    counts: Counter[str] = Counter()
    title = None
    for cell in cells:
        moe, n, k, name, m = cell
        if (moe, n, k, name) != title:
            title = (moe, n, k, name)
            out += ["", f"**{name}, {n} x {k}{', ' + moe if moe else ''}**", "", f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
        mine = runs[0].get((CORE, cell), {})
        core, theirs = _times(runs, CORE, cell), _times(runs, LIBRARY, cell)
        cublas, scaled = _times(runs, CUBLAS, _base(CUBLAS, cell)), _times(runs, SCALED, _base(SCALED, cell))
        floor = [r["floor_us"] for run in runs if (r := run.get((CORE, cell))) and "floor_us" in r]
        is_ = verdict(core, theirs, m) if core and theirs else "-"
        wrong = [who for who in (CORE, LIBRARY) for run in runs if not run.get((who, cell), {"ok": True}).get("ok", False)]
        if wrong:
            is_ = f"{', '.join(dict.fromkeys(wrong))} WRONG"
        counts[is_] += 1
        values = (
            m,
            _us(core),
            _us(theirs),
            _us(cublas),
            _us(scaled),
            _us(floor),
            _ratio(core, floor),
            _ratio(theirs, core),
            _ratio(cublas, core),
        )
        out.append(f"| {' | '.join(map(str, values))} | {is_} | {kernel_of(mine)} |")
        if is_ == "worse":
            worse.append(
                f"* {name}, {n} x {k}{', ' + moe if moe else ''}, M = {m}: {_ratio(core, theirs)} of the library's time; {kernel_of(mine)}"
            )
        out += [f"  {who}: {r['error']}" for who in (CORE, LIBRARY) for run in runs if (r := run.get((who, cell))) and "error" in r]
    out += ["", f"Cells beside the library: {', '.join(f'{count} {word}' for word, count in counts.most_common())}."]
    out += ["", "Slower than the library:", "", *worse] if worse else []
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = report([json.loads(path.read_text()) for path in asked.runs])
    text = "\n".join(lines) + "\n"
    if asked.out:
        asked.out.write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
