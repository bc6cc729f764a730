"""A packed layer checked on a GPU against float64: random products with outliers, and every single weight by unit vectors.

In: a Multiplier and the weights that the layer should stand for.  Out: a LayerCheck; what is wrong is named with its worst element.
Random products hide the low bits of scales, so that unit vectors decide: each weight, times a number that is exact, has to be its float64
value rounded once.  Tolerances: TOLERANCES, printed in docs/gemm.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm import quantize_any
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.device import Device
from humming_convert.gemm.families import PLAIN, Family, Kernels, at_rows
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.multiplier import Multiplier, source_of
from humming_convert.gemm.product_f64 import product
from humming_convert.gemm.source import KernelSource, kernel_source

F64 = NDArray[np.float64]
ROWS = (1, 33, 64, 512)
PROBE_ROWS = 2048  # unit vectors a launch: bounds the results to PROBE_ROWS * n * 4 bytes
OUTLIERS, OUTLIER_SIZE = 0.01, 30.0
HALF_STEP = {"f16": 2.0**-11, "bf16": 2.0**-8}  # half a unit in the last place, of the value
DTYPES: dict[str, Any] = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
DTYPES |= {"e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "s8": np.dtype(np.int8)}

TOLERANCES: dict[str, tuple[float, str]] = {
    "sum": (2.0**-19, "float32 sums on tensor cores: of the sum of magnitudes, |x| * |w| and |bias|, for each element"),
    "sum-e4m3": (
        2.0**-8,
        "the same by E4M3 instructions, whose sums keep fewer bits (seen on sm_90); they are added up in float32 every 128 columns",
    ),
    "sum-weights": (
        2.0**-8,
        "the same where weights are rounded to 16 bits before they are multiplied: half a step of bfloat16 for each (kernels that serve, not the referee)",
    ),
    "sum-sums": (2.0**-7, "the same by E4M3 instructions over all of K (kernels that serve, not the referee)"),
    "weight": (0.0, "a weight by a unit vector: its float64 value rounded once to float32, no other bit"),
    "weight-rounded": (0.0, "the same where weights are rounded before: to 16 bits, and no other bit"),
    "weight-zero-point": (
        2.0**-23,
        "the same beside floating zero points or several scale factors that are not exact: one unit in the last place",
    ),
    "bias": (0.0, "a bias by x = 0"),
    "activation": (0.0, "quantized activations and their scales: the numbers of the same steps in numpy"),
}


def sum_tolerance(family: Family, layer: Layer, compute: Compute) -> float:
    """Of a family's products, as a share of the sum of magnitudes. compute: fitted."""
    rounding, exact = family.rounding(layer, compute), "sum-e4m3" if compute.operand == "e4m3" else "sum"
    return TOLERANCES[exact][0] + (0.0 if rounding == "none" else TOLERANCES[f"sum-{rounding}"][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What differs. count: elements beyond the tolerance; the rest: the worst of them. row: of the activations; column: of W's rows (n)."""

    what: str
    count: int
    expert: int
    row: int
    column: int
    k: int | None
    group: int | None
    got: float
    want: float

    def __str__(self) -> str:
        at = f"n = {self.column}" + (f", k = {self.k}, group {self.group}" if self.k is not None else f", row {self.row}")
        return f"{self.what}: {self.count} differ; worst at expert {self.expert}, {at}: {self.got!r}, not {self.want!r}"


@dataclass(slots=True)
class LayerCheck:
    """products: rows -> largest error over the sum of magnitudes.  weights: how many were compared one by one."""

    products: dict[int, float] = field(default_factory=dict)
    weights: int = 0
    wrong: list[Wrong] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "weights": self.weights,
            "max_error": max(self.products.values(), default=0.0),
            "rows": sorted(self.products),
            "wrong": [str(w) for w in self.wrong],
        }


def half_bits(x: NDArray[Any], half: str) -> NDArray[np.uint16]:
    """Numbers as 16-bit floats, as bits."""
    return np.asarray(x, np.float32).astype(DTYPES[half]).view(np.uint16)


def as_float(bits: NDArray[Any], half: str) -> NDArray[np.float32]:
    return np.asarray(bits.view(DTYPES[half]).astype(np.float32))


def operand_bits(x: NDArray[Any], operand: str) -> NDArray[Any]:
    """Numbers that an operand holds, as its bits. INT4: two a byte, the first in the low bits."""
    if operand == "s4":
        codes = np.asarray(x, np.int8).view(np.uint8) & 15
        return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4, np.uint8)
    numbers = np.asarray(x, np.float32).astype(DTYPES[operand])
    return np.asarray(numbers.view(np.uint8 if numbers.itemsize == 1 else np.uint16))


def as_numbers(operands: NDArray[Any], operand: str) -> NDArray[np.float32]:
    """What the operands of `quantize_any` stand for."""
    if operand == "s4":
        codes = np.stack([operands & 15, operands >> 4], axis=-1).reshape(*operands.shape[:-1], -1)
        return ((codes ^ 8).astype(np.float32) - 8).astype(np.float32)
    return np.asarray(operands.view(DTYPES[operand]).astype(np.float32))


