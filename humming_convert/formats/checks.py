"""Rules about the numbers in stored tensors, looked at before anything is written.

In: `Check`s of the layers and a way to read tensors.  Out: findings, one a tensor and rule, with the count.
Tensors are gone through in blocks, so memory stays bounded. Facts: formats.md 9.2, 12 rows 27, 28, 32, 41 to 48.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.findings import Finding, Findings, Rule, Severity
from humming_convert.standard.layer import Check
from humming_convert.standard.numbers import values

Array = NDArray[Any]

RULES = (
    Rule(700, "scale-nonfinite", "every scale and bias is finite"),
    Rule(701, "scale-not-positive", "scales of a whole matrix, and of activations, lie between 1e-30 and 1e30"),
    Rule(702, "e8m0-nan", "no E8M0 byte is 255"),
    Rule(703, "scale-signed", "no 8-bit float scale has its sign bit set"),
    Rule(704, "weight-nan", "no FP8 weight is NaN or infinite"),
    Rule(705, "scale-all-zero", "the scales of a layer are not all zero"),
    Rule(706, "weight-all-zero", "the weights of a layer are not all zero", "warning"),
    Rule(707, "code-range", "integer codes that are stored wider lie in their range"),
    Rule(708, "high-bits", "the unused high bits of padded words are zero"),
    Rule(709, "zero-point-unsigned", "unpacked zero points are whole numbers in the signed range"),
    Rule(710, "e8m0-as-number", "FP8 block scales are factors, not the numbers of E8M0 bytes"),
    Rule(711, "scale-zero-groups", "at most one group in a hundred has the scale 0", "warning"),
    Rule(712, "padding-not-zero", "padding holds zeros only", "warning"),
    Rule(713, "pre-quant-scale", "pre_quant_scale, which no kernel applies, is absent or 1 everywhere"),
    Rule(714, "scale-huge", "no scale and no bias is beyond 1e30"),
    Rule(715, "weight-implausible", "the largest weight that the scales allow is one that a model can have", "warning"),
    Rule(716, "scale-all-negative", "the scales of a layer are not all negative", "warning"),
)

BLOCK = 1 << 18  # elements looked at in one go: what is computed of them stays in the cache
LARGEST_FACTOR = 1e30  # formats.md 12 row 32
SMALLEST_FACTOR = 1 / LARGEST_FACTOR  # some are divisors, whose reciprocal must be finite too


class Seen(Struct, frozen=True):
    """What one check found: a finding's severity, code, message and count."""

    severity: Severity
    code: str
    message: str
    count: int
    advice: str


Look = Callable[[Check, Read], list[Seen]]


def blocks(x: Array) -> Iterator[Array]:
    """A tensor as flat pieces of at most BLOCK elements."""
    flat = x.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        yield flat[start : start + BLOCK]


def raw(x: Array) -> Array:
    """The bits of a block as unsigned integers of its width; a mapped tensor may be unaligned."""
    return np.ascontiguousarray(x).view(f"<u{x.dtype.itemsize}")


# exponent bits of 16- and 32-bit floats: all set means NaN or infinity
EXPONENT: dict[str, int] = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000, "F64": 0x7FF0000000000000}


# the bits of LARGEST_FACTOR without its last ones; float16 ends before it
HUGE: dict[str, int] = {"F16": 0x7BFF, "BF16": 0x7149, "F32": 0x7149F2CA, "F64": 0x46293E5939A08CEA}


def _finite(c: Check, read: Read) -> list[Seen]:
    """Neither NaN nor infinite, nor so large that every product with it is."""
    if c.view.dtype not in EXPONENT:
        return []
    unsigned = np.dtype(f"<u{c.view.numpy.itemsize}").type
    magnitude, limit, mask = unsigned(~unsigned(0)) >> unsigned(1), unsigned(HUGE[c.view.dtype]), unsigned(EXPONENT[c.view.dtype])
    largest, smallest = int(limit), int(limit | ~magnitude)
    beyond = bad = 0
    for b in blocks(read(c.view)):
        bits = raw(b)
        # the number farthest above 0 is the largest as a signed integer, the one farthest below the largest as an unsigned one
        if int(bits.view(f"<i{b.dtype.itemsize}").max()) <= largest and int(bits.max()) <= smallest:
            continue
        beyond += int(np.count_nonzero((bits & magnitude) > limit))
        bad += int(np.count_nonzero((bits & mask) == mask))
    advice = "re-export the layer; they poison every output row they touch"
    name = leaf(c.view)
    nan = Seen("error", "scale-nonfinite", f"{bad} NaN or infinite in {name}", bad, advice)
    huge = Seen("error", "scale-huge", f"{beyond - bad} values beyond {LARGEST_FACTOR:g} in {name}", beyond - bad, advice)
    return [nan] * (bad > 0) + [huge] * (beyond > bad)


