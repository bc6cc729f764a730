"""The GEMM core beside humming-kernels, cuBLAS, `_scaled_mm` and the read floor, in one run of a benchmark harness.

    python benchmarks/gemm_beside.py HARNESS.py [--formats A,B] [--m 1,16] [--shapes 8192x8192 | all | none] [--moe]
                                     [--order core-first|library-first] [--seconds S] [--jobs J] [--out FILE.json]
    python benchmarks/gemm_beside.py HARNESS.py --list ...      # the points, without a GPU

HARNESS.py is a module of its own and no part of this package: it makes layers and activations, times calls in CUDA graphs over rotated copies
of the weights, and compares sampled rows with float64. The core is timed and checked by its functions, as its own contenders are; nothing of it
is repeated here. It needs torch, CuPy and an NVIDIA GPU; humming-kernels is measured where it can be imported, and its packed tensors are compared
with the core's, byte by byte. Two runs, one of each order, belong together: `beside_table.py A.json B.json`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

FORMATS = (
    *("w4a16_g128", "w4a16_g128_zp", "w3a16_g128", "w8a16_g128", "mxfp4_a16", "nvfp4_a16"),
    *("w4a8_fp8_g128", "mxfp4_a8_token", "fp8_channel_a8", "fp8_block_a8", "int8_w8a8"),
)
BASES = ("bf16", "fp8_rowwise")  # what cuBLAS and _scaled_mm multiply
ROWS = (1, 4, 16, 64, 256, 1024, 4096, 8192)
KINDS = ("gateup", "down", "grouped")
ORDERS = ("core-first", "library-first")
FAILURES = (RuntimeError, ValueError, AssertionError, TypeError, KeyError, NotImplementedError)


@dataclass(frozen=True)
class Point:
    format: str
    n: int
    k: int
    m: int
    moe: str | None = None


def shapes_of(harness: Any, asked: str) -> list[tuple[int, int]]:
    if asked == "none":
        return []
    if asked == "all":
        return [harness.MAIN, *harness.OTHERS]
    return [(int(n), int(k)) for n, k in (x.split("x") for x in asked.split(","))]


def points(harness: Any, formats: list[str], shapes: list[tuple[int, int]], rows: list[int], moe: bool) -> list[Point]:
    """Few rows first: after many a GPU runs for a while at a lower clock."""
    out = [Point(f, n, k, m) for n, k in shapes for f in (*BASES, *formats) for m in rows]
    if moe:
        _, _, n, k = harness.MOE_SHAPE
        for f in harness.MOE_FORMATS:
            kinds = ("grouped",) if f in BASES else KINDS
            out += [Point(f, n, k, m, kind) for kind in kinds for m in harness.M_FEW]
    return sorted(out, key=lambda p: (p.moe is not None, p.m))


def import_harness(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("harness", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["harness"] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Run:
    """layers: (format, n, k, experts) -> a layer of the harness."""

    harness: Any
    contenders: list[Any]
    floor: Any
    points: list[Point]
    until: float
    results: list[dict[str, Any]] = field(default_factory=list)
    layers: dict[tuple[str, int, int, int], Any] = field(default_factory=dict)
    routings: dict[tuple[str, int], Any] = field(default_factory=dict)

    def layer(self, p: Point) -> Any:
        h = self.harness
        key = (p.format, p.n, p.k, h.MOE_SHAPE[0] if p.moe else 0)
        if key not in self.layers:
            self.layers[key] = h.Layer(h.FORMATS[p.format], p.n, p.k, key[3])
        return self.layers[key]

    def moe(self, p: Point) -> Any:
        if p.moe is None:
            return None
        key = (p.moe, p.m)
        if key not in self.routings:
            self.routings[key] = self.harness.Moe(p.moe, p.m, *self.harness.MOE_SHAPE[:2])
        return self.routings[key]

    def of(self, p: Point) -> Iterator[Any]:
        return (c for c in self.contenders if p.format in c.formats())

    def measure_all(self, told: Callable[[str], None]) -> int:
        """How many points were left when the time was over."""
        for i, p in enumerate(self.points):
            if time.time() > self.until:
                return len(self.points) - i
            for contender in self.of(p):
                row = self.measure(contender, p)
                self.results.append(row)
                told(line(row))
        return 0

    def measure(self, contender: Any, p: Point) -> dict[str, Any]:
        h, layer, moe = self.harness, self.layer(p), self.moe(p)
        row = {"contender": contender.name, "format": p.format, "n": p.n, "k": p.k, "m": p.m, "moe": p.moe}
        try:
            act = h.Activation(layer.fmt, moe.input_rows if moe else p.m, p.k)
            calls, out = contender.build(layer, act, p.m, moe)
            where = (moe.expert_of_row, moe.token_of_row) if moe else (None, None)
            if isinstance(out, list):  # the contender allocates its output at each call
                calls[0]()
                error = h.check(lambda: None, h.Latest(out), layer, act, *where)
            else:
                error = h.check(calls[0], out, layer, act, *where)
            us, low, high = h.time_calls(calls)
            need = h.floor_bytes(layer, moe)
            (floor, _, _), _ = self.floor.time_bytes(need)
        except FAILURES as failure:
            return row | {"error": f"{type(failure).__name__}: {str(failure)[:300]}"}
        row |= {"us": us, "us_q1": low, "us_q3": high, "bytes": need, "floor_us": floor, "copies": len(calls)}
        row |= {"err": error, "ok": error <= h.TOLERANCE[layer.fmt.act]}
        note = getattr(contender, "notes", {}).get((p.format, p.n, p.k, p.m, p.moe))
        h.torch.cuda.empty_cache()
        return row | ({"tuning": note} if note else {})


def line(row: dict[str, Any]) -> str:
    head = f"{row['contender'][:15]:15} {row['format']:14} {row['n']}x{row['k']} M{row['m']} {row['moe'] or ''}"
    if "error" in row:
        return f"{head} {row['error'][:160]}"
    return f"{head} {row['us']:.1f} us, {row['us'] / row['floor_us']:.2f} x floor, error {row['err']:.0e}{'' if row['ok'] else ' WRONG'}"


def main() -> int:
    asked = arguments()
    harness = import_harness(asked.harness)
    formats = [f for f in (asked.formats.split(",") if asked.formats else FORMATS) if f]
    unknown = [f for f in formats if f not in harness.FORMATS]
    if unknown:
        raise SystemExit(f"{asked.harness} has no format {', '.join(unknown)}; it has {', '.join(harness.FORMATS)}")
    rows = [int(m) for m in asked.m.split(",")]
    wanted = points(harness, formats, shapes_of(harness, asked.shapes), rows, asked.moe)
    if asked.list:
        for p in wanted:
            print(p)
        print(f"{len(wanted)} points")
        return 0
    return measure(harness, asked, wanted)


def measure(harness: Any, asked: argparse.Namespace, wanted: list[Point]) -> int:
    from core_contender import Core

    from humming_convert.gemm.cache import KernelCache
    from humming_convert.gemm.device import open_device

    begin, torch = time.time(), harness.torch

    def told(text: str) -> None:
        print(f"[{time.time() - begin:6.1f}] {text}", flush=True)

    torch.cuda.set_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    core = Core(open_device(KernelCache()), harness, asked.jobs)
    contenders: list[Any] = [harness.CublasBf16(), harness.ScaledMmFp8()]
    library, absent = library_of(harness)
    pair = [core, *([library] if library else [])]
    contenders += pair if asked.order == "core-first" else pair[::-1]
    run = Run(harness, contenders, harness.ReadFloor(), wanted, begin + asked.seconds)
    told(f"{core.device.name}, torch {torch.__version__}, CUDA {torch.version.cuda}; {len(wanted)} points{absent and '; ' + absent}")
    layers = {id(x): x for x in (run.layer(p) for p in wanted)}.values()
    told(f"{len(layers)} layers made")
    core.pack(layers)
    told("packed")
    mine = [p for p in wanted if p.format in core.formats()]
    told(f"core: {core.plan((run.layer(p), run.moe(p), p.m) for p in mine)} kernels ready")
    if library:
        library.plan([(run.layer(p), run.moe(p), p.m) for p in mine])
        told("humming-kernels: kernels ready")
        for layer in layers:
            if id(layer) in core.ready:
                told(compared(core, library, layer))
    left = run.measure_all(told)
    document = {
        "format": "gemm-beside",
        "format_version": 1,
        "device": core.device.name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "library": library_version() if library else None,
        "order": asked.order,
        "same_bytes": {f"{x.fmt.name} {x.n}x{x.k} {x.experts}": core.ready[id(x)].equal for x in layers if id(x) in core.ready},
        "left": left,
        "results": run.results,
    }
    asked.out.write_text(json.dumps(document, indent=0, default=str))
    from beside_table import report

    print("\n".join(report([document])))
    told(f"{left} points left out -> {asked.out}" if left else f"done -> {asked.out}")
    wrong = [r for r in run.results if not r.get("ok", False) and r["contender"] == core.name]
    return 1 if wrong else 0


def compared(core: Any, library: Any, layer: Any) -> str:
    """Whether the library's packed tensors are the core's, in words."""
    name = f"{layer.fmt.name} {layer.n}x{layer.k} {layer.experts or ''}"
    try:
        theirs = library.transform(layer)[1]
    except FAILURES as failure:
        return f"{name}: the library does not make it: {type(failure).__name__}: {str(failure)[:200]}"
    other = [role for role, same in core.compare(layer, theirs).items() if not same]
    return f"{name}: OTHER BYTES: {other}" if other else f"{name}: the same bytes"


def library_of(harness: Any) -> tuple[Any, str]:
    """The harness's contender for humming-kernels, or why there is none."""
    try:
        import humming  # noqa: F401
    except ImportError as error:
        return None, f"humming-kernels is not measured: {error}"
    return harness.Humming(), ""


def library_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("humming-kernels")
    except PackageNotFoundError:
        return "unknown"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("harness", type=Path)
    parser.add_argument("--formats", default="")
    parser.add_argument("--m", default=",".join(map(str, ROWS)))
    parser.add_argument("--shapes", default="8192x8192", help="NxK,..., all, or none")
    parser.add_argument("--moe", action="store_true")
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0])
    parser.add_argument("--seconds", type=float, default=1e9, help="no new point after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("gemm_beside.json"))
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