def random_rows(m: int, k: int, half: str, rng: np.random.Generator) -> NDArray[np.uint16]:
    x = rng.standard_normal((m, k))
    return half_bits(np.where(rng.random((m, k)) < OUTLIERS, x * OUTLIER_SIZE, x), half)


def at_row(i: int, j: int, expert: int = 0) -> dict[str, Any]:
    """Where a result is that belongs to no single weight."""
    return {"expert": expert, "row": i, "column": j, "k": None, "group": None}


def worst(what: str, got: F64, want: F64, allowed: F64, where: Callable[[int, int], dict[str, Any]]) -> Wrong | None:
    """The element furthest beyond its tolerance. Not-a-number agrees with not-a-number, infinity with the same infinity."""
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(got - want)
        bad = ~((off <= allowed) | (got == want) | (np.isnan(got) & np.isnan(want)))
        if not bad.any():
            return None
        excess = np.where(bad, np.nan_to_num(off, nan=np.inf) - allowed, -1.0)
    i, j = (int(v) for v in np.unravel_index(int(np.argmax(excess)), bad.shape))
    return Wrong(what=what, count=int(bad.sum()), got=float(got[i, j]), want=float(want[i, j]), **where(i, j))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Rows multiplied by the device. x: what the activations stand for.  want, size: float64 products and sums of magnitudes."""

    x: F64
    expert_of_row: NDArray[np.int64]
    y: F64
    want: F64
    size: F64


@dataclass(frozen=True, slots=True)
class Probes:
    """Unit vectors on the device, for every expert. rows: (first column, numbers, scales, what the one number of each row stands for)."""

    multiplier: Multiplier
    rows: list[tuple[int, Any, Any, F64]]


@dataclass(slots=True)
class Checker:
    """weights, bias: expert -> float64 [n, k], [n], of what the layer should be. `given`: a static input scale."""

    device: Device
    layer: Layer
    compute: Compute
    packed: dict[str, NDArray[Any]]
    weights: Callable[[int], F64]
    bias: Callable[[int], F64]
    given: float = 1.0
    seed: int = 0
    family: Kernels = PLAIN

    @property
    def experts(self) -> int:
        return max(1, self.layer.experts)

    def sources(self, rows: tuple[int, ...] = ROWS) -> list[KernelSource]:
        """Every kernel that a check launches, to be compiled beforehand and in parallel."""
        layer, compute = self.layer, self.compute
        probe = replace(layer, has_bias=False)
        out = [source_of(self.family, layer, compute, -(-m // self.experts)) for m in (*rows, self.experts)]
        probes = (min(PROBE_ROWS, layer.k), layer.k % PROBE_ROWS or 1)
        out += [source_of(self.family, probe, compute, -(-m // self.experts)) for m in probes]
        if compute.quantizes:
            out += [quantize_any.source(x, self.family.fitted(layer, compute)) for x in (layer, probe)]
        return list(dict.fromkeys([*out, kernel_source("product_f64")]))

    def check(self, rows: tuple[int, ...] = ROWS, experts: tuple[int, ...] | None = None) -> LayerCheck:
        """experts: those whose weights are compared one by one; all if None. The weights of an expert are made once."""
        found = LayerCheck()
        probed = set(range(self.experts) if experts is None else experts)
        runs, probes = self._runs(found, rows), self._probes(found)
        for e in range(self.experts):
            if e not in probed and not any((run.expert_of_row == e).any() for run in runs):
                continue
            w = self.weights(e)
            self._want(runs, e, w)
            if e in probed:
                self._weights_of(found, e, w, probes)
        for run in runs:
            self._compare(found, run)
        self.every_bias(found)
        return found

    # --- Random products

    def _runs(self, found: LayerCheck, rows: tuple[int, ...]) -> list[Run]:
        """The products as the device makes them; what they should be is filled in expert by expert."""
        layer, device = self.layer, self.device
        multiplier = Multiplier.of(device, layer, self.compute, self.packed, self._given(self.given), self.family)
        rng = np.random.default_rng(self.seed)
        out = []
        for m in rows:
            bits = random_rows(m, layer.k, layer.half, rng)
            expert_of_row = rng.integers(0, self.experts, m)
            q, scale = multiplier.quantize(device.put(bits))
            x = self._meant(found, bits, q, scale)
            y = device.get(multiplier.multiply(q, scale, expert_of_row if layer.experts else None)).astype(np.float64)
            out.append(Run(x=x, expert_of_row=expert_of_row, y=y, want=np.full(y.shape, np.inf), size=np.zeros(y.shape)))
        return out

    def _want(self, runs: list[Run], e: int, w: F64) -> None:
        on_device, bias = self.device.put(w), self.bias(e)
        for run in runs:
            mine = run.expert_of_row == e
            if mine.any():
                want, size = product(self.device, run.x[mine], on_device)
                run.want[mine], run.size[mine] = want + bias, size + np.abs(bias)

    def _compare(self, found: LayerCheck, run: Run) -> None:
        m = run.y.shape[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(run.size > 0, np.abs(run.y - run.want) / run.size, 0)
        found.products[m] = float(np.nanmax(relative, initial=0.0))
        allowed = self.sum_tolerance(m) * run.size
        wrong = worst(f"product of {m} rows", run.y, run.want, allowed, lambda i, j: at_row(i, j, int(run.expert_of_row[i])))
        if wrong:
            found.wrong.append(wrong)

    def _family(self, rows: int) -> Family:
        """That multiplies so many rows of all experts."""
        return at_rows(self.family, -(-rows // self.experts), self.compute.task)

    def sum_tolerance(self, rows: int) -> float:
        return sum_tolerance(self._family(rows), self.layer, self.family.fitted(self.layer, self.compute))

    def _given(self, value: float) -> float | None:
        return value if self.compute.wants_given_scale else None

    def _meant(self, found: LayerCheck, bits: NDArray[np.uint16], q: Any, scale: Any, given: float | None = None) -> F64:
        """What the activations stand for, by numpy; a finding if the device made others."""
        half = self.layer.half
        numbers, scales = quantize_any.in_numpy(as_float(bits, half), self.compute, self.given if given is None else given)
        if self.compute.quantizes:
            for name, have, want in (
                ("activation", as_numbers(self.device.get(q), self.family.fitted(self.layer, self.compute).operand), numbers),
                ("activation scale", self.device.get(scale), scales),
            ):
                wrong = worst(
                    name,
                    have.astype(np.float64),
                    want.astype(np.float64),
                    np.zeros(want.shape),
                    at_row,
                )
                if wrong:
                    found.wrong.append(wrong)
        return quantize_any.meant(numbers, scales, self.compute)

    # --- Every weight

    @property
    def exact(self) -> bool:
        """Every factor but the last is exact in float32, so that the result is rounded once."""
        whole = self.layer.zero != "floating" and self.compute.act_second != "token"
        return whole and not (self.layer.scale_type == "f32" and self.layer.scale_2 != "none")

    def every_weight(self, found: LayerCheck, experts: range | tuple[int, ...]) -> None:
        """Unit vectors, times the largest number of the activation's type, which then has the scale 1. Without bias, which would round."""
        probes = self._probes(found)
        for e in experts:
            self._weights_of(found, e, self.weights(e), probes)

    def _weights_of(self, found: LayerCheck, e: int, w: F64, probes: Probes) -> None:
        layer = self.layer
        group = layer.group_k or layer.shape_k
        for first, q, scale, lead in probes.rows:
            expert_of_row = np.full(lead.size, e) if layer.experts else None
            y = self.device.get(probes.multiplier.multiply(q, scale, expert_of_row)).astype(np.float64)
            found.weights += y.size
            want = w[:, first : first + lead.size].T * lead[:, None]
            rounded_before = self._family(lead.size).rounding(layer, self.compute) == "weights"
            tolerance = TOLERANCES["weight-rounded" if rounded_before else "weight" if self.exact else "weight-zero-point"][0]
            with np.errstate(over="ignore"):
                if rounded_before:
                    want = want.astype(DTYPES[layer.half]).astype(np.float64)  # one number a row, and that is 1
                rounded = want.astype(np.float32).astype(np.float64)

            def where(i: int, j: int, first: int = first) -> dict[str, Any]:
                return {"expert": e, "row": i, "column": j, "k": first + i, "group": (first + i) // group}

            wrong = worst("weight", y, rounded, tolerance * np.abs(want), where)
            if wrong:
                found.wrong.append(wrong)

    def _probes(self, found: LayerCheck) -> Probes:
        layer = replace(self.layer, has_bias=False)
        probes = Probes(Multiplier.of(self.device, layer, self.compute, self.packed, self._given(1.0), self.family), [])
        for first, bits in self._units():
            q, scale = probes.multiplier.quantize(self.device.put(bits))
            x = self._meant(found, bits, q, scale, given=1.0)
            m = np.arange(x.shape[0])
            probes.rows.append((first, q, scale, np.ascontiguousarray(x[m, first + m])))
        return probes

    def _units(self) -> Iterator[tuple[int, NDArray[np.uint16]]]:
        top = self.compute.act_top if self.compute.quantizes else 1.0
        for first in range(0, self.layer.k, PROBE_ROWS):
            m = min(PROBE_ROWS, self.layer.k - first)
            x = np.zeros((m, self.layer.k), np.float32)
            x[np.arange(m), first + np.arange(m)] = top
            yield first, half_bits(x, self.layer.half)

    def every_bias(self, found: LayerCheck) -> None:
        if not self.layer.has_bias:
            return
        multiplier = Multiplier.of(self.device, self.layer, self.compute, self.packed, self._given(1.0), self.family)
        q, scale = multiplier.quantize(self.device.put(np.zeros((self.experts, self.layer.k), np.uint16)))
        y = self.device.get(multiplier.multiply(q, scale, np.arange(self.experts) if self.layer.experts else None)).astype(np.float64)
        want = np.stack([self.bias(e) for e in range(self.experts)])
        wrong = worst("bias", y, want, np.zeros(want.shape), lambda i, j: at_row(i, j, i))
        if wrong:
            found.wrong.append(wrong)