# Largest weight that passes without a word. Published linear layers end far below both. FP8 files without scaling hold the scale 1,
# whatever their weights are, so that 448 says nothing; FP4 has a scale for 16 weights, which is that of the largest of them.
PLAUSIBLE = {"fp4": 256.0, "fp8": 1e4}


def _implausible(c: Check, largest: float, kind: str, why: str) -> list[Seen]:
    limit = PLAUSIBLE[kind]
    if not limit < largest <= LARGEST_FACTOR:  # beyond that, and NaN, other rules speak
        return []
    message = f"{leaf(c.view)} allows weights up to {largest:.4g}, more than {limit:g}; {why}"
    return [Seen("warning", "weight-implausible", message, 1, "compare some outputs with the source model")]


def _fp4_plausible(c: Check, read: Read) -> list[Seen]:
    """c.other: the E4M3 scales beside a global scale. params[0]: 1 for a divisor."""
    assert c.other is not None
    factor = np.asarray(read(c.view)).reshape(-1).astype(np.float64)
    most = 6 * values("float8e4m3")[0x7E]
    with np.errstate(all="ignore"):
        if (most / factor if c.params[0] else most * factor).max() <= PLAUSIBLE["fp4"]:  # whatever the scales are: nearly always
            return []
    top = raw(np.asarray(read(c.other))).reshape(factor.size, -1).max(1)
    largest = 6 * values("float8e4m3")[np.minimum(top, 0x7E)]  # NaN and signs are other rules
    with np.errstate(all="ignore"):
        found = float((largest / factor if c.params[0] else largest * factor).max())
    inverse = "divisor" if c.params[0] else "factor"
    return _implausible(c, found, "fp4", f"it is a {inverse} by its name, and may be stored the other way round")


def _fp8_plausible(c: Check, read: Read) -> list[Seen]:
    with np.errstate(invalid="ignore"):  # NaN is another rule's
        largest = max((float(np.abs(b.astype(np.float64)).max()) for b in blocks(np.asarray(read(c.view)))), default=0.0)
    return _implausible(c, 448 * largest, "fp8", "it may be the reciprocal of the scale")


FEW = 64  # numbers that are looked at before all of a tensor
SIGNED = 16  # scales from which on one sign in all of them is no chance


def _signs(c: Check, read: Read) -> list[Seen]:
    """Some quantizers choose the sign of each scale (formats.md 9.2); none turns all of them."""
    x = np.asarray(read(c.view)).reshape(-1)
    shift = 8 * x.dtype.itemsize - 1
    if x.size < SIGNED or not (raw(x[:SIGNED]) >> shift).all() or not all((raw(b) >> shift).all() for b in blocks(x)):
        return []
    message = f"all {x.size} scales of {leaf(c.view)} are negative: the whole matrix may have the wrong sign"
    return [Seen("warning", "scale-all-negative", message, x.size, "compare some outputs with the source model")]


def _positive(c: Check, read: Read) -> list[Seen]:
    values = np.asarray(read(c.view)).reshape(-1).astype(np.float64)
    bad = ~(np.isfinite(values) & (values >= SMALLEST_FACTOR) & (values <= LARGEST_FACTOR))
    count = int(bad.sum())
    if not count:
        return []
    first = values[bad][0]
    return [
        Seen(
            "error",
            "scale-not-positive",
            f"{leaf(c.view)} is {first:g}; it must lie between {SMALLEST_FACTOR:g} and {LARGEST_FACTOR:g}",
            count,
            "re-export the layer",
        )
    ]


def _e8m0(c: Check, read: Read) -> list[Seen]:
    x = read(c.view)
    if raw(x).max(initial=0) < 255:  # at once, which makes no copy: nearly always
        return []
    return [_e8m0_seen(c, sum(int(np.count_nonzero(raw(b) == 255)) for b in blocks(x)), "")]


def _e8m0_seen(c: Check, bad: int, which: str) -> Seen:
    message = f"{bad} E8M0 bytes of {leaf(c.view)} are 255, which is NaN{which}"
    advice = "re-export the layer" if which else "--e8m0-nan zero-group lets them pass where all codes of the group are zero"
    return Seen("error", "e8m0-nan", message, bad, advice)


