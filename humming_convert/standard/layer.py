"""Standard layers: a layer in the Humming standard form, by name, with lazy tensors.

Formats make them (one a source module, unfused), `model` fuses and stacks them, `layouts` packs them.
Facts: architecture.md 4, layouts.md 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.standard.expr import Expr
from humming_convert.standard.forms import InputForm, WeightForm

ROLES = ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias", "input_scale", "input_scale_2")
Family = Literal["gptq", "awq", "compressed-tensors", "mxfp4", "nvfp4", "fp8", "mxfp8", "int8", "humming"]


class Check(Struct, frozen=True, kw_only=True):
    """A rule about the numbers of a stored tensor, looked at before anything is written. `what`: a name of formats/checks.py.

    params: plain arguments of the check (a number of bits).  other: a second tensor that it needs (the codes beside a scale).
    """

    what: str
    view: TensorView
    layer: str
    index: tuple[int, ...] = ()
    params: tuple[int, ...] = ()
    other: TensorView | None = None


class StandardLayer(Struct, frozen=True, kw_only=True):
    """One layer. Shapes of `tensors` are those of layouts.md 1 for (n, k), with a leading `experts` axis where experts is not None:

        weight          I32 [n, k*bits/32]                      always, a `Weight`
        weight_scale    group [n, k/g], channel [n, 1], block F32 [n/gn, k/gk], tensor F32 [q] (q = 1, or one a part)
        zero_point      int: I32 [n*bits/32, k/g]; fp: [n, k/g]
        weight_scale_2  tensor F32 [q]; channel [n]
        bias            [n]
        input_scale, input_scale_2   F32 [1]: static activation scales (input_scale_2 for FP4), multipliers

    Scales keep the dtype of the source (`form.scale.dtype`) until they are cast for a target.
    parts: source modules in stacking order (expert-major). stack_n: rows of the parts of one expert.
    declared: the activation form that the checkpoint's own config asks for, None for 16-bit.
    source: every stored tensor that this layer uses up (also those dropped, e.g. g_idx), so that it is not passed through.
    """

    name: str
    family: Family
    parts: tuple[str, ...]
    n: int
    k: int
    experts: int | None
    stack_n: tuple[int, ...]
    form: WeightForm
    tensors: Mapping[str, Expr]
    declared: InputForm | None = None
    row_order: Literal["blocks", "interleaved"] = "blocks"
    recoded: str | None = None
    checks: tuple[Check, ...] = ()
    source: tuple[TensorView, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
