"""What a packed layer stands for, in float64, read by `layouts` (numpy) and not by the templates.

In: a stored configuration and packed tensors.  Out: weights of an expert [n, k] without padding, biases.
Facts: layouts.md 5 to 8; the place of everything is derived by `layouts.resolve` from the pair, not from the stored flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.layouts import zero_points
from humming_convert.layouts.address import sample_codes, standard_codes
from humming_convert.layouts.orders import order_c
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.layouts.reread import stored_pair
from humming_convert.layouts.resolve import late_maps, place_of, scale_place, weight_shape, zero_layout
from humming_convert.layouts.scales import normal_back, unplace_scale
from humming_convert.layouts.weights import WeightAux, unpack_weight
from humming_convert.standard.numbers import scale_values, values
from humming_convert.targets.environment import Environment
from humming_convert.targets.pair import Pair, use_block_scaled_mma
from humming_convert.targets.table import Target

Array = NDArray[Any]
F64 = NDArray[np.float64]
Rows = slice | NDArray[np.int64]
ALL = slice(None)


@dataclass(frozen=True)
class Reference:
    """config: as stored.  tensors: packed, by role."""

    config: Mapping[str, Any]
    target: Target
    env: Environment
    tensors: Mapping[str, Array]

    @cached_property
    def pair(self) -> Pair:
        c = self.config
        return replace(stored_pair(c, self.target, self.env), fused=c["use_fused_e8m0_scale"], int_scale=c["use_int_weight_scale"])

    @cached_property
    def recipe(self) -> WeightRecipe:
        p, n, k = self.pair, int(self.config["shape_n"]), int(self.config["shape_k"])
        place, interleave, swapped = place_of(p, n)
        maps = late_maps(p, place)
        return WeightRecipe(
            bits=p.b.bits,
            act_bits=p.a.bits,
            n=n,
            k=k,
            pad_n=0,
            pad_k=0,
            maps=maps,
            place=place,
            interleave=interleave,
            swapped=swapped,
            ppu=self.target.ppu and place != "flat",
            group=p.gw if p.fused else k // self.groups if "int_to_float_zp" in maps else 0,
            shape=weight_shape(p, place, n, k),
        )

    @property
    def groups(self) -> int:
        return int(self.config["shape_k"]) // self.pair.gw if self.pair.gw else 1

    @property
    def n(self) -> int:
        return int(self.config["shape_n"]) - int(self.config["pad_shape_n"])

    @property
    def k(self) -> int:
        return int(self.config["shape_k"]) - int(self.config["pad_shape_k"])

    def expert(self, role: str, e: int) -> Array:
        x = self.tensors[role]
        return x[e] if self.config["num_experts"] else x

    def spread(self, x: Array) -> Array:
        """[N', G] -> [N', K']."""
        return np.repeat(x, int(self.config["shape_k"]) // x.shape[1], axis=1)

    def scales(self, e: int, rows: Rows = ALL) -> F64:
        """[N' or 1, K' or 1]; rows: of N', where there is one for each."""
        p, n = self.pair, int(self.config["shape_n"])
        if p.kind == "tensor":
            x = self.tensors["weight_scale"].reshape(-1)[e if self.config["num_experts"] else 0]
            return np.asarray(x, np.float64).reshape(1, 1)
        stored_rows = n // p.gn if p.kind == "block" and p.gn else 1 if p.kind == "block" else n
        stored = unplace_scale(self.expert("weight_scale", e), scale_place(p), self.target.ppu, stored_rows, self.groups)
        stored = stored[np.arange(n)[rows] // (n // stored_rows)] if p.kind == "block" else stored[rows]
        if p.fused:
            plus = 1 if p.a.name == "float8e4m3" else 0
            x = np.exp2(stored.view(np.uint8).astype(np.float64) + 1 - plus)
        elif p.int_scale:
            x = stored.view(np.int16).astype(np.float64)
        elif p.kind == "block":
            x = stored.astype(np.float64)
        elif p.bs == "float8e8m0" and p.c.name == "float16" and not use_block_scaled_mma(p):
            # S7: the upper bits of a float16, as the library's kernels read them: 0 where the exponent field is 0
            x = (stored.view(np.uint8).astype(np.uint16) << 7).view(np.float16).astype(np.float64)
        else:
            x = scale_values(stored, p.bs)
        return self.spread(x)

    def integer_zeros(self, e: int = 0) -> Array:
        """[N', G], padding included."""
        width, joined = zero_layout(self.pair, int(self.config["shape_k"]))
        return zero_points.integer_back(self.expert("zero_point", e), width, joined, self.target.ppu)

    def weights(self, e: int = 0) -> F64:
        """[n, k] of one expert."""
        zero = self._integer_zeros(e)
        codes = unpack_weight(self.recipe, self.expert("weight", e), WeightAux(zero=zero))
        return np.asarray(self._values(e, codes, zero, ALL)[: self.n, : self.k])

    def rows(self, e: int, rows: NDArray[np.int64]) -> F64:
        """[len(rows), k] of one expert, each code found by the address formula; what a few rows cost does not depend on n."""
        zero = self._integer_zeros(e)
        columns = np.arange(int(self.config["shape_k"]))
        words = self.expert("weight", e)
        codes = []
        for row in rows:
            at = np.full(columns.size, row)
            placed = sample_codes(self.recipe, words, at, columns)
            codes.append(standard_codes(self.recipe, placed, at, columns, WeightAux(zero=zero)))
        return np.asarray(self._values(e, np.stack(codes), zero, rows)[:, : self.k])

    def _integer_zeros(self, e: int) -> Array | None:
        return self.integer_zeros(e) if self.pair.zero_point == "int" else None

    def _values(self, e: int, codes: Array, zero: Array | None, rows: Rows) -> F64:
        """What codes of these rows stand for. zero: integer zero points of all rows."""
        p, n = self.pair, int(self.config["shape_n"])
        if p.zero_point == "fp":
            zero = normal_back(self.expert("zero_point", e), self.target.ppu).astype(np.float64)
        if zero is not None:
            zero = self.spread(zero[rows].astype(np.float64))
        if zero is not None and p.b.is_integer:
            value = codes.astype(np.float64) - zero
        else:
            value = values(p.b.name)[codes]
            if zero is not None:
                value = value - zero
        value = value * self.scales(e, rows)
        if p.scale_2 == "tensor":
            value = value * float(self.tensors["weight_scale_2"].reshape(-1)[e if self.config["num_experts"] else 0])
        elif p.scale_2 == "channel":
            value = value * order_c(self.expert("weight_scale_2", e).reshape(n)).astype(np.float64)[rows, None]
        return np.asarray(value)

    def bias(self, e: int = 0) -> F64:
        if "bias" not in self.tensors:
            return np.zeros(self.n)
        return np.asarray(order_c(self.expert("bias", e)).astype(np.float64)[: self.n])