def _e8m0_zero_group(c: Check, read: Read) -> list[Seen]:
    """255 only where every magnitude of its 32 codes is zero (D15)."""
    assert c.other is not None
    scales = raw(np.asarray(read(c.view)).reshape(-1))
    at = np.flatnonzero(scales == 255)
    if not at.size:
        return []
    codes = raw(np.asarray(read(c.other)).reshape(scales.size, -1)[at])
    bad = int((codes & np.uint8(0x77 if c.params[0] == 4 else 0x7F)).any(-1).sum())
    return [_e8m0_seen(c, bad, ", and codes of their groups are not zero")] * (bad > 0)


def _scale8(beyond: int) -> Look:
    """8-bit float scales: no NaN, no sign, not all zero, few zeros. beyond: the first byte without a sign that is NaN or infinite."""

    def look(c: Check, read: Read) -> list[Seen]:
        bad = signed = zero = total = 0
        for b in blocks(read(c.view)):
            bits = raw(b)
            total += bits.size
            if int(bits.max()) < beyond:  # as bytes, NaN and signs are the largest
                zero += bits.size - int(np.count_nonzero(bits))
                continue
            magnitude = bits & 0x7F
            bad += int(np.count_nonzero(magnitude >= beyond))
            signed += int(np.count_nonzero(bits > 0x80))
            zero += int(np.count_nonzero(magnitude == 0))
        out = []
        name = leaf(c.view)
        if bad:
            out.append(Seen("error", "scale-nonfinite", f"{bad} NaN or infinite in {name}", bad, "re-export the layer"))
        if signed:
            out.append(
                Seen(
                    "error",
                    "scale-signed",
                    f"{signed} scales of {name} are negative; no known tool writes such",
                    signed,
                    "re-export the layer",
                )
            )
        if total and zero == total:
            out.append(Seen("error", "scale-all-zero", f"{name} is zero everywhere", zero, "re-export the layer"))
        elif zero * 100 > total:
            out.append(
                Seen(
                    "warning",
                    "scale-zero-groups",
                    f"{zero} of {total} scales of {name} are 0: these groups of weights are lost",
                    zero,
                    "compare with the source model",
                )
            )
        return out

    return look


def _weight8(bad_bits: int) -> Look:
    """FP8 weights: bytes whose bits `bad_bits` are all set are NaN or infinite."""

    def look(c: Check, read: Read) -> list[Seen]:
        mask = np.uint8(bad_bits)
        bad, any_set = 0, False
        for b in blocks(read(c.view)):
            bits = np.ascontiguousarray(b).view(np.uint8)  # Humming's own form holds four to a word
            bad += int(np.count_nonzero((bits & mask) == mask))
            any_set = any_set or bool((bits & np.uint8(0x7F)).any())
        out = []
        if bad:
            out.append(Seen("error", "weight-nan", f"{bad} NaN codes in {leaf(c.view)}", bad, "re-export the layer"))
        if not any_set and c.view.nbytes:
            out.append(
                Seen(
                    "warning",
                    "weight-all-zero",
                    f"{leaf(c.view)} is zero everywhere",
                    1,
                    "compare with the source model; pruned experts exist",
                )
            )
        return out

    return look


def _not_all_zero(severity: Severity, code: str) -> Look:
    def look(c: Check, read: Read) -> list[Seen]:
        x = read(c.view)
        magnitude = np.dtype(f"<u{x.dtype.itemsize}").type((1 << (8 * x.dtype.itemsize - 1)) - 1)
        first = raw(x.reshape(-1)[:FEW])  # almost always they tell
        if not c.view.nbytes or (first & magnitude).any() or any((raw(b) & magnitude).any() for b in blocks(x)):
            return []
        return [Seen(severity, code, f"{leaf(c.view)} is zero everywhere", 1, "re-export the layer")]

    return look


def _int_range(c: Check, read: Read) -> list[Seen]:
    """Two's complement codes of params[0] bits, stored one a byte."""
    low, high = -(1 << (c.params[0] - 1)), (1 << (c.params[0] - 1)) - 1
    bad = sum(int(np.count_nonzero((b < low) | (b > high))) for b in blocks(read(c.view)))
    return [
        Seen(
            "error",
            "code-range",
            f"{bad} codes of {leaf(c.view)} lie outside {low}..{high} of {c.params[0]} bits",
            bad,
            "correct num_bits in the config",
        )
    ] * (bad > 0)


