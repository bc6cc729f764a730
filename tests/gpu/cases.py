"""Random layers that together show every way of reading a weight, every way of reading scales, and every mathematics of activations.

`selected.json` lists them: the legal combinations of targets, types, scales and activations of which each shows something that no
earlier one does. `python tests/gpu/cases.py` makes it again (minutes). Shared by the GPU script and by CPU tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SELECTED = HERE / "selected.json"
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent / "layouts"), str(HERE.parent.parent)]

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
from layer_maker import WEIGHTS, form, layer  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from humming_convert.findings import Refused  # noqa: E402
from humming_convert.gemm.compute import Compute  # noqa: E402
from humming_convert.gemm.layer import Layer  # noqa: E402
from humming_convert.layouts import Answers, LayerRecipe, PackedLayer, prepare, resolve  # noqa: E402
from humming_convert.standard.forms import InputForm, WeightForm  # noqa: E402
from humming_convert.standard.numbers import MODEL_DTYPES  # noqa: E402
from humming_convert.targets.activations import activation  # noqa: E402
from humming_convert.targets.environment import Environment  # noqa: E402
from humming_convert.targets.legality import compatible  # noqa: E402
from humming_convert.targets.table import TARGETS, Target, target_of  # noqa: E402

ENV = Environment((13, 0), True, "0.1.20")
ACTS = (
    *("16", "fp8", "int8", "int4", "fp8:128", "int8:128", "mxfp8", "mxfp4", "nvfp4", "fp8:static", "int8:static"),
    *("e3m4", "e0m3", "fp8-e5m2", "fp8:32", "e0m3:16", "int4:128"),
)
SCALES = (  # kind, columns, rows, dtype ("": the model's); rows = 1 asks for integer scales
    *(("group", 128, 0, ""), ("group", 32, 0, "float8e8m0"), ("group", 16, 0, "float8e4m3"), ("group", 64, 0, ""), ("channel", 0, 0, "")),
    *(("tensor", 0, 0, "float32"), ("block", 64, 64, "float32"), ("group", 64, 0, "float8e5m3"), ("group", 64, 0, "float8e5m2")),
    *(("channel", 0, 0, "float8e8m0"), ("group", 96, 0, ""), ("group", 32, 0, ""), ("group", 16, 0, "float8e8m0"), ("group", 128, 1, "")),
)


@dataclass(frozen=True, slots=True)
class Spec:
    """One layer: all that it is made from."""

    sm: int
    ppu: bool
    param: str
    weight: str
    kind: str
    k: int
    rows: int
    dtype: str
    zero: str
    second: str
    act: str
    seed: int

    @property
    def name(self) -> str:
        target = "ppu" if self.ppu else f"sm{self.sm}"
        scale = f"{self.kind}{self.k or ''}{'i' if self.rows == 1 else ''}:{self.dtype or self.param}"
        return f"{target} {self.weight} {scale} zero={self.zero} second={self.second} act={self.act} #{self.seed}"

    def form(self) -> WeightForm:
        dtype = self.dtype or MODEL_DTYPES[self.param]
        return form(self.weight, self.kind, self.k, dtype, self.zero, self.second, self.rows)

    @property
    def target(self) -> Target:
        found = target_of(self.sm, self.ppu)
        assert found is not None
        return found

    @property
    def input(self) -> InputForm:
        name = {"BF16": "bf16", "F16": "fp16"}[self.param] if self.act == "16" else self.act
        return activation(name, self.param, static=self.act == "nvfp4" and self.seed % 2 == 0)

    @property
    def shape(self) -> tuple[int, int]:
        if self.kind == "block":
            return 2 * self.rows, 256
        return (128, 192) if self.k == 96 else (96, 256)

    @property
    def more(self) -> dict[str, Any]:
        seed = self.seed
        return {"experts": 2 if seed % 3 == 0 else None, "bias": seed % 4 == 0, "lowest": seed % 5 != 0, "spread": 3 if seed % 2 else 18}

    @property
    def where(self) -> dict[str, Any]:
        return {"param_dtype": self.param, "env": ENV, "entry": "vllm", "pad_n": 64 * (1 + self.seed % 2), "pad_k": 128, "e0m": True}

    def recipe(self) -> LayerRecipe | None:
        """Without the data: what `packed` comes to is known from `more`. None where the combination is not legal."""
        f, more, (n, k) = self.form(), self.more, self.shape
        if not compatible(f, self.input, self.target, ENV, self.param).ok:
            return None
        answers = Answers(
            no_zero_code=not more["lowest"],
            tensor_scales_equal=True,
            fp16_range=False,
            range_fit=more["spread"] > 11,
            zero_points_shift=False,
        )
        about = {"n": n, "k": k, "experts": more["experts"], "stack_n": (n,), "form": f, "input": self.input, "target": self.target}
        try:
            return resolve(**about, has_bias=more["bias"], answers=answers, **self.where)
        except Refused:
            return None

    def packed(self) -> PackedLayer:
        made = layer(self.form(), *self.shape, param=self.param, seed=self.seed, **self.more)
        if self.dtype == "float8e5m2":  # the maker's scales have no such type
            scale = np.abs(made.tensors["weight_scale"].astype(np.float32)).astype(ml_dtypes.float8_e5m2)
            made = replace(made, tensors={**made.tensors, "weight_scale": scale})
        return prepare(made, self.target, self.input, **self.where)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    recipe: LayerRecipe
    layer: Layer
    compute: Compute

    @classmethod
    def of(cls, spec: Spec, recipe: LayerRecipe, sm: int, rounds: bool = False) -> Case:
        """For a GPU of `sm`: the layout of any target, multiplied with what this GPU has. rounds: by kernels that serve."""
        config = recipe.config.as_dict()
        mine = Layer.of(config, recipe.flags, recipe.pair.target.ppu)
        return cls(spec.name, recipe, mine, Compute.of(mine, config, sm=sm, rounds=rounds))

    def shows(self) -> set[tuple[object, ...]]:
        """Reading of codes, reading of scales, mathematics."""
        x, c = self.layer, self.compute
        codes = (x.family, x.bits, x.kind, x.exponent, x.map, x.sign_flip, x.swapped, bool(x.experts))
        scales = (x.scale_place, x.scale_type, x.ppu, x.zero, x.zero_width, x.zero_groups, x.scale_2, x.half)
        acts = (c.act_mode, c.act_scale, c.act_second, c.act_exponent, c.act_mantissa, c.act_top, c.as_type, c.flush, x.half)
        return {("codes", *codes), ("scales", *scales), ("acts", *acts)}


def specs() -> Iterator[Spec]:
    seed = 0
    for target in TARGETS:
        for param in ("BF16", "F16") if target.sm >= 80 else ("F16",):
            for weight in (*WEIGHTS, "float8e3m4", "int4", "int8"):
                for kind, k, rows, dtype in SCALES:
                    grouped = kind in ("group", "channel") and not rows
                    for zero in ("none", "int", "fp") if weight.startswith("uint") and grouped else ("none",):
                        for second in ("none", "tensor", "channel") if dtype == "float8e4m3" and zero == "none" else ("none",):
                            for act in ACTS:
                                seed += 1
                                yield Spec(target.sm, target.ppu, param, weight, kind, k, rows, dtype, zero, second, act, seed)


def select() -> list[Spec]:
    seen: set[tuple[object, ...]] = set()
    out = []
    for spec in specs():
        if (recipe := spec.recipe()) is not None and not (found := Case.of(spec, recipe, 90).shows()) <= seen:
            seen |= found
            out.append(spec)
    return out


def blocks(seed: int, rows: int, act: str) -> Spec:
    return Spec(90, False, "BF16", "float8e4m3", "block", 128, rows, "float32", "none", "none", act, seed)


# Scales of W in blocks beside those of activations: what `shows` sees of either, other layers show too, but not how the two are multiplied
BLOCKS = (blocks(1, 128, "fp8:128"), blocks(3, 128, "fp8:128"), blocks(2, 64, "fp8:128"), blocks(4, 128, "fp8"))


def selected() -> list[Spec]:
    return [*(Spec(*row) for row in json.loads(SELECTED.read_text())), *BLOCKS]


def fast_specs() -> dict[str, list[Spec]]:
    """Layers that show each way in which a fast family multiplies: family -> layers of the GPU that it is for."""

    def of(sm: int, seed: int, weight: str, kind: str, k: int, dtype: str, zero: str, act: str, param: str = "BF16") -> Spec:
        return Spec(sm, False, param, weight, kind, k, 0, dtype, zero, "none", act, seed)

    mx = ("group", 32, "float8e8m0", "none")
    return {
        "cluster_sm90a": [
            of(90, 1, "uint4", "group", 128, "", "none", "16"),
            of(90, 2, "uint4", "group", 128, "", "int", "16", "F16"),
            of(90, 4, "uint3", "group", 64, "", "none", "16"),
            of(90, 5, "uint8", "group", 128, "", "none", "16"),
            of(90, 7, "float4e2m1", *mx, "16"),
            of(90, 8, "float4e2m1", "group", 16, "float8e4m3", "none", "16", "F16"),
            of(90, 5, "uint4", "group", 128, "", "none", "fp8"),
            of(90, 7, "float4e2m1", *mx, "fp8"),
            of(90, 7, "float8e4m3", "channel", 0, "", "none", "fp8"),
            of(90, 8, "uint4", "group", 64, "", "int", "int8"),
            of(90, 10, "uint8", "channel", 0, "", "none", "int8"),
            of(90, 11, "float8e4m3", "channel", 0, "", "none", "fp8:128"),
        ],
        "wgmma_sm90a": [
            of(90, 1, "uint4", "group", 128, "", "none", "16"),
            of(90, 2, "uint4", "group", 128, "", "int", "16", "F16"),
            of(90, 5, "float4e2m1", *mx, "16"),
            of(90, 4, "float8e4m3", "channel", 0, "", "none", "16"),
            of(90, 5, "uint4", "group", 128, "", "none", "fp8"),
            of(90, 7, "float4e2m1", *mx, "fp8"),
            of(90, 7, "float8e4m3", "channel", 0, "", "none", "fp8"),
            of(90, 8, "uint4", "group", 128, "", "int", "int8"),
            of(90, 10, "uint8", "channel", 0, "", "none", "int8"),
        ],
        "mma_sm80": [
            of(80, 1, "uint4", "group", 128, "", "none", "16"),
            of(80, 2, "uint4", "group", 128, "", "int", "16", "F16"),
            of(80, 3, "uint4", "group", 128, "", "fp", "16"),
            of(80, 5, "float4e2m1", *mx, "16"),
            of(80, 4, "float8e4m3", "channel", 0, "", "none", "16"),
            of(89, 4, "float8e4m3", "channel", 0, "", "none", "16", "F16"),
            of(80, 8, "uint4", "group", 128, "", "int", "int8"),
            of(80, 10, "uint8", "channel", 0, "", "none", "int8"),
            of(80, 11, "uint4", "group", 128, "", "none", "int4"),
            of(89, 5, "uint4", "group", 128, "", "none", "fp8"),
            of(89, 7, "float8e4m3", "channel", 0, "", "none", "fp8"),
        ],
        "mx_sm120a": [
            *(of(120, i, w, *mx, "mxfp8") for i, w in enumerate(("float8e4m3", "float8e5m2", "float4e2m1", "float6e2m3", "float6e3m2"), 1)),
            of(120, 7, "float4e2m1", *mx, "mxfp4"),
        ],
        "umma_sm100a": [
            of(100, 1, "uint4", "group", 128, "", "none", "16"),
            of(100, 2, "uint4", "group", 128, "", "int", "16", "F16"),
            of(100, 5, "float4e2m1", *mx, "16"),
        ],
    }


if __name__ == "__main__":
    rows = [json.dumps(list(asdict(spec).values())) for spec in select()]
    SELECTED.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{len(rows)} layers")
