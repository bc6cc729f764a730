"""Groups along K: from the number of scale rows to a group size, and what a `g_idx` says about the order of columns.

In: K, the stored number of groups, what the config declares, g_idx.  Out: a `Groups`, or findings.
Facts: formats.md 2.6, 2.7, 12.7 to 12.9, 12.17, 12.18, D21.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.source import Module, Source
from humming_convert.standard.expr import Expr, apply

RULES = (
    Rule(220, "g-idx-range", "entries of g_idx are group numbers"),
    Rule(221, "g-idx-groups", "all groups of g_idx hold the same number of columns, but for a shorter last one"),
    Rule(222, "g-idx-zero", "g_idx is not zero everywhere where there are several groups", "warning"),
)

SMALLEST = 16  # Humming's smallest group (formats.md D21)


def at(module: Module, suffix: str) -> dict[str, Any]:
    """Where a finding about one tensor of a module is: layer, tensor, file."""
    view = module.tensors.get(suffix)
    return {"layer": module.name, "tensor": f"{module.name}.{suffix}", "file": view.file.name if view is not None else None}


class Groups(Struct, frozen=True):
    """`stored`: weights a group in the file, 0: one group over K (channel). `size`: of the standard form, a divisor of K (0: channel)."""

    k: int
    stored: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.k // self.stored) if self.stored else 1

    @property
    def ragged(self) -> bool:
        """The last group is shorter than the others."""
        return self.stored > 0 and self.k % self.stored != 0

    def spread(self, columns: Expr) -> Expr:
        """[rows, stored groups] with each column repeated for the groups of the standard form: [rows, K / size]."""
        if self.size == self.stored:
            return columns
        params = (self.stored // self.size, 1, self.k // self.size)
        return apply("repeat", columns, params=params, shape=(columns.shape[0], params[2]))


def groups_of(source: Source, module: Module, suffix: str, k: int, count: int, declared: int | None) -> Groups | None:
    """`count`: groups in the tensor `suffix` (scales), for error messages; declared: group_size of the config, -1 for one group."""
    found = source.findings
    if declared is not None and declared > 0 and declared < k and k % declared and count == k // declared:
        found.error(
            "tensor-shape",
            f"{suffix} has {count} groups for K {k} in groups of {declared}; the shape must hold the shorter last group too",
            advice="the scales of the last columns are lost; quantize the layer again",
            **at(module, suffix),
        )
        return None
    wanted = 0 if declared is None or declared == -1 or declared > k else declared
    if count == 1 and wanted == 0:
        return Groups(k, 0, 0)
    if wanted and -(-k // wanted) == count:
        stored = wanted
    elif count == 1:
        stored = 0
    elif k % count == 0:
        stored = k // count
    else:
        found.error(
            "tensor-shape",
            f"{suffix} has {count} groups, which do not fit the shape: K is {k}" + (f", group_size {declared}" if declared else ""),
            advice="group_size of the config must fit the scales",
            **at(module, suffix),
        )
        return None
    if declared is not None and (wanted or k) != (stored or k):
        found.warning(
            "group-size-lies",
            f"group_size is {declared} in the config, the shape of {suffix} says {stored or 'one group'}; the shape is taken",
            advice="correct group_size in the config",
            **at(module, suffix),
        )
    if stored == 0:
        return Groups(k, 0, 0)
    size = gcd(k, stored)
    size &= -size  # the largest power of two that divides both
    if size != stored and size < SMALLEST:
        found.error(
            "group-too-small",
            f"groups of {stored} over K {k} cannot be split into equal groups of a power of two of at least {SMALLEST}",
            advice="quantize the layer again with groups of 32, 64 or 128",
            **at(module, suffix),
        )
        return None
    if stored < SMALLEST:
        found.error(
            "group-too-small",
            f"groups of {stored}; the smallest that Humming reads is {SMALLEST}",
            advice="quantize the layer again with groups of 32, 64 or 128",
            **at(module, suffix),
        )
        return None
    return Groups(k, stored, size)


@lru_cache(maxsize=256)
def _in_order(k: int, stored: int) -> NDArray[np.int32]:
    """g_idx without an order of its own: column i is in group i / stored. Models have many layers of few sizes."""
    return (np.arange(k) // stored).astype(np.int32)


def column_groups(source: Source, module: Module, view: TensorView, groups: Groups) -> NDArray[np.int32] | None:
    """The group of every column where g_idx is a true act-order, None where it is the identity. What is wrong goes to findings.

    Only the content decides, not `desc_act` (formats.md 2.7).
    """
    stored = groups.stored or groups.k
    stored_g = np.asarray(source.read(view))
    if np.array_equal(stored_g, _in_order(groups.k, stored)):
        return None
    g = stored_g.astype(np.int64)
    count, where = groups.count, at(module, "g_idx")
    if count == 1 and ((g == 0) | (g == -1)).all():
        return None
    if (g == -1).all():
        return None
    outside = int(((g < 0) | (g >= count)).sum())
    if outside:
        source.findings.error(
            "g-idx-range",
            f"{outside} of {g.size} entries of g_idx are no group number (0 to {count - 1})",
            advice="g_idx is damaged; quantize the layer again",
            count=outside,
            **where,
        )
        return None
    if count == 1:
        return None
    if (g == 0).all():
        source.findings.warning(
            "g-idx-zero",
            f"g_idx is 0 everywhere though there are {count} groups: an uninitialised buffer, taken as no act-order",
            advice="compare a few outputs with the source model",
            **where,
        )
        return None
    sizes = np.bincount(g, minlength=count)
    if groups.ragged or (sizes != stored).any():
        source.findings.error(
            "g-idx-groups",
            f"g_idx gives the groups {int(sizes.min())} to {int(sizes.max())} columns, want {stored} each"
            + (" (act-order with a shorter last group is not read)" if groups.ragged else ""),
            advice="g_idx is damaged; quantize the layer again",
            **where,
        )
        return None
    return np.asarray(g, np.int32)
