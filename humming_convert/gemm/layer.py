"""The layer configuration: what the bytes of a packed layer are, for `struct Layer` of the templates (config.cuh mirrors this file).

In: a layer's `config` and `flags` as the manifest stores them.  Out: a Layer; UnknownLayer where the templates have no words for it.
Facts: layouts.md 4.3 (place), 5.0 (maps), 6 (scales), 7 (zero points), 11 (shapes). Written from the flags alone, apart from `layouts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from humming_convert.standard.numbers import NumberType, number

HALVES = {"float16": "f16", "bfloat16": "bf16"}
SCALE_TYPES = {
    "float32": "f32",
    "float8e8m0": "e8m0",
    "float8e4m3": "e4m3",
    "float8e5m2": "e5m2",
    "float8e5m3": "e5m3",
}
SPECIAL = {"float8e4m3": "e4m3_nan", "float8e5m2": "ieee"}  # every other weight type has numbers only (layouts.md 1)


class UnknownLayer(Exception):
    """The templates cannot read this layer; the text says which field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Fields of `struct Layer`, under the same names.

    n, k: without padding.  group_k: columns that share a weight scale (0: all).  groups: rows of the zero point tensor.
    expert_words, expert_scales: elements of one expert.  row_words: words of a row of the weight.
    """

    n: int
    k: int
    shape_n: int
    shape_k: int
    experts: int
    bits: int
    act_bits: int
    kind: str
    exponent: int
    mantissa: int
    has_sign: bool
    special: str
    place: str
    interleave: str
    swapped: bool
    ppu: bool
    row_words: int
    expert_words: int
    sign_flip: bool
    map: str
    map_group: int
    scale_place: str
    scale_type: str
    fused_plus: int
    group_k: int
    group_n: int
    expert_scales: int
    zero: str
    zero_width: int
    zero_groups: int
    groups: int
    scale_2: str
    has_bias: bool
    half: str

    @property
    def family(self) -> str:
        """Name of the layout family, for tables."""
        inner = {"standard": f"-{self.interleave}", "packed_k": f"-{self.interleave}"}.get(self.place, "")
        return f"{self.place}{inner}-a{self.act_bits}" + ("-ppu" if self.ppu else "")

    @classmethod
    def of(cls, config: Mapping[str, Any], flags: Mapping[str, Any], ppu: bool = False) -> Layer:
        c = config
        a, b = number(c["a_dtype"]), number(c["b_dtype"])
        n, k, gw = int(c["shape_n"]), int(c["shape_k"]), int(c["weight_scale_group_size"])
        if c["c_dtype"] not in HALVES:
            raise UnknownLayer(f"c_dtype {c['c_dtype']} is not of 16 bits")
        place, interleave, swapped = _place(c, flags, a, b)
        zero = "none" if not c["has_zero_point"] else "floating" if c["is_fp_zero_point"] else "integer"
        if zero == "integer" and not b.is_integer:
            raise UnknownLayer(f"integer zero points beside {b}")
        groups = k // gw if gw else 1
        map_ = _map(c, place, a, b, zero)
        wide_k = -(-k // 128) * 128 if place == "raw" and a.bits == 8 and b.bits < 8 else k
        rows_words = {
            "standard": (k * a.bits // 256, n * 8 * b.bits // a.bits),
            "packed_k": (k // 64, n * 2 * b.bits),
            "raw": (n, wide_k * b.bits // 32),
            "flat": (n, k * b.bits // 32),
        }[place]
        scale_place = _scale_place(c, flags, a)
        scale_elements = {
            "tensor": 1,
            "block": groups * (n // max(1, int(c["weight_scale_group_size_n"]))),
            "umma": -(-groups // 4) * 4 * (-(-n // 128) * 128),
        }
        return cls(
            n=n - int(c["pad_shape_n"]),
            k=k - int(c["pad_shape_k"]),
            shape_n=n,
            shape_k=k,
            experts=int(c["num_experts"]),
            bits=b.bits,
            act_bits=a.bits,
            kind="offset_binary" if b.is_integer else "floating",
            exponent=b.exponent,
            mantissa=b.mantissa,
            has_sign=b.signed,
            special=SPECIAL.get(b.name, "none"),
            place=place,
            interleave=interleave,
            swapped=swapped,
            ppu=ppu,
            row_words=rows_words[1],
            expert_words=rows_words[0] * rows_words[1],
            sign_flip=bool((a.is_integer and b.is_integer and a.bits == b.bits) or flags["use_ldmatrix_dequant"]),
            map=map_,
            map_group=k // groups if map_ == "zero_point" else 1,
            scale_place=scale_place,
            scale_type=_scale_type(c, flags),
            fused_plus=1 if c["use_fused_e8m0_scale"] and a.name == "float8e4m3" else 0,
            group_k=gw if c["weight_scale_type"] in ("group", "block") else 0,
            group_n=int(c["weight_scale_group_size_n"]) if c["weight_scale_type"] == "block" else 0,
            expert_scales=scale_elements.get(scale_place, groups * n),
            zero=zero,
            zero_width=(4 if b.bits <= 4 else 8) if zero == "integer" else 0,
            zero_groups=max(1, 64 // gw) if zero == "integer" and flags["use_block_scaled_mma"] and a.bits == 4 and gw else 1,
            groups=groups,
            scale_2=c["weight_scale_2_type"] or "none",
            has_bias=bool(c["has_bias"]),
            half=HALVES[c["c_dtype"]],
        )


def _place(c: Mapping[str, Any], flags: Mapping[str, Any], a: NumberType, b: NumberType) -> tuple[str, str, bool]:
    """layouts.md 4.3, first match."""
    fused = bool(c["use_fused_e8m0_scale"])
    fused_mode = "mode2" if fused and a.name == "float8e4m3" else "mode3"
    if flags["use_raw_weight"]:
        return "raw", "mode3", False
    if flags["use_flat_weight"]:
        return "flat", "mode3", False
    if a.bits == b.bits:
        raise UnknownLayer(f"{b} weights beside {a} activations that are neither raw nor flat")
    if c["use_packed_k_layout"]:
        return "packed_k", fused_mode, not fused
    if flags["use_native_dequant"]:
        return "standard", "native", False
    return "standard", fused_mode, False


def _map(c: Mapping[str, Any], place: str, a: NumberType, b: NumberType, zero: str) -> str:
    """layouts.md 5.0 b."""
    if place not in ("standard", "packed_k") or not b.is_integer or a.is_integer or zero == "floating":
        return "none"
    with_zero = zero == "integer"
    if a.bits < 16 or (a.name == "bfloat16" and b.bits > (6 if with_zero else 7)):
        return "zero_point" if with_zero else "midpoint"
    return "none"


def _scale_place(c: Mapping[str, Any], flags: Mapping[str, Any], a: NumberType) -> str:
    """layouts.md 6, first match."""
    kind = c["weight_scale_type"]
    if kind in ("tensor", "block"):
        return str(kind)
    if flags["use_block_scaled_mma"] and kind == "group":
        if int(c["sm_version"]) // 10 in (10, 11):
            return "umma"
        return "mx1" if 256 // a.bits == c["weight_scale_group_size"] else "mx4"
    return "on_c" if flags["should_apply_bs_on_c"] else "normal"


def _scale_type(c: Mapping[str, Any], flags: Mapping[str, Any]) -> str:
    if c["weight_scale_type"] in ("tensor", "block"):
        return "f32"
    if c["use_fused_e8m0_scale"]:
        return "fused_e8m0"
    if c["use_int_weight_scale"]:
        return "int16"
    if c["bs_dtype"] == "float8e8m0" and c["c_dtype"] == "float16" and not flags["use_block_scaled_mma"]:
        return "rebiased_e8m0"
    if c["bs_dtype"] in ("float16", "bfloat16", "float32"):  # stored in the model dtype, whichever is named (layouts.md 1)
        return HALVES[c["c_dtype"]]
    return SCALE_TYPES[c["bs_dtype"]]