def _high_bits(c: Check, read: Read) -> list[Seen]:
    shift = np.uint32(32 // c.params[0] * c.params[0])
    bad = sum(int(np.count_nonzero(raw(b) >> shift)) for b in blocks(read(c.view))) if shift < 32 else 0
    advice = "the words may be of another layout or width; re-export the layer"
    return [Seen("error", "high-bits", f"{bad} words of {leaf(c.view)} have unused high bits set", bad, advice)] * (bad > 0)


def _signed_zero_point(c: Check, read: Read) -> list[Seen]:
    low, high = -(1 << (c.params[0] - 1)), (1 << (c.params[0] - 1)) - 1
    values = np.asarray(read(c.view)).reshape(-1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = int((~((values >= low) & (values <= high) & (values == np.floor(values)))).sum())
    advice = "the exporter wrote unsigned zero points under a signed format; export again with another version"
    return [Seen("error", "zero-point-unsigned", f"{bad} of {leaf(c.view)} are no whole numbers in {low}..{high}", bad, advice)] * (bad > 0)


def _e8m0_as_number(c: Check, read: Read) -> list[Seen]:
    """float32 scales that are all whole numbers from 100 to 140: bytes that were converted as numbers (formats.md 12 row 48)."""
    values = np.asarray(read(c.view)).reshape(-1).astype(np.float64)
    if values.size < 2 or not ((values >= 100) & (values <= 140) & (values == np.floor(values))).all():
        return []
    message = (
        f"{leaf(c.view)} holds whole numbers from {int(values.min())} to {int(values.max())}: E8M0 bytes copied as numbers, not factors"
    )
    return [Seen("error", "e8m0-as-number", message, values.size, "export again; the factor is 2^(byte - 127)")]


def _zero_padding(c: Check, read: Read) -> list[Seen]:
    """Columns from params[0] of the last axis on."""
    pad = np.asarray(read(c.view))[..., c.params[0] :]
    bad = int(np.count_nonzero(raw(pad)))
    return [
        Seen(
            "warning",
            "padding-not-zero",
            f"{bad} values in the padding of {leaf(c.view)} are not zero; they are ignored",
            bad,
            "re-export the layer",
        )
    ] * (bad > 0)


def _all_ones(c: Check, read: Read) -> list[Seen]:
    bad = int(np.count_nonzero(np.asarray(read(c.view)).reshape(-1).astype(np.float64) != 1))
    advice = "export without it: it multiplies the activations at run time, which no Humming kernel does"
    return [Seen("error", "pre-quant-scale", f"{bad} values of {leaf(c.view)} are not 1", bad, advice)] * (bad > 0)


CHECKS: dict[str, Look] = {
    "finite": _finite,
    "fp4-plausible": _fp4_plausible,
    "fp8-plausible": _fp8_plausible,
    "signs": _signs,
    "positive": _positive,
    "e8m0": _e8m0,
    "e8m0-zero-group": _e8m0_zero_group,
    "e4m3-scale": _scale8(0x7F),
    "e5m2-scale": _scale8(0x7C),
    "e4m3-weight": _weight8(0x7F),
    "e5m2-weight": _weight8(0x7C),
    "scale-not-all-zero": _not_all_zero("error", "scale-all-zero"),
    "weight-not-all-zero": _not_all_zero("warning", "weight-all-zero"),
    "int-range": _int_range,
    "high-bits": _high_bits,
    "signed-zero-point": _signed_zero_point,
    "e8m0-as-number": _e8m0_as_number,
    "zero-padding": _zero_padding,
    "all-ones": _all_ones,
}
"""name -> what it looks for. `Check.params`: fp4-plausible: 1 for a divisor; int-range, high-bits, signed-zero-point, e8m0-zero-group: bits; zero-padding: first padded column."""


def leaf(view: TensorView) -> str:
    """A tensor's name after its last dot."""
    return view.name.rpartition(".")[2]


def run_checks(checks: Iterable[Check], read: Read, findings: Findings, jobs: int = 1) -> None:
    """Looks at every tensor named; what is wrong goes to `findings`, in the order of `checks`. `read` must be usable from `jobs` threads."""

    def look(c: Check) -> list[Seen]:
        view = c.view.at(c.index) if c.index else c.view
        return CHECKS[c.what](Check(what=c.what, view=view, layer=c.layer, params=c.params, other=c.other), read)

    todo = list(dict.fromkeys(checks))
    with ExitStack() as stack:
        each = map if jobs == 1 else stack.enter_context(ThreadPoolExecutor(jobs)).map
        for c, seen in zip(todo, each(look, todo), strict=True):
            for s in seen:
                findings.add(
                    Finding(
                        severity=s.severity,
                        code=s.code,
                        message=s.message,
                        layer=c.layer,
                        tensor=c.view.name,
                        file=c.view.file.name,
                        advice=s.advice,
                        count=s.count,
                    )
                )
