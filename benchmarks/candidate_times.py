"""Every candidate tuning of every family that takes a layer, timed by a benchmark harness: what the heuristics of gemm/*.py are made from.

    python benchmarks/candidate_times.py HARNESS.py [--points dense,shapes,experts] [--seconds S] [--jobs J] [--out FILE.json]

HARNESS.py: as for gemm_beside.py. One line a point, the quickest first; `*` is what the heuristics choose. A result that is not that of the first
candidate within rounding is OFF and no time counts for it; one that does not compile is named and left out. It needs torch, CuPy and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from gemm_beside import FAILURES, Point, Run, import_harness  # noqa: E402

from humming_convert.gemm.tuning import Tuning  # noqa: E402

FEW = (4, 16, 32, 64, 128, 256)
DENSE = (
    "w4a16_g128",
    "w4a16_g128_zp",
    "mxfp4_a16",
    "nvfp4_a16",
    "w8a16_g128",
    "w4a8_fp8_g128",
    "mxfp4_a8_token",
    "fp8_channel_a8",
    "int8_w8a8",
)
SCALED = ("w4a8_fp8_g128", "fp8_block_a8")  # whose sums are scaled on the way
OTHER = (4096, 14336)
EXPERTS = ("mxfp4_a16", "mxfp4_a8_token", "mxfp4_a8_g128")
TARGET_MS, REPLAYS = 1.5, 7  # of a measurement
ROUNDING = 0.2  # of the mean magnitude of a result: two orders of sums in 16 bits


@dataclass(frozen=True)
class Timed:
    """us: None where the result is off, or where it failed; `said` is why.  chosen: by the heuristics."""

    us: float | None
    family: str
    tuning: Tuning
    chosen: bool
    said: str = ""

    @property
    def line(self) -> str:
        t = self.tuning
        shape = f"{t.tile_m}x{t.tile_k} {t.threads}t {t.parts}p{'j' if t.joined else ''}{'g' if t.goes_on else ''} {t.blocks}b {t.stages}s {t.cluster}c"
        what = f"{self.family.split('_')[0]} {shape}{'*' if self.chosen else ''}"
        return f"{self.us:.1f} {what}" if self.us is not None else f"{self.said} {what}"


def wanted(harness: Any, kinds: Iterable[str]) -> list[Point]:
    """Few rows first: after many a GPU runs for a while at a lower clock."""
    n, k = harness.MAIN
    _, _, expert_n, expert_k = harness.MOE_SHAPE
    out: list[Point] = []
    if "dense" in kinds:
        out += [Point(f, n, k, m) for f in DENSE for m in FEW]
        out += [Point(f, n, k, m) for f in SCALED for m in (256, 1024, 4096)]
    if "shapes" in kinds:
        out += [Point(f, *OTHER, m) for f in ("w4a16_g128", "w4a8_fp8_g128", "fp8_channel_a8") for m in (4, 16, 64, 256)]
    if "experts" in kinds:
        out += [Point(f, expert_n, expert_k, m, kind) for f in EXPERTS for kind in ("gateup", "grouped") for m in harness.M_FEW]
    return sorted(dict.fromkeys(out), key=lambda p: p.m)


def candidates(ready: Any, rows: int, task: str, sm: int) -> list[Any]:
    """What multiplies the same operands, the heuristics' choice first. With few rows of experts also parts of K, which the heuristics do not divide."""
    from humming_convert.gemm.families import FAMILIES, PLAIN, Fixed, at_rows
    from humming_convert.gemm.parts import none_empty

    layer, kernels = ready.layer, ready.choice.kernels
    fitted = replace(kernels.fitted(layer, ready.compute), task=task)
    first = at_rows(kernels, rows, task)
    out = [Fixed(first, first.tuning(layer, fitted, rows))]
    for family in FAMILIES:
        if (
            family is PLAIN
            or family.why_not(layer, ready.compute, sm) is not None
            or family.fitted(layer, ready.compute).operand != fitted.operand
        ):
            continue
        tunings = family.candidates(layer, fitted, rows)
        divided = [t for t in tunings if layer.experts and rows <= 2 and t.tile_m <= 16 and not t.goes_on]
        more = [replace(t, parts=none_empty(-(-layer.shape_k // t.tile_k), p)) for t in divided for p in (2, 4)]
        out += [Fixed(family, t) for t in (*tunings, *more)]
    return list(dict.fromkeys(out))


@dataclass(frozen=True)
class Offered:
    """What is measured at a point. found: candidates, by what compiles them.  chosen: the heuristics'."""

    point: Point
    found: dict[Any, tuple[Any, str]]
    chosen: Any


def compiled(cache: Any, every: list[Offered], jobs: int, told: Callable[[str], None]) -> tuple[list[Offered], list[str]]:
    """Without the candidates that do not compile; those, as they were told."""
    from humming_convert.gemm.cache import build_each
    from humming_convert.gemm.nvrtc import CompileError

    wanted = list(dict.fromkeys(one for offered in every for one in offered.found.values()))
    errors = {one: x for one, x in zip(wanted, build_each(cache, wanted, jobs), strict=True) if isinstance(x, CompileError)}
    left_out = [
        f"LEFT OUT {o.point} {fixed.NAME} {fixed.chosen}{' (the heuristics chose it)' if fixed == o.chosen else ''}: {said(errors[one])}"
        for o in every
        for fixed, one in o.found.items()
        if one in errors
    ]
    for line in left_out:
        told(line)
    told(f"{len(wanted)} kernels, {len(errors)} do not compile")
    return [replace(o, found={fixed: one for fixed, one in o.found.items() if one not in errors}) for o in every], left_out


def said(error: Any) -> str:
    """A CompileError on one line."""
    first = next((line for line in error.log.splitlines() if "error" in line), "")
    return f"{str(error).splitlines()[0]} {first}".strip()


def measure(run: Run, core: Any, offered: Offered) -> list[Timed]:
    """Of one point, in the order of time."""
    from humming_convert.gemm.families import Choice

    p = offered.point
    h, layer, moe = run.harness, run.layer(p), run.moe(p)
    ready, act, first, out = core.ready[id(layer)], h.Activation(layer.fmt, moe.input_rows if moe else p.m, p.k), None, []
    kept = ready.choice
    for fixed in offered.found:
        ready.choice, failed, us = Choice(fixed, (), fixed), "", None
        try:
            calls, y = core.build(layer, act, p.m, moe)
            y.fill_(float("nan"))
            calls[0]()
            h.torch.cuda.synchronize()
            got = y.float()
            first = got if first is None else first
            off = float((got - first).abs().max() / first.abs().mean())
            if off < ROUNDING:  # NaN is not
                us = h.time_calls(calls, target_ms=TARGET_MS, replays=REPLAYS)[0]
            else:
                failed = f"OFF by {off:.2g}"
            del calls
        except FAILURES as failure:
            failed = f"{type(failure).__name__}: {str(failure)[:100]}"
        finally:
            ready.choice = kept
        out.append(Timed(us, fixed.NAME, fixed.chosen, fixed == offered.chosen, failed))
    h.torch.cuda.empty_cache()
    return sorted(out, key=lambda t: t.us or 1e9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("harness", type=Path)
    parser.add_argument("--points", default="dense,shapes,experts")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new point after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("candidate_times.json"))
    asked = parser.parse_args()
    return measure_all(import_harness(asked.harness), asked)


def measure_all(harness: Any, asked: argparse.Namespace) -> int:
    from core_contender import Core, task_of

    from humming_convert.gemm.cache import KernelCache
    from humming_convert.gemm.device import open_device
    from humming_convert.gemm.multiplier import source_of
    from humming_convert.gemm.nvrtc import architecture

    begin = time.time()
    told: Callable[[str], None] = lambda text: print(f"[{time.time() - begin:6.1f}] {text}", flush=True)  # noqa: E731
    core = Core(open_device(KernelCache()), harness, asked.jobs)
    points = wanted(harness, asked.points.split(","))
    run = Run(harness, [core], None, points, begin + asked.seconds)
    core.pack({id(x): x for x in map(run.layer, points)}.values())
    told(f"{core.device.name}: {len(points)} points packed")
    every: list[Offered] = []
    for p in points:
        layer, moe = run.layer(p), run.moe(p)
        ready, task = core.ready[id(layer)], task_of(moe, None)
        rows = task.each(moe.rows, layer.experts) if moe else p.m
        found = candidates(ready, rows, task.name, core.device.sm)
        sources = {fixed: source_of(fixed, ready.layer, ready.compute, rows, task.name) for fixed in found}
        every.append(Offered(p, {fixed: (source, architecture(core.device.sm)) for fixed, source in sources.items()}, found[0]))
    every, left_out = compiled(core.device.cache, every, asked.jobs, told)
    results = []
    for offered in every:
        if time.time() > run.until:
            break
        p, times = offered.point, measure(run, core, offered)
        results.append({"point": asdict(p), "times": [asdict(t) for t in times]})
        told(f"{p.format} {p.n}x{p.k} M{p.m} {p.moe or ''}: " + "; ".join(t.line for t in times if t.chosen or t in times[:4] or t.said))
    document = {"device": core.device.name, "left": len(every) - len(results), "left_out": left_out, "results": results}
    asked.out.write_text(json.dumps(document, indent=0))
    told(f"{len(every) - len(results)} points left out -> {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
