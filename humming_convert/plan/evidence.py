"""What `inspect` shows beside a list of layers: what the zero points look like.

In: standard layers, a way to read tensors.  Out: values that print and go into JSON.
Facts: formats.md 2.3 (census, statistic), 11 (D3, D4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from humming_convert.checkpoint.tensors import Read
from humming_convert.formats.zeros import Asymmetric, census, distance, unpack_zeros
from humming_convert.standard.expr import Weight
from humming_convert.standard.layer import StandardLayer

ROWS = 16  # of a histogram
BAR = 32  # characters of the longest bar
JUDGED = 8  # layers whose codes are looked at for the statistic of D3
KINDS = {
    "v1": "the constant of v1, 2^(b-1) - 1",
    "v2": "the constant of v2, 2^(b-1)",
    "zero": "all zero",
    "damaged": "the constant of an old faulty conversion",
    "other-layout": "a constant of the other 3-bit layout",
    "varies": "no constant: asymmetric",
}


class ZeroPoints(Struct, frozen=True, kw_only=True):
    """Stored zero points of all GPTQ modules of one width.

    counts: how often each value 0 .. 2^bits-1 is stored.  kinds: how many modules store which constant (formats.zeros.census).
    distance: median over some modules of mean code minus mean stored zero point, near 0 for v2 and 1 for v1; None where it says nothing.
    """

    bits: int
    counts: tuple[int, ...]
    kinds: dict[str, int]
    distance: float | None

    def document(self) -> dict[str, Any]:
        return {"bits": self.bits, "stored": list(self.counts), "modules": self.kinds, "distance": self.distance}

    def bins(self) -> list[tuple[str, int]]:
        """(value or range of values, how often); more than ROWS values are put together."""
        stored = [(str(v), c) for v, c in enumerate(self.counts) if c]
        if len(stored) <= ROWS:
            return stored
        each = len(self.counts) // ROWS
        ranges = [(f"{a}-{a + each - 1}", sum(self.counts[a : a + each])) for a in range(0, len(self.counts), each)]
        return [(label, c) for label, c in ranges if c]

    def lines(self) -> list[str]:
        bins = self.bins()
        total, most = sum(self.counts), max(count for _, count in bins)
        out = [
            f"zero points as stored, {self.bits} bits: " + "; ".join(f"{n} module{'s' * (n > 1)} {KINDS[k]}" for k, n in self.kinds.items())
        ]
        for label, count in bins:
            out.append(f"  {label:>7} {'#' * max(1, round(BAR * count / most)):{BAR}} {100 * count / total:5.1f} %")
        if self.distance is not None:
            out.append(f"  mean code minus mean stored zero point: {self.distance:+.2f} (near 0 means v2, near 1 means v1)")
        return out


def zero_points(layers: Iterable[StandardLayer], read: Read) -> list[ZeroPoints]:
    """One census a width, of the modules that store qzeros of GPTQ."""
    by_bits: dict[int, list[tuple[StandardLayer, Weight]]] = {}
    for layer in layers:
        weight = layer.tensors["weight"]
        if layer.family == "gptq" and isinstance(weight, Weight) and any(v.name.endswith(".qzeros") for v in layer.source):
            by_bits.setdefault(layer.form.number.bits, []).append((layer, weight))
    return [_census(bits, found, read) for bits, found in sorted(by_bits.items())]


def _census(bits: int, found: Sequence[tuple[StandardLayer, Weight]], read: Read) -> ZeroPoints:
    counts = np.zeros(1 << bits, np.int64)
    kinds: Counter[str] = Counter()
    judged: list[Asymmetric] = []
    for layer, weight in found:
        view = next(v for v in layer.source if v.name.endswith(".qzeros"))
        planar = weight.blocks[0].packing == "gptq_planar"
        words = np.asarray(read(view))
        counts += np.bincount(unpack_zeros(words, bits, layer.n, planar).reshape(-1), minlength=1 << bits)
        kind = census(words, bits, layer.n, planar)
        kinds[kind] += 1
        if kind == "varies" and bits != 8 and not planar:  # at 8 bits a small shift of the mean says more than the label (formats.md 2.3)
            judged.append(Asymmetric(layer=layer.name, qweight=weight.blocks[0].view, qzeros=view, bits=bits, n=layer.n, k=layer.k))
    step = max(1, len(judged) // JUDGED)
    far = [distance(read, x) for x in judged[::step][:JUDGED]]
    median = round(float(np.median(far)), 3) if far else None
    return ZeroPoints(bits=bits, counts=tuple(int(c) for c in counts), kinds=dict(kinds), distance=median)
