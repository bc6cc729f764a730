"""The layouts driven by golden vectors: one case, or one cell of the legality grid, through the product's own functions.

Facts: architecture.md 9.9; golden/README.md.
"""

from __future__ import annotations

from typing import Any

from humming_convert.layouts.prepare import Standard
from humming_convert.layouts.prepare import prepare as prepare_layer
from humming_convert.targets.environment import Environment, compiler_version
from humming_convert.targets.schema import input_form, weight_form
from humming_convert.targets.table import target_of

PARAM = {"bfloat16": "BF16", "float16": "F16"}


def prepare(case: dict[str, Any], inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    param = PARAM[case["param_dtype"]]
    layer = Standard(
        form=weight_form(case["weight_schema"], param),
        n=case["shape_n"],
        k=case["shape_k"],
        experts=case["num_experts"],
        stack_n=tuple(case["shape_n_stacks"]),
        tensors=inputs,
    )
    packed = prepare_layer(
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
    return packed.recipe.config.as_dict() | dict(packed.recipe.flags), dict(packed.tensors)
