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
from typing import Any

import numpy as np

from humming_convert import api
from humming_convert.demo.decode import Decoded, Folder, decode
from humming_convert.demo.models import Sample
from humming_convert.demo.pack import Real
from humming_convert.demo.samples import all_samples
from humming_convert.findings import Refused

HEAD = ("sample", "family", "activation", "layers", "bytes in", "bytes out", "lossy steps", "proof", "float64", "seconds")

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
    """One conversion. `float64`: what the comparison with the numbers that went in said. `ok`: it is as it must be."""

    sample: str
    family: str
    activation: str
    layers: int
    bytes_in: int
    bytes_out: int
    lossy: tuple[str, ...]
    proof: str
    float64: str
    seconds: float
    ok: bool

    def cells(self) -> tuple[str, ...]:
        if self.proof == "refused":
            sizes = ("-", f"{self.bytes_in:,}", "-", "-")
        else:
            sizes = (str(self.layers), f"{self.bytes_in:,}", f"{self.bytes_out:,}", ", ".join(self.lossy) or "none")
        return (self.sample, self.family, self.activation, *sizes, self.proof, self.float64, f"{self.seconds:.2f}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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

    def row(*, proof: str, float64: str, ok: bool, layers: int = 0, bytes_out: int = 0, lossy: tuple[str, ...] = ()) -> Row:
        return Row(
            sample=sample.name,
            family=sample.family,
            activation=activation,
            layers=layers,
            bytes_in=sample.nbytes,
            bytes_out=bytes_out,
            lossy=lossy,
            proof=proof,
            float64=float64,
            seconds=clock() - start,
            ok=ok,
        )

    try:
        plan = api.plan(source, **options)
    except Refused as refused:
        said = [f for f in refused.findings if f.severity == "error"]
        if legal:
            return row(proof="refused", float64=f"must convert: {said[0]}", ok=False)
        names_what_is_legal = all("bf16" in str(f) for f in said)
        return row(
            proof="refused",
            float64="as it must be" if names_what_is_legal else f"names no legal activation: {said[0]}",
            ok=names_what_is_legal,
        )
    if not legal:
        return row(proof="planned", float64="must be refused", ok=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    result = api.convert(plan, out=out)
    verification = api.verify(out, source=source)
    problem, largest = compare(sample, out)
    proof = "failed" if verification.failed else result.proof
    return row(
        proof=proof,
        float64=problem or ("equal" if largest == 0 else f"within {largest:.1e}"),
        ok=not problem and not verification.failed,
        layers=plan.totals["layers"],
        bytes_out=plan.totals["bytes_out"],
        lossy=tuple(result.lossy_steps),
    )


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
        return f"{part}[{n}, {k}]: {got.weight[n, k]!r}, not {want[n, k]!r}; {int(bad.sum())} differ", 0.0
    if not _same_bias(sample.biases.get(part), got.bias):
        return f"{part}: bias differs", 0.0
    return "", float(error.max() / np.abs(want).max())


def _same_bias(want: Real | None, got: Real | None) -> bool:
    """A layer whose parts have no bias may still carry zeros, where a part beside it has one (architecture.md 9.4)."""
    if want is None or got is None:
        return want is None and (got is None or not got.any())
    return np.array_equal(want, got)
