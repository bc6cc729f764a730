"""Layers made up for tests: any form, shape and target, and what they stand for as numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from humming_convert.layouts import Standard
from humming_convert.standard.dequantize import dequantized
from humming_convert.standard.forms import InputForm, ScaleForm, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES, number
from humming_convert.standard.packing import stream_pack
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import legal_activations
from humming_convert.targets.table import TARGETS, Target

PARAM = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16)}
WEIGHTS = tuple(f"uint{b}" for b in range(1, 9)) + (
    "float4e2m1",
    "float6e2m3",
    "float6e3m2",
    "float8e4m3",
    "float8e5m2",
    "float4e0m3",
    "float5e0m4",
)


def form(
    weight: str = "uint4",
    kind: str = "group",
    k: int = 128,
    dtype: str = "bfloat16",
    zero_point: str = "none",
    scale_2: str = "none",
    n: int = 0,
) -> WeightForm:
    scale = ScaleForm(kind=kind, dtype=dtype, k=k if kind in ("group", "block") else 0, n=n)  # type: ignore[arg-type]
    return WeightForm(number=number(weight), scale=scale, scale_2=scale_2, zero_point=zero_point)  # type: ignore[arg-type]


def layer(
    f: WeightForm,
    n: int,
    k: int,
    *,
    experts: int | None = None,
    param: str = "BF16",
    bias: bool = False,
    seed: int = 0,
    lowest: bool = True,
    spread: int = 8,
    stack_n: tuple[int, ...] = (),
) -> Standard:
    """Random codes and scales. lowest: code 0 occurs.  spread: binades of E8M0 scales.  stack_n: unequal tensor scales, one a part."""
    rng, e, bits = np.random.default_rng(seed), experts or 1, f.number.bits
    parts = stack_n or (n,)
    codes = (
        rng.integers(0 if lowest else 1, 1 << bits, (e, n, k), np.uint8, endpoint=False)
        if bits < 8
        else rng.integers(0 if lowest else 1, 255, (e, n, k), np.uint8)
    )
    if f.number.name == "float8e4m3":
        codes[codes & 0x7F == 0x7F] = 1
    if f.number.name == "float8e5m2":
        codes[codes & 0x7C == 0x7C] = 1
    tensors: dict[str, Any] = {"weight": stream_pack(codes, bits)}
    groups = k // f.scale.k if f.scale.k else 1
    if f.scale.kind == "tensor":
        tensors["weight_scale"] = rng.uniform(0.1, 1, (e, len(parts))).astype(np.float32)
    elif f.scale.kind == "block":
        tensors["weight_scale"] = rng.uniform(0.1, 1, (e, n // f.scale.n, groups)).astype(np.float32)
    elif f.scale.dtype == "float8e8m0":
        tensors["weight_scale"] = (120 + rng.integers(0, spread, (e, n, groups))).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
    elif f.scale.dtype == "float8e4m3":
        tensors["weight_scale"] = rng.uniform(0.1, 1, (e, n, groups)).astype(ml_dtypes.float8_e4m3fn)
    elif f.scale.dtype == "float8e5m3":
        tensors["weight_scale"] = rng.integers(1, 255, (e, n, groups), np.uint8)
    else:
        tensors["weight_scale"] = rng.uniform(-1, 1, (e, n, groups)).astype(PARAM[param])
    if f.zero_point == "int":
        z = rng.integers(0, 1 << bits, (e, groups, n)).astype(np.uint8)
        tensors["zero_point"] = np.ascontiguousarray(stream_pack(z, bits).swapaxes(-1, -2))
    elif f.zero_point == "fp":
        tensors["zero_point"] = rng.integers(0, 1 << bits, (e, n, groups)).astype(PARAM[param])
    if f.scale_2 == "tensor":
        tensors["weight_scale_2"] = rng.uniform(0.5, 2, (e, len(parts))).astype(np.float32)
    elif f.scale_2 == "channel":
        tensors["weight_scale_2"] = rng.uniform(0.5, 2, (e, n)).astype(PARAM[param])
    if bias:
        tensors["bias"] = rng.normal(size=(e, n)).astype(PARAM[param])
    if experts is None:
        tensors = {role: x[0] for role, x in tensors.items()}
    return Standard(form=f, n=n, k=k, experts=experts, stack_n=stack_n, tensors=tensors)


def numbers(s: Standard) -> np.ndarray:
    """What a layer stands for: float64 [E, n, k]."""
    small = {role: x for role, x in s.tensors.items() if role not in ("weight", "bias")}
    out = []
    for e in range(s.experts or 1):
        mine = {role: x if s.experts is None else x[e : e + 1] if x.ndim == 1 else x[e] for role, x in small.items()}
        out.append(dequantized(s.form, s.codes(e), mine, s.stack_n or (s.n,), slice(0, s.n)))
    return np.stack(out)


@st.composite
def forms(draw: st.DrawFn, param: str) -> WeightForm:
    weight = draw(st.sampled_from(WEIGHTS))
    kind = draw(st.sampled_from(("group", "group", "group", "channel", "tensor", "block")))
    dtype = MODEL_DTYPES[param]
    k, n = 0, 0
    if kind == "group":
        k = draw(st.sampled_from((16, 32, 64, 128, 96)))
        dtype = draw(st.sampled_from((dtype, dtype, "float8e8m0", "float8e4m3")))
    elif kind == "block":
        k = n = 64
    scale_2 = draw(st.sampled_from(("none", "none", "tensor", "channel"))) if kind == "group" else "none"
    zero = "none"
    if weight.startswith("uint") and kind in ("group", "channel") and scale_2 == "none":
        zero = draw(st.sampled_from(("none", "int", "fp")))
    return form(weight, kind, k, "float32" if kind in ("block", "tensor") else dtype, zero, scale_2, n)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Standard, Target, InputForm, str, Environment, int, int]:
    """A layer and a legal activation on a target."""
    target = draw(st.sampled_from(TARGETS))
    param = "F16" if target.sm < 80 else draw(st.sampled_from(("BF16", "F16")))
    f = draw(forms(param))
    env = Environment(draw(st.sampled_from(((12, 6), (13, 0), (13, 2)))), draw(st.booleans()), draw(st.sampled_from(("0.1.19", "0.1.20"))))
    legal = legal_activations(f, target, env, param)
    act = draw(st.sampled_from(legal)) if legal else MODEL_DTYPES[param][:2] + "16"
    n, k = draw(st.sampled_from((64, 96, 128))), draw(st.sampled_from((1, 2, 3))) * (f.scale.k or 64)
    k = k * (128 // k if k < 128 and 128 % k == 0 else 1)
    made = layer(
        f,
        n // f.scale.n * f.scale.n if f.scale.n else n,
        k,
        experts=draw(st.sampled_from((None, None, 2))),
        param=param,
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        lowest=draw(st.booleans()),
        spread=draw(st.sampled_from((3, 11, 18))),
    )
    pads = draw(st.sampled_from(((64, 128), (256, 128), (128, 384))))
    return made, target, activation(act, param), param, env, *pads
