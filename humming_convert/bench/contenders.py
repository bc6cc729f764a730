"""Who is measured: the core here, the others in modules of their own. Each gives calls that do nothing but multiply.

In: a Case.  Out: Prepared calls, one for each copy of the weights, or the reason why there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from humming_convert.bench.document import CORE
from humming_convert.gemm.load import LoadedLayer
from humming_convert.gemm.multiplier import BYTES
from humming_convert.gemm.sampled import Rows, tolerance
from humming_convert.gemm.stored import StoredLayer
from humming_convert.gemm.timing import Call, copies_for


@dataclass(frozen=True, slots=True)
class Case:
    """A layer on the device, and rows for it. nbytes: of packed tensors that these rows need.  cache_bytes: of the L2 cache."""

    stored: StoredLayer
    layer: LoadedLayer
    x: Rows
    nbytes: int
    cache_bytes: int

    @property
    def half(self) -> str:
        return self.layer.multiplier.layer.half

    def copies(self, nbytes: int) -> int:
        return copies_for(nbytes, self.cache_bytes)


@dataclass(frozen=True, slots=True)
class Prepared:
    """y: where the first call's result goes, [m, n] as bits on the device; None where its weights are not the layer's.
    allowed: its tolerance: of the sum of magnitudes, and of the result."""

    calls: list[Call]
    y: Any = None
    allowed: tuple[float, float] = (0.0, 0.0)
    kernel: str | None = None


class Contender(Protocol):
    """name: a key of `document.NAMES`.  how: by what it multiplies, in words."""

    name: str
    how: str

    def why_not(self, case: Case) -> str | None:
        """The reason why it cannot multiply such a layer."""

    def prepare(self, case: Case) -> Prepared: ...


class Core:
    """Kernels of this package, as `hc.load` takes them."""

    name = CORE
    how = "kernels of this package, ready operands and scales"

    def why_not(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Prepared:
        multiplier, x = case.layer.multiplier, case.x
        y = multiplier.device.filled((x.m, multiplier.layer.n), BYTES[multiplier.compute.output])
        calls = []
        for number in range(case.copies(case.nbytes)):
            mine = multiplier.tensors if number == 0 else copied(multiplier.tensors)
            calls.append(replace(multiplier, tensors=mine).bound(x.q, x.scale, y, x.task))
        family, compute, tuning = multiplier.made_by(x.m, x.task)
        parts = f", {tuning.parts} parts" if tuning.parts > 1 else ""
        return Prepared(calls, y, tolerance(family, multiplier.layer, compute), f"{family.NAME}, {tuning.tile_m} rows{parts}")


def copied(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {role: x.copy() for role, x in tensors.items()}
