"""Standard layers in memory, from known numbers, and back to numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.checkpoint.folder import Checkpoint
from humming_convert.checkpoint.tensors import DTYPES, NAMES, TensorView
from humming_convert.standard.dequantize import dequantized
from humming_convert.standard.expr import CodeBlock, Context, Expr, Stored, Weight
from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import number
from humming_convert.standard.packing import stream_pack
from humming_convert.standard.packing_ct import zero_words

Array = NDArray[Any]
SCALE_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F8_E4M3": "float8e4m3", "F8_E8M0": "float8e8m0"}


@dataclass
class Memory:
    """Arrays by name, as if each were a file of its own."""

    arrays: dict[str, Array] = field(default_factory=dict)
    seed: int = 0

    def store(self, name: str, array: Array) -> TensorView:
        array = np.ascontiguousarray(array)
        self.arrays[name] = array
        return TensorView(name=name, file=Path(name), dtype=NAMES[array.dtype], shape=array.shape, offset=0, nbytes=array.nbytes)

    def read(self, view: TensorView) -> Array:
        raw = self.arrays[str(view.file)].reshape(-1).view(np.uint8)
        return raw[view.offset : view.offset + view.nbytes].view(view.numpy).reshape(view.shape)

    def context(self) -> Context:
        return Context(self.read, Meter())

    def rng(self) -> np.random.Generator:
        self.seed += 1
        return np.random.default_rng(self.seed)

    def layer(
        self,
        name: str,
        *,
        n: int = 32,
        k: int = 128,
        kind: str = "uint4",
        zeros: bool = False,
        scale: str = "group",
        group: int = 64,
        rows: int = 32,
        dtype: str = "BF16",
        scale_2: float | None = None,
        bias: bool = False,
        input_scale: float | None = None,
        g_idx: Array | None = None,
        low: int = 0,
        value: float | None = None,
    ) -> StandardLayer:
        """A layer of random codes. scale: group, channel, block (rows x group) or tensor (`value`); zeros: random zero points."""
        dice, t = self.rng(), number(kind)
        codes = dice.integers(low, 1 << t.bits, (n, k), np.uint8)
        if kind == "float8e4m3":
            codes = np.where(codes & 127 == 127, 0, codes).astype(np.uint8)
        shape = {"group": (n, k // group), "channel": (n, 1), "block": (-(-n // rows), -(-k // group)), "tensor": (1,)}[scale]
        dtype = "F32" if scale in ("block", "tensor") else dtype
        scales = dice.uniform(0.5, 2, shape).astype(np.float32) if value is None else np.full(shape, value, np.float32)
        views = {
            "weight": self.store(f"{name}.weight", stream_pack(codes, t.bits)),
            "weight_scale": self.store(f"{name}.weight_scale", scales.astype(DTYPES[dtype])),
        }
        tensors: dict[str, Expr] = {"weight_scale": Stored(views["weight_scale"])}
        if zeros:
            points = dice.integers(0, 1 << t.bits, (n, shape[-1]), np.uint8)
            tensors["zero_point"] = Stored(self.store(f"{name}.zero_point", zero_words(points, t.bits)))
        if scale_2 is not None:
            tensors["weight_scale_2"] = Stored(self.store(f"{name}.weight_scale_2", np.array([scale_2], np.float32)))
        if bias:
            tensors["bias"] = Stored(self.store(f"{name}.bias", dice.normal(size=n).astype(DTYPES["BF16"])))
        if input_scale is not None:
            tensors["input_scale"] = Stored(self.store(f"{name}.input_scale", np.array([input_scale], np.float32)))
        block = CodeBlock(part=name, view=views["weight"], packing="rows", bits=t.bits, n=n, k=k)
        tensors["weight"] = Weight(bits=t.bits, n=n, k=k, experts=None, blocks=(block,))
        size = group if scale in ("group", "block") else 0
        form = ScaleForm(kind=scale, dtype=SCALE_NAMES[dtype], k=size, n=rows if scale == "block" else 0)  # type: ignore[arg-type]
        return StandardLayer(
            name=name,
            family="humming",
            parts=(name,),
            n=n,
            k=k,
            experts=None,
            stack_n=(n,),
            form=WeightForm(number=t, scale=form, scale_2="none" if scale_2 is None else "tensor", zero_point="int" if zeros else "none"),
            tensors=tensors,
            source=tuple(views.values()),
            facts={} if g_idx is None else {"g_idx": self.store(f"{name}.g_idx", g_idx.astype(np.int32))},
        )

    def numbers(self, layer: StandardLayer, expert: int | None = None) -> NDArray[np.float64]:
        """[n, k] float64 of a layer, or of one of its experts."""
        context = self.context()
        weight = layer.tensors["weight"]
        assert isinstance(weight, Weight)
        small = {role: e.evaluate(context) for role, e in layer.tensors.items() if role in ("weight_scale", "zero_point", "weight_scale_2")}
        if layer.experts is not None:
            assert expert is not None
            small = {role: x[expert] for role, x in small.items()}
        codes = weight.expert_codes(context, expert or 0)
        return dequantized(layer.form, codes, small, layer.stack_n, slice(0, layer.n))

    def values(self, expr: Expr) -> Array:
        return np.asarray(expr.evaluate(self.context()))


def checkpoint(config: Mapping[str, Any], plain: Mapping[str, tuple[int, ...]] | None = None) -> Checkpoint:
    """A checkpoint of nothing but a config and the shapes of plain tensors (BF16)."""
    tensors = {
        name: TensorView(name=name, file=Path("x"), dtype="BF16", shape=shape, offset=0, nbytes=2 * prod(shape))
        for name, shape in (plain or {}).items()
    }
    return Checkpoint(
        folder=Path("x"),
        name="x",
        revision=None,
        config=config,
        sections=(),
        tensors=tensors,
        weights=(),
        others=(),
        dtype="BF16",
        declared_dtype="bfloat16",
    )


def names(layers: Iterable[StandardLayer]) -> list[str]:
    return [layer.name for layer in layers]
