"""The layouts driven by golden vectors: one case, or one cell of the legality grid, through the product's own functions.

Facts: architecture.md 9.9; golden/README.md.
"""

from __future__ import annotations

from typing import Any

from humming_convert import layouts
from humming_convert.layouts import PackedLayer, Standard
from humming_convert.targets.environment import Environment, compiler_version
from humming_convert.targets.report import report
from humming_convert.targets.schema import input_form, weight_form
from humming_convert.targets.table import target_of

PARAM = {"bfloat16": "BF16", "float16": "F16"}
OTHER = {"bfloat16": "float16", "float16": "bfloat16"}  # the grid's `other16`


def pack(case: dict[str, Any], inputs: dict[str, Any]) -> PackedLayer:
    param = PARAM[case["param_dtype"]]
    layer = Standard(
        form=weight_form(case["weight_schema"], param),
        n=case["shape_n"],
        k=case["shape_k"],
        experts=case["num_experts"],
        stack_n=tuple(case["shape_n_stacks"]),
        tensors=inputs,
    )
    return layouts.prepare(
        layer,
        target_of(case["sm"], case["ppu"]),
        input_form(case["input_schema"], param),
        param_dtype=param,
        env=Environment(compiler_version(case["compiler"]), case["cubin_patch"], case["version"]),
        entry=case["entry"],
        pad_n=case["pad_n_to_multiple"],
        pad_k=case["pad_k_to_multiple"],
        e0m=case["convert_e0m"],
    )


def prepare(case: dict[str, Any], inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    packed = pack(case, inputs)
    return packed.recipe.config.as_dict() | dict(packed.recipe.flags), dict(packed.tensors)


def legality(cell: dict[str, Any], version: str) -> dict[str, Any]:
    param, (b_dtype, zero_point), scale, act = PARAM[cell["param_dtype"]], cell["weight"], cell["scale"], cell["act"]
    weight = {
        "b_dtype": b_dtype,
        "bs_dtype": {"param": None, "other16": OTHER[cell["param_dtype"]]}.get(scale["dtype"], scale["dtype"]),
        "weight_scale_type": scale["type"],
        "weight_scale_group_size": scale["group_size"],
        "weight_scale_group_size_n": scale["group_size_n"],
        "weight_scale_2_type": scale["scale_2"],
        "has_zero_point": zero_point != "none",
        "is_fp_zero_point": zero_point == "fp",
    }
    activation = {
        "a_dtype": None if act["a_dtype"] == "none" else act["a_dtype"],
        "input_scale_group_size": act["group_size"],
        "input_scale_dtype": act["scale_dtype"],
        "input_quant_mode": act["quant_mode"],
    }
    return report(
        weight_form(weight, param),
        input_form(activation, param),
        target_of(cell["sm"], cell["ppu"]),
        Environment(compiler_version(cell["compiler"]), cell["cubin_patch"], version),
        param,
    )
