"""Answering the data questions of a layer with as little reading as each needs.

Scales first; the weight only where they leave the question open, through a compiled scan that stops at the first zero code.
Facts: layouts.md 2 (rules marked D), architecture.md 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from humming_convert import passes
from humming_convert.checkpoint.tensors import Read, TensorView
from humming_convert.layouts.questions import (
    Answers,
    answer_fp16_range,
    answer_no_zero_code,
    answer_range_fit,
    answer_tensor_scales_equal,
    answer_zero_points_shift,
    questions,
)
from humming_convert.plan.types import Request
from humming_convert.standard.expr import Array, CodeBlock, Context, Weight
from humming_convert.standard.forms import InputForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.targets.environment import Environment
from humming_convert.targets.table import Target

FRONT = 64  # rows or columns of codes that are read before the others
SMALL = 1 << 22  # codes; below it numpy is faster than loading compiled code


class Answered(Struct, frozen=True):
    """`by_name`: every question that was asked, None where it stays open."""

    answers: Answers
    by_name: Mapping[str, bool | None]


def answer_questions(
    layer: StandardLayer, given: InputForm, target: Target, env: Environment, request: Request, read: Read, *, headers_only: bool
) -> Answered:
    """headers_only: open questions are answered as usual for such files (False) for the sake of shapes, and told as open."""
    asked = _asked(layer, given, target, env, request)
    if headers_only:
        return Answered(Answers(**dict.fromkeys(asked, False)), dict.fromkeys(asked))
    context = Context(read=read, meter=Meter())
    found: dict[str, bool | None] = {name: ANSWERS[name](layer, context) for name in asked}
    return Answered(Answers(**found), found)


def answers_for(
    layer: StandardLayer, given: InputForm, target: Target, env: Environment, request: Request, read: Read, *, known: Answers
) -> Answers:
    """The answers that another environment asks for; those that are known are not looked for again."""
    asked = _asked(layer, given, target, env, request)
    context = Context(read=read, meter=Meter())
    return Answers(**{name: _known(known, name) if _known(known, name) is not None else ANSWERS[name](layer, context) for name in asked})


def _known(answers: Answers, name: str) -> bool | None:
    value: bool | None = getattr(answers, name)
    return value


_questions = lru_cache(maxsize=1024)(questions)  # a model has many layers of few forms


def _asked(layer: StandardLayer, given: InputForm, target: Target, env: Environment, request: Request) -> tuple[str, ...]:
    return _questions(
        layer.form,
        given,
        target,
        env,
        request.entry,
        param_dtype=request.dtype,
        parts=len(layer.stack_n),
        e0m=request.e0m == "auto",
    )


def _value(layer: StandardLayer, role: str, context: Context) -> Array:
    return layer.tensors[role].evaluate(context)


def _tensor_scales_equal(layer: StandardLayer, context: Context) -> bool:
    role = "weight_scale" if layer.form.scale.kind == "tensor" else "weight_scale_2"
    scales = _value(layer, role, context)
    return answer_tensor_scales_equal(scales.reshape(layer.experts or 1, -1))


def _weight(layer: StandardLayer) -> Weight:
    weight = layer.tensors["weight"]
    assert isinstance(weight, Weight)
    return weight


def _front(block: CodeBlock) -> tuple[TensorView, int, int] | None:
    """The first stored rows of a block, and how many rows and columns of codes they hold; None where they are most of it.

    Almost every weight has a code 0 there, and where bytes come over a network the rest need not."""
    view = block.view.at(block.index)
    stored, n, k = {
        "gptq": (FRONT // 32 * block.bits, block.n, FRONT),
        "awq": (FRONT, block.n, FRONT),
        "rows": (FRONT, FRONT, block.k),
        "signed_rows": (FRONT, FRONT, block.k),
    }[block.packing]
    if block.window is not None or len(view.shape) != 2 or view.shape[0] < 4 * stored:
        return None
    return view.rows(0, stored), n, k


def _no_zero_code(layer: StandardLayer, context: Context) -> bool:
    """Stops at the first code 0."""
    weight = _weight(layer)
    compiled = weight.n * weight.k * (weight.experts or 1) >= SMALL
    for block in weight.blocks:
        if compiled and block.straight and block.packing in passes.PACKINGS:
            if (front := _front(block)) is not None and passes.any_zero_code(block.packing, block.bits, context.read(front[0]), *front[1:]):
                return False
            if passes.any_zero_code(block.packing, block.bits, block.stored(context), block.n, block.k):
                return False
        elif not answer_no_zero_code(block.codes(context)):
            return False
    return True


def _zero_points_shift(layer: StandardLayer, context: Context) -> bool:
    return answer_zero_points_shift(_value(layer, "zero_point", context), layer.form.number.bits)


def _range_fit(layer: StandardLayer, context: Context) -> bool:
    weight = _weight(layer)
    scales = _value(layer, "weight_scale", context)
    scales = scales if layer.experts is not None else scales[None]
    return answer_range_fit(scales, lambda e: weight.expert_codes(context, e), layer.form.scale.k)


def _fp16_range(layer: StandardLayer, context: Context) -> bool:
    return answer_fp16_range(_value(layer, "weight_scale", context))


ANSWERS: dict[str, Any] = {
    "tensor_scales_equal": _tensor_scales_equal,
    "no_zero_code": _no_zero_code,
    "zero_points_shift": _zero_points_shift,
    "range_fit": _range_fit,
    "fp16_range": _fp16_range,
}
"""Question -> how this room answers it; the names are layouts.questions.QUESTIONS."""
