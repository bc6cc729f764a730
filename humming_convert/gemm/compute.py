"""The compute configuration: the mathematics around a layer, for `struct Compute` of the templates (config.cuh mirrors this file).

In: the activation of a stored configuration, and what is asked for.  Out: a Compute.
Facts: layouts.md 4.1 (modes, activation scales).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from humming_convert.gemm.layer import SCALE_TYPES, Layer, UnknownLayer
from humming_convert.standard.numbers import number, values

# mode -> how q is made, whose scales it has, what the second factor is
MODES: dict[str, tuple[str, str, str]] = {
    "none": ("fixed", "none", "none"),
    "static_tensor": ("fixed", "token", "none"),
    "dynamic_token": ("token", "token", "none"),
    "dynamic_group": ("group", "group", "none"),
    "static_tensor_dynamic_group": ("group", "group", "tensor"),
    "dynamic_group_token": ("group", "group", "token"),
}
NO_SPECIAL = {"float8e4m3": 448.0, "float8e5m2": 57344.0}  # the largest numbers below NaN and infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Fields of `struct Compute`, under the same names.

    act_*: the number type of the activation; act_top: its largest number.  as_type: how group scales are held.
    flush: columns of K whose sums are scaled together.  step: columns that one instruction of mma.sync multiplies.
    operand: what is multiplied: f16, bf16, which hold every code exactly, or e4m3, s8.
    rounds: whether a kernel may round before the end: 16-bit weights are their code times their scale, rounded once, as a 16-bit model would hold
    them, and sums of E4M3 stay in the tensor cores. Never in checks.
    """

    act_mode: str
    act_scale: str
    act_second: str
    act_group: int
    act_exponent: int
    act_mantissa: int
    act_top: float
    as_type: str
    flush: int
    step: int
    operand: str
    output: str
    task: str
    rounds: bool = False

    @property
    def quantizes(self) -> bool:
        return self.act_scale != "none"

    @property
    def wants_given_scale(self) -> bool:
        """A static scale comes from outside."""
        return self.quantizes and (self.act_mode == "fixed" or self.act_second == "tensor")

    @classmethod
    def of(
        cls, layer: Layer, config: Mapping[str, Any], *, sm: int, output: str = "f32", task: str | None = None, rounds: bool = False
    ) -> Compute:
        """sm: of the GPU that the kernel is for.  output: f32, f16 or bf16.  task: one of gemm/tasks.py; by the layer's experts if None."""
        a, mode = number(config["a_dtype"]), str(config["input_quant_mode"])
        if mode not in MODES:
            raise UnknownLayer(f"input_quant_mode {mode}")
        how, scale, second = MODES[mode]
        gi = int(config["input_scale_group_size"])
        flush = math.gcd(layer.group_k or 0, gi if scale == "group" else 0) or -(-layer.shape_k // 32) * 32
        step = 16 if sm >= 80 and flush % 16 == 0 else 8
        if flush % step:
            raise UnknownLayer(f"groups of {layer.group_k} and {gi} columns: the core multiplies 8 at a time")
        if layer.half == "bf16" and sm < 80:
            raise UnknownLayer("bfloat16 needs sm_80")
        table = values(a.name) if a.bits <= 8 else np.zeros(1)
        if a.is_integer:
            top = float((1 << (a.bits - 1)) - 1)
        else:
            top = NO_SPECIAL.get(a.name, float(table.max()))
        return cls(
            act_mode=how,
            act_scale=scale,
            act_second=second,
            act_group=gi if scale == "group" else 0,
            act_exponent=0 if a.is_integer or a.bits == 16 else a.exponent,
            act_mantissa=0 if a.is_integer or a.bits == 16 else a.mantissa,
            act_top=top,
            as_type=SCALE_TYPES[config["as_dtype"]] if scale == "group" and config["as_dtype"] else "f32",
            flush=flush,
            step=step,
            operand=layer.half,
            output=output,
            task=task or ("indexed" if layer.experts else "dense"),
            rounds=rounds,
        )
