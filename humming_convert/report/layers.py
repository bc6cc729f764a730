"""A layer of a source as pages show it, before it is packed.

In: a StandardLayer and its verdicts.  Out: a Layer.
"""

from __future__ import annotations

from humming_convert.plan.recipe import describe
from humming_convert.report.types import Layer, Verdict
from humming_convert.standard.layer import StandardLayer


def source_layer(x: StandardLayer, verdicts: tuple[Verdict, ...], rank: str = "") -> Layer:
    """rank: which one holds this part of the layer; its share of the source's bytes is not known then."""
    return Layer(
        name=x.name,
        source=f"{x.family}: {describe(x.form)}",
        bits=x.form.number.bits,
        n=x.n,
        k=x.k,
        experts=x.experts,
        parts=len(x.parts),
        nbytes=None if rank else sum(v.nbytes for v in x.source),
        verdicts=verdicts,
        rank=rank,
    )
