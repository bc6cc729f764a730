"""Whole layers as arrays: standard tensors to packed tensors, answers of the data included, and back.

In: a Standard (form, shape, tensors) and where it shall run.  Out: a PackedLayer.  The numpy reference of plan and engine.
Facts: layouts.md; architecture.md 9.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from humming_convert.findings import Finding
from humming_convert.layouts.config import Entry, LayerRecipe
from humming_convert.layouts.questions import (
    Answers,
    answer_fp16_range,
    answer_no_zero_code_in_words,
    answer_range_fit,
    answer_tensor_scales_equal,
    answer_zero_points_shift,
    questions,
)
from humming_convert.layouts.resolve import resolve
from humming_convert.layouts.small import pack_small
from humming_convert.layouts.weights import WeightAux, map_codes, pack_weight
from humming_convert.standard.expr import Context
from humming_convert.standard.forms import InputForm, WeightForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Measure, Meter
from humming_convert.standard.numbers import MODEL_DTYPES, number, values
from humming_convert.standard.packing import Codes, stream_unpack
from humming_convert.targets.environment import Environment
from humming_convert.targets.refusals import refuse
from humming_convert.targets.table import Target

Array = NDArray[Any]
PADS: dict[str, tuple[int, int]] = {"vllm": (256, 128), "humming-layer": (1, 1), "direct": (1, 1)}  # layouts.md 2; architecture.md 9.1


class Standard(Struct, frozen=True, kw_only=True):
    """A layer in the standard form, as arrays (shapes: layouts.md 1, with an experts axis where `experts` is given)."""

    form: WeightForm
    n: int
    k: int
    tensors: Mapping[str, Array]
    experts: int | None = None
    stack_n: tuple[int, ...] = ()

    @classmethod
    def of(cls, layer: StandardLayer, context: Context) -> Standard:
        """A lazy standard layer, read."""
        tensors = {role: x.evaluate(context) for role, x in layer.tensors.items()}
        return cls(form=layer.form, n=layer.n, k=layer.k, experts=layer.experts, stack_n=layer.stack_n, tensors=tensors)

    def codes(self, expert: int) -> Codes:
        """[n, k] uint8 of one expert."""
        words = self.tensors["weight"]
        return stream_unpack(words[expert] if self.experts is not None else words, self.form.number.bits, self.k)


class PackedLayer(Struct, frozen=True, kw_only=True):
    """`tensors` by role, dtypes and shapes as in `recipe.outputs`. `lossy`: what was changed on the way; `findings`: warnings."""

    recipe: LayerRecipe
    tensors: Mapping[str, Array]
    lossy: tuple[Measure, ...] = ()
    findings: tuple[Finding, ...] = ()


def answer(layer: Standard, names: tuple[str, ...]) -> Answers:
    """Looks at the data for the questions asked."""
    t, bits = layer.tensors, layer.form.number.bits
    found: dict[str, bool] = {}
    for name in names:
        match name:
            case "tensor_scales_equal":
                key = "weight_scale" if layer.form.scale.kind == "tensor" else "weight_scale_2"
                found[name] = answer_tensor_scales_equal(t[key].reshape(layer.experts or 1, -1))
            case "no_zero_code":
                found[name] = answer_no_zero_code_in_words(t["weight"], bits)
            case "zero_points_shift":
                found[name] = answer_zero_points_shift(t["zero_point"], bits)
            case "fp16_range":
                found[name] = answer_fp16_range(t["weight_scale"])
            case "range_fit":
                scales = t["weight_scale"]
                found[name] = answer_range_fit(scales.reshape(layer.experts or 1, layer.n, -1), layer.codes, layer.k // scales.shape[-1])
    return Answers(**found)


def prepare(
    layer: Standard,
    target: Target,
    input: InputForm | None = None,  # noqa: A002
    *,
    param_dtype: str = "BF16",
    env: Environment | None = None,
    entry: Entry = "vllm",
    pad_n: int | None = None,
    pad_k: int | None = None,
    e0m: bool = True,
) -> PackedLayer:
    """The packed layer, as the library makes it on the target. Raises Refused where it refuses.

    input: None for activations in the model dtype.  Pads: those of the entry unless given.
    """
    env = env or Environment()
    input = input or InputForm(number=number(MODEL_DTYPES[param_dtype]), mode="none")  # noqa: A001
    stack = layer.stack_n or (layer.n,)
    asked = questions(layer.form, input, target, env, entry, param_dtype=param_dtype, parts=len(stack), e0m=e0m)
    recipe = resolve(
        n=layer.n,
        k=layer.k,
        experts=layer.experts,
        stack_n=stack,
        form=layer.form,
        input=input,
        target=target,
        env=env,
        param_dtype=param_dtype,
        has_bias="bias" in layer.tensors,
        answers=answer(layer, asked),
        pad_n=PADS[entry][0] if pad_n is None else pad_n,
        pad_k=PADS[entry][1] if pad_k is None else pad_k,
        entry=entry,
        e0m=e0m,
    )
    meter = Meter()
    tensors, aux = pack_small(recipe, layer.tensors, meter)
    weight = np.empty((layer.experts or 1, *recipe.weight.shape), "<i4")
    words = layer.tensors["weight"]
    if words.dtype != np.int32 or words.size != (layer.experts or 1) * layer.n * layer.k * recipe.weight.bits // 32:
        raise refuse("tensor_shape", f"weight has shape {words.shape} of {words.dtype}")
    for e in range(layer.experts or 1):
        codes = layer.codes(e)
        weight[e] = pack_weight(recipe.weight, codes, aux.of_expert(e))
        measure_e8m0_range(recipe, codes, aux.of_expert(e), meter)
    tensors["weight"] = weight if layer.experts is not None else weight[0]
    return PackedLayer(recipe=recipe, tensors=tensors, lossy=tuple(meter.found.values()), findings=aux.findings())


def measure_e8m0_range(recipe: LayerRecipe, codes: Codes, aux: WeightAux, meter: Meter) -> None:
    """Records what S5 changed in the values of one expert's weight (-0 to 0 changes none)."""
    if aux.offsets is None or aux.scales is None or aux.scale_2 is None or not aux.offsets.any():
        return
    w = recipe.weight
    value = values("float4e2m1")
    after = value[map_codes(w, codes, aux)[: w.n, : w.k]]
    group_scale = np.exp2(aux.scales - 127.0) * aux.scale_2[:, None].astype(np.float64)
    scale, raised = (np.repeat(x, w.group, axis=1)[: w.n, : w.k] for x in (group_scale, np.exp2(aux.offsets.astype(np.float64))))
    meter.record("e8m0-range", "weight", value[codes] * scale, after * raised * scale)
