"""Runs the samples: each one in the standard form, for sm90 with 16-bit and with 8-bit activations; checks every number against float64.

In: a folder to keep, or none.  Out: rows of the table that `humming-convert demo` prints.
The only steps allowed to change a number are the named ones, by no more than they say they did (architecture.md 9.5).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from humming_convert import api
from humming_convert.demo.decode import Decoded, Folder, decode
from humming_convert.demo.models import Sample
from humming_convert.demo.pack import Real
from humming_convert.demo.samples import all_samples
from humming_convert.findings import Refused

if TYPE_CHECKING:
    from humming_convert.plan.types import Plan

COLUMNS = (
    ("family", -18),
    ("variant", -14),
    ("activation", -10),
    ("layers", 6),
    ("in", 7),
    ("out", 7),
    ("lossy steps", -13),
    ("proof", -18),
    ("vs float64", -10),
    ("seconds", 7),
)
"""Title and width; a negative width sets to the left."""


def line(cells: Sequence[str]) -> str:
    """One line of the table."""
    return "  ".join(c.ljust(-w) if w < 0 else c.rjust(w) for c, (_, w) in zip(cells, COLUMNS, strict=True)).rstrip()


def head() -> str:
    """The first two lines of the table."""
    return line([title for title, _ in COLUMNS]) + "\n" + line(["-" * abs(w) for _, w in COLUMNS])


STAGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("standard", {"standard": True}),
    ("bf16", {"target": "sm90", "act": "bf16"}),
    ("fp8", {"target": "sm90", "act": "fp8"}),
)
"""(word in the table, options of `api.plan`)."""

ROUNDING = 2.0**-7
"""No cast of a scale to 16 bits may cost more (two casts to bfloat16, 2^-9 each, and room)."""
E8M0_RANGE = 11
"""Powers of two between the largest and the smallest scale of a row with E4M3 activations (layouts.md 2, S2e)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One conversion. `largest_error`: against what went in, relative to the largest weight of a module, None if nothing was compared.

    `seconds`: plan, convert and verify.  `problem`: why it is not as it must be, "" if it is.  A request that must be refused and was is as it must be.
    """

    sample: str
    family: str
    activation: str
    layers: int
    bytes_in: int
    bytes_out: int
    lossy: tuple[str, ...]
    proof: str
    largest_error: float | None
    seconds: float
    problem: str

    @property
    def ok(self) -> bool:
        return not self.problem

    def cells(self) -> tuple[str, ...]:
        error = "-" if self.largest_error is None else "equal" if self.largest_error == 0 else f"{self.largest_error:.1e}"
        return (
            self.family,
            self.sample.partition("-")[2],
            self.activation,
            str(self.layers or "-"),
            f"{self.bytes_in / 1000:.0f} kB",
            f"{self.bytes_out / 1000:.0f} kB" if self.bytes_out else "-",
            ", ".join(self.lossy) or ("none" if self.layers else "-"),
            self.proof,
            "FAILED" if self.problem else error,
            f"{self.seconds:.2f}",
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}


def run_demo(
    out: Path | None = None, *, samples: Sequence[Sample] | None = None, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Row]:
    """Writes, converts, verifies and compares; a row as each is done.

    out: keeps `samples/` and `converted/` there; it must be new or empty. None: a temporary folder that is removed.
    """
    with _place(out) as place:
        for sample in all_samples() if samples is None else samples:
            source = sample.write(place / "samples")
            for activation, options in STAGES:
                yield _convert(sample, source, place / "converted" / f"{sample.name}-{activation}", activation, options, clock)


@contextmanager
def _place(out: Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(prefix="humming-convert-demo-") as folder:
            yield Path(folder)
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise api.UsageError(f"--out {out}: the folder must be new or empty")
    out.mkdir(parents=True, exist_ok=True)
    yield out


def _convert(sample: Sample, source: Path, out: Path, activation: str, options: Mapping[str, Any], clock: Callable[[], float]) -> Row:
    start = clock()
    legal = sample.fp8 or activation != "fp8"

    def row(
        *, proof: str, seconds: float, problem: str = "", error: float | None = None, plan: Plan | None = None, lossy: tuple[str, ...] = ()
    ) -> Row:
        return Row(
            sample=sample.name,
            family=sample.family,
            activation=activation,
            layers=len(plan.layers) if plan else 0,
            bytes_in=sample.nbytes,
            bytes_out=plan.totals["bytes_out"] if plan else 0,
            lossy=lossy,
            proof=proof,
            largest_error=error,
            seconds=seconds,
            problem=problem,
        )

    try:
        plan = api.plan(source, **options)
    except Refused as refused:
        said = [str(f) for f in refused.findings if f.severity == "error"]
        if legal:
            return row(proof="refused", seconds=clock() - start, problem=f"must convert, but: {said[0]}")
        silent = [text for text in said if "bf16" not in text]
        return row(proof="refused, as due", seconds=clock() - start, problem=f"names no legal activation: {silent[0]}" if silent else "")
    if not legal:
        return row(proof="not refused", seconds=clock() - start, problem="layouts.md 10 has no such kernel", plan=plan)
    out.parent.mkdir(parents=True, exist_ok=True)
    result = api.convert(plan, out=out)
    verification = api.verify(out, source=source)
    seconds = clock() - start
    problem, error = compare(sample, out)
    if verification.failed:
        problem = f"verify: {next(str(f) for f in verification.findings if f.severity == 'error')}"
    return row(proof=result.proof, seconds=seconds, problem=problem, error=error, plan=plan, lossy=tuple(result.lossy_steps))


def compare(sample: Sample, folder: Path) -> tuple[str, float]:
    """(first difference that no lossy step explains or "", the largest relative error) of an output folder against what went in."""
    steps = {layer["name"]: layer["lossy"] for layer in Folder(folder).manifest["layers"]}
    waiting, largest = set(sample.meaning), 0.0
    for part, got in decode(folder):
        if part not in waiting:
            return f"{part}: twice, or never in the sample", largest
        waiting.remove(part)
        problem, error = _module(sample, part, got, steps[got.layer])
        if problem:
            return problem, largest
        largest = max(largest, error)
    return (f"{min(waiting)}: missing" if waiting else ""), largest


def _module(sample: Sample, part: str, got: Decoded, lossy: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    want = sample.meaning[part]
    if got.weight.shape != want.shape:
        return f"{part}: shape {got.weight.shape}, not {want.shape}", 0.0
    casts = [s["max_rel"] for s in lossy if s["step"] not in ("e8m0-range", "bias-cast")]
    relative = float(np.prod([1 + r for r in casts])) - 1
    if relative > ROUNDING:
        return f"{part}: casts of {relative:.1e} are no rounding", 0.0
    # half a step of E2M1 where it is widest, in units of the smallest scale that is left
    absolute = 0.5 * 2.0**-E8M0_RANGE * got.largest if any(s["step"] == "e8m0-range" for s in lossy) else 0.0
    error = np.abs(got.weight - want)
    allowed = np.abs(want) * relative * (1 + 1e-9) + absolute
    bad = ~(error <= allowed)
    if bad.any():
        n, k = (int(i) for i in np.argwhere(bad)[0])
        named = ", ".join(s["step"] for s in lossy) or "no lossy step"
        return f"{part}[{n}, {k}] is {got.weight[n, k]:g}, not {want[n, k]:g} ({int(bad.sum())} such, {named} in the manifest)", 0.0
    if not _same_bias(sample.biases.get(part), got.bias):
        return f"{part}: bias differs", 0.0
    return "", float(error.max() / np.abs(want).max())


def _same_bias(want: Real | None, got: Real | None) -> bool:
    """A layer whose parts have no bias may still carry zeros, where a part beside it has one (architecture.md 9.4)."""
    if want is None or got is None:
        return want is None and (got is None or not got.any())
    return np.array_equal(want, got)
