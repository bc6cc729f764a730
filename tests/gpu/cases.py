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

HERE = Path(__file__).resolve().parent
SELECTED = HERE / "selected.json"
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent / "layouts"), str(HERE.parent.parent)]

from layer_maker import WEIGHTS, form, layer  # noqa: E402

from humming_convert.findings import Refused  # noqa: E402
from humming_convert.gemm.compute import Compute  # noqa: E402
from humming_convert.gemm.layer import Layer  # noqa: E402
from humming_convert.layouts import PackedLayer, prepare  # noqa: E402
from humming_convert.standard.forms import WeightForm  # noqa: E402
from humming_convert.standard.numbers import MODEL_DTYPES  # noqa: E402
from humming_convert.targets.activations import activation  # noqa: E402
from humming_convert.targets.environment import Environment  # noqa: E402
from humming_convert.targets.legality import compatible  # noqa: E402
from humming_convert.targets.table import TARGETS, target_of  # noqa: E402

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

    def packed(self) -> PackedLayer | None:
        """None where the combination is not legal."""
        target, f, seed = target_of(self.sm, self.ppu), self.form(), self.seed
        assert target is not None
        name = {"BF16": "bf16", "F16": "fp16"}[self.param] if self.act == "16" else self.act
        given = activation(name, self.param, static=self.act == "nvfp4" and seed % 2 == 0)
        if not compatible(f, given, target, ENV, self.param).ok:
            return None
        n, k = (128, 192) if self.k == 96 else (64 if self.kind == "block" else 96, 256)
        more = {"experts": 2 if seed % 3 == 0 else None, "bias": seed % 4 == 0, "lowest": seed % 5 != 0, "spread": 3 if seed % 2 else 18}
        made = layer(f, n, k, param=self.param, seed=seed, **more)
        try:
            return prepare(made, target, given, param_dtype=self.param, env=ENV, entry="vllm", pad_n=64 * (1 + seed % 2), pad_k=128)
        except Refused:
            return None


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    packed: PackedLayer
    layer: Layer
    compute: Compute

    @classmethod
    def of(cls, spec: Spec, packed: PackedLayer, sm: int) -> Case:
        """For a GPU of `sm`: the layout of any target, multiplied with what this GPU has."""
        config = packed.recipe.config.as_dict()
        mine = Layer.of(config, packed.recipe.flags, packed.recipe.pair.target.ppu)
        return cls(spec.name, packed, mine, Compute.of(mine, config, sm=sm))

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
        if (packed := spec.packed()) is not None and not (found := Case.of(spec, packed, 90).shows()) <= seen:
            seen |= found
            out.append(spec)
    return out


def selected() -> list[Spec]:
    return [Spec(*row) for row in json.loads(SELECTED.read_text())]


if __name__ == "__main__":
    rows = [json.dumps(list(asdict(spec).values())) for spec in select()]
    SELECTED.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{len(rows)} layers")
