"""Random layers for comparing with the library: any target, type, scale, activation, entry, shape and pad, legal or not.

A case is a line as golden vectors have it (architecture.md 9.9); case `number` of a seed is always the same.
Facts: layouts.md 1, 2, 4; golden/README.md (value classes).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from humming_convert.standard.numbers import number
from humming_convert.standard.packing import stream_pack
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment, compiler_version
from humming_convert.targets.legality import legal_activations
from humming_convert.targets.schema import weight_form
from humming_convert.targets.table import TARGETS

Array = NDArray[Any]
Case = dict[str, Any]

PARAM = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
SAFETENSORS = {"bfloat16": "BF16", "float16": "F16"}
FLOATS = ("float4e2m1", "float6e2m3", "float6e3m2", "float8e4m3", "float8e5m2", "float8e3m4")
E0M = tuple(f"float{b}e0m{b - 1}" for b in range(2, 9))
ACTIVATIONS = (
    (None, 0, None, None),
    ("int8", 0, "float32", "dynamic_token"),
    ("int4", 0, "float32", "dynamic_token"),
    ("float8e4m3", 0, "float32", "dynamic_token"),
    ("float8e5m2", 0, "float32", "dynamic_token"),
    ("float8e3m4", 0, None, "dynamic_token"),
    ("float8e4m3", 128, None, "dynamic_group"),
    ("float8e4m3", 32, "float8e8m0", "dynamic_group"),
    ("float4e2m1", 32, "float8e8m0", "dynamic_group"),
    ("float4e2m1", 16, "float8e4m3", "dynamic_group"),
    ("float4e2m1", 16, "float8e4m3", "static_tensor_dynamic_group"),
    ("float4e2m1", 16, "float8e4m3", "dynamic_group_token"),
    ("float4e0m3", 16, "float8e4m3", "dynamic_group"),
    ("int8", 128, None, "dynamic_group"),
    ("int8", 0, "float32", "static_tensor"),
)
"""a_dtype, group, scale dtype, mode."""


def make_case(seed: int, index: int, version: str) -> tuple[Case, dict[str, Array]]:
    """(case, standard tensors by role)."""
    dice = np.random.default_rng([seed, index])

    def pick(options: Any, weights: Any = None) -> Any:
        return options[int(dice.choice(len(options), p=None if weights is None else np.array(weights) / sum(weights)))]

    target = pick(TARGETS, [4 if t.family == "wgmma" else 1 for t in TARGETS])  # Hopper has the most layouts
    param = pick(("bfloat16", "float16")) if target.sm >= 80 else "float16"
    entry = pick(("vllm", "direct", "humming-layer"))
    weight = _weight_schema(pick, entry)
    compiler, patch = pick(("12.6", "13.0", "13.2", "13.4"), (1, 5, 1, 1)), bool(pick((True, False), (5, 1)))
    given = _input_schema(pick, weight, target, Environment(compiler_version(compiler), patch, version), SAFETENSORS[param])
    bits = number(weight["b_dtype"]).bits
    group = weight["weight_scale_group_size"]
    pads = (256, 128) if entry == "vllm" else pick(((1, 1), (64, 128), (256, 128)))
    rows = int(pick((64, 96, 128, 192, 320) if pads[0] > 1 else (64, 128, 192, 256)))
    stacks = (rows,) if entry == "humming-layer" or dice.random() < 0.6 else (rows, 32 * int(dice.integers(1, 4)))
    if pads[0] == 1 and sum(stacks) % 64 and dice.random() < 0.9:
        stacks = (rows,)
    block_n = weight["weight_scale_group_size_n"]
    if block_n > 1:
        stacks = (-(-rows // block_n) * block_n,)
    n = sum(stacks)
    unit = max(group, 32) if 32 % max(group, 1) else 32
    least = 128 if pads[1] == 1 else unit
    k = unit * max(1, -(-least // unit) + int(dice.integers(0, 4)))
    if dice.random() < 0.03:
        k += 32  # a K that holds no whole groups
    experts = pick((None, None, None, 2, 3))
    case = {
        "id": f"{seed}-{index}",
        "tag": "random",
        "version": version,
        "entry": entry,
        "sm": target.sm,
        "ppu": target.ppu,
        "compiler": compiler,
        "cubin_patch": patch,
        "shape_n": n,
        "shape_k": k,
        "num_experts": experts,
        "pad_n_to_multiple": pads[0],
        "pad_k_to_multiple": pads[1],
        "param_dtype": param,
        "has_bias": bool(pick((False, True))),
        "convert_e0m": entry == "humming-layer" or bool(pick((True, False), (4, 1))),
        "shape_n_stacks": list(stacks),
        "weight_schema": weight,
        "input_schema": given,
    }
    return case, _tensors(dice, pick, case, bits)


KNOWN: tuple[tuple[str, str | None, int], ...] = (
    ("float4e2m1", "float8e8m0", 32),
    ("float4e2m1", "float8e8m0", 32),
    ("float4e2m1", "float8e4m3", 16),
    ("float8e4m3", "float8e8m0", 32),
    ("uint4", None, 128),
    ("uint2", None, 128),
)
"""Weights that models have and that random draws seldom hit: type, scale type, group."""


def _weight_schema(pick: Any, entry: str) -> dict[str, Any]:
    if pick((True, False), (1, 2)):
        b_dtype, dtype, group = pick(KNOWN)
        return {
            "b_dtype": b_dtype,
            "bs_dtype": dtype,
            "weight_scale_type": "group",
            "weight_scale_group_size": group,
            "weight_scale_group_size_n": 0,
            "weight_scale_2_type": pick(("none", "tensor", "channel"), (4, 1, 1)),
            "has_zero_point": False,
            "is_fp_zero_point": False,
        }
    b_dtype = pick((*(f"uint{b}" for b in range(1, 9)), *FLOATS, *E0M, "uint4", "uint4", "uint8", "float4e2m1", "float4e2m1"))
    kind = pick(("group", "channel", "block", "tensor"), (5, 2, 1, 1))
    group, block_n, dtype, second, zero = 0, 0, None, "none", "none"
    if kind == "group":
        group = int(pick((16, 32, 64, 128, 96, 48, 256), (2, 5, 3, 5, 1, 1, 1)))
        dtype = pick((None, "float8e8m0", "float8e4m3", "float8e5m2", "float8e5m3"), (4, 4, 2, 1, 1))
        second = pick(("none", "tensor", "channel"), (5, 2, 2))
        block_n = int(pick((0, 1), (9, 1)))
    elif kind == "channel":
        dtype = pick((None, "float8e8m0", "float8e4m3", "float8e5m3"), (6, 1, 1, 1))
        second = pick(("none", "tensor"), (3, 1))
    elif kind == "block":
        group, block_n = int(pick((64, 128))), int(pick((64, 128)))
        dtype = "float32"
    if kind in ("group", "channel") and dtype is None and entry != "humming-layer":
        dtype = pick((None, "float32"), (4, 1))
    if b_dtype.startswith("uint"):
        zero = pick(("none", "int", "fp"), (5, 2, 1))
    return {
        "b_dtype": b_dtype,
        "bs_dtype": dtype,
        "weight_scale_type": kind,
        "weight_scale_group_size": group,
        "weight_scale_group_size_n": block_n,
        "weight_scale_2_type": second,
        "has_zero_point": zero != "none",
        "is_fp_zero_point": zero == "fp",
    }


def _input_schema(pick: Any, weight: dict[str, Any], target: Any, env: Environment, param: str) -> dict[str, Any]:
    """Seven in ten a legal activation, so that most layers are packed; else any."""
    legal = legal_activations(weight_form(weight, param), target, env, param)
    if legal and pick((True, False), (7, 3)):
        form = activation(pick(legal), param)
        a = None if form.number.bits == 16 else form.number.name
        group, dtype, mode = form.group, form.scale_dtype, None if a is None else form.mode
    else:
        a, group, dtype, mode = pick(ACTIVATIONS)
    return {"a_dtype": a, "input_scale_group_size": group, "input_scale_dtype": dtype, "input_quant_mode": mode}


def _tensors(dice: np.random.Generator, pick: Any, case: Case, bits: int) -> dict[str, Array]:
    w, param = case["weight_schema"], PARAM[case["param_dtype"]]
    e, n, k = case["num_experts"] or 1, case["shape_n"], case["shape_k"]
    group = w["weight_scale_group_size"]
    groups = max(k // group, 1) if group else 1
    codes = _codes(dice, pick, bits, (e, n, k))
    out: dict[str, Array] = {"weight": stream_pack(codes, bits)}
    kind, parts = w["weight_scale_type"], len(case["shape_n_stacks"])
    one_each = bool(pick((True, False)))  # a tensor scale a part, or one for all

    def tensor_scale() -> Array:
        count = parts if one_each else 1
        values = dice.uniform(0.25, 2, (e, count)).astype(np.float32)
        return np.repeat(values[:, :1], count, 1) if pick((True, False), (1, 2)) else values

    if kind == "tensor":
        out["weight_scale"] = tensor_scale()
    elif kind == "block":
        out["weight_scale"] = dice.uniform(-1, 1, (e, n // w["weight_scale_group_size_n"], groups)).astype(np.float32)
    else:
        out["weight_scale"] = _scales(dice, pick, w["bs_dtype"], param, (e, n, groups))
    if w["has_zero_point"] and w["is_fp_zero_point"]:
        out["zero_point"] = dice.integers(0, 1 << bits, (e, n, groups)).astype(param)
        if pick((True, False), (1, 3)):
            out["zero_point"] = (out["zero_point"].astype(np.float32) + np.float32(0.3)).astype(param)
    elif w["has_zero_point"]:
        zeros = dice.integers(0, 1 << bits, (e, groups, n), np.uint8)
        out["zero_point"] = np.ascontiguousarray(np.swapaxes(stream_pack(zeros, bits), -1, -2))
    if w["weight_scale_2_type"] == "tensor":
        out["weight_scale_2"] = tensor_scale()
    elif w["weight_scale_2_type"] == "channel":
        out["weight_scale_2"] = dice.uniform(0.25, 2, (e, n)).astype(param)
    if case["has_bias"]:
        out["bias"] = dice.normal(size=(e, n)).astype(param)
    if case["num_experts"] is None:
        return {role: np.ascontiguousarray(x[0]) for role, x in out.items()}
    # one tensor scale an expert has the library's own shape, [E]
    return {role: x.reshape(e) if x.ndim == 2 and x.shape[1] == 1 else x for role, x in out.items()}


def _codes(dice: np.random.Generator, pick: Any, bits: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """All codes, none that is 0, exactly one 0 in the last expert, or runs of the middle code (a signed zero)."""
    how = pick(("all", "no zero", "one zero", "runs"))
    codes = dice.integers(0 if how == "all" else 1, 1 << bits, shape).astype(np.uint8)
    if how == "one zero":
        codes[-1, int(dice.integers(shape[1])), int(dice.integers(shape[2]))] = 0
    elif how == "runs":
        codes[:, int(dice.integers(shape[1])), :32] = 1 << (bits - 1)
    return codes


def _scales(dice: np.random.Generator, pick: Any, dtype: str | None, param: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype == "float8e8m0":
        middle, spread = pick(((127, 3), (127, 11), (120, 18), (110, 8), (140, 8), (127, 100)))
        rows = middle + dice.integers(-2, 3, (*shape[:-1], 1)) + dice.integers(-(spread // 2), spread // 2 + 1, shape)
        return np.clip(rows, 0, 254).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
    if dtype == "float8e5m3":
        return dice.integers(1, 248, shape).astype(np.uint8)
    stored = {"float8e4m3": ml_dtypes.float8_e4m3fn, "float8e5m2": ml_dtypes.float8_e5m2, "float32": np.float32, None: param}[dtype]
    return np.asarray(dice.uniform(-1, 1, shape).astype(np.float32).astype(stored))
