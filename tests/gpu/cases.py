"""Random layers that together show every way of reading a weight, every way of reading scales, and every mathematics of activations.

Out: (name, packed layer, Layer, Compute) of the legal combinations of targets, types, scales and activations, each kept only if it shows
something that no earlier one does. Shared by the GPU script and by CPU tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layer_maker import WEIGHTS, form, layer

from humming_convert.findings import Refused
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import Layer, UnknownLayer
from humming_convert.layouts import PackedLayer, prepare
from humming_convert.standard.numbers import MODEL_DTYPES
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import compatible
from humming_convert.targets.table import TARGETS

ACTS = (
    *("16", "fp8", "int8", "int4", "fp8:128", "int8:128", "mxfp8", "mxfp4", "nvfp4", "fp8:static", "int8:static"),
    *("e3m4", "e0m3", "fp8-e5m2", "fp8:32", "e0m3:16", "int4:128"),
)
SCALES = (  # kind, columns, dtype (None: the model's)
    *(("group", 128, None), ("group", 32, "float8e8m0"), ("group", 16, "float8e4m3"), ("group", 64, None), ("channel", 0, None)),
    *(("tensor", 0, "float32"), ("block", 64, "float32"), ("group", 64, "float8e5m3"), ("group", 64, "float8e5m2"), ("channel", 0, "float8e8m0")),
    *(("group", 96, None), ("group", 32, None), ("group", 16, "float8e8m0")),
)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    packed: PackedLayer
    layer: Layer
    compute: Compute


def shows(layer: Layer, compute: Compute) -> set[tuple[object, ...]]:
    """What a case shows: reading of codes, of scales, mathematics."""
    reading = (layer.family, layer.bits, layer.kind, layer.exponent, layer.map, layer.sign_flip, layer.swapped, bool(layer.experts))
    scales = (layer.scale_place, layer.scale_type, layer.ppu, layer.zero, layer.zero_width, layer.zero_groups, layer.scale_2, layer.half)
    c = compute
    acts = (c.act_mode, c.act_scale, c.act_second, c.act_exponent, c.act_mantissa, c.act_top, c.as_type, c.flush, layer.half)
    return {("codes", *reading), ("scales", *scales), ("acts", *acts)}


def combinations() -> Iterator[tuple[str, PackedLayer]]:
    env, seed = Environment((13, 0), True, "0.1.20"), 0
    for target in TARGETS:
        for param in ("BF16", "F16") if target.sm >= 80 else ("F16",):
            for weight in (*WEIGHTS, "float8e3m4", "int4", "int8"):
                for kind, k, dtype in SCALES:
                    plain = kind in ("group", "channel") and dtype is None
                    for zero in ("none", "int", "fp") if weight.startswith("uint") and plain else ("none",):
                        for second in ("none", "tensor", "channel") if dtype == "float8e4m3" else ("none",):
                            f = form(weight, kind, k, dtype or MODEL_DTYPES[param], zero, second, k if kind == "block" else 0)
                            for act in ACTS:
                                name = {"BF16": "bf16", "F16": "fp16"}[param] if act == "16" else act
                                given = activation(name, param, static=act == "nvfp4" and seed % 2 == 0)
                                if not compatible(f, given, target, env, param).ok:
                                    continue
                                seed += 1
                                made = layer(
                                    f, *((128, 192) if k == 96 else (64 if f.scale.n else 96, 256)), experts=2 if seed % 3 == 0 else None,
                                    param=param, bias=seed % 4 == 0, seed=seed, lowest=seed % 5 != 0, spread=3 if seed % 2 else 18,
                                )  # fmt: skip
                                try:
                                    packed = prepare(
                                        made, target, given, param_dtype=param, env=env, entry="vllm", pad_n=64 * (1 + seed % 2), pad_k=128
                                    )
                                except Refused:
                                    continue
                                text = f"{target} {weight} {kind}{k or ''}:{dtype or param} zero={zero} second={second} act={act}"
                                yield text, packed


def cases(sm: int) -> Iterator[Case]:
    """For a GPU of `sm`: the layouts of all targets, multiplied with what this GPU has."""
    seen: set[tuple[object, ...]] = set()
    for name, packed in combinations():
        recipe = packed.recipe
        config = recipe.config.as_dict()
        try:
            mine = Layer.of(config, recipe.flags, recipe.pair.target.ppu)
            compute = Compute.of(mine, config, sm=sm)
        except UnknownLayer as unknown:
            raise AssertionError(f"{name}: {unknown}") from unknown
        found = shows(mine, compute)
        if not found <= seen:
            seen |= found
            yield Case(name, packed, mine, compute)
