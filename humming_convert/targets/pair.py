"""A weight form times an activation on a target, and the flags that follow from it.

`Pair` holds the few facts that the library's flags read; each flag is a function of its name.
Facts: layouts.md 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from humming_convert.standard.forms import InputForm, InputMode, ScaleKind, WeightForm
from humming_convert.standard.numbers import MODEL_DTYPES, NumberType, number
from humming_convert.targets.environment import Environment
from humming_convert.targets.table import Target

FP8 = ("float8e4m3", "float8e5m2", "float8e3m4")
FP4 = ("float4e2m1", "float4e0m3")
UNDOCUMENTED = ("float8e3m4", "float4e0m3")
E8M0, E4M3 = "float8e8m0", "float8e4m3"


class Pair(Struct, frozen=True, kw_only=True):
    """a, b: number types of activation and weight.  c: output, the model dtype.  bs, as_: scale dtypes (`as_` None: unset).

    kind, gw, gn: weight scale and its group along K and N.  gi: activation group.  scale_2, zero_point: as in WeightForm.
    fused, int_scale: use_fused_e8m0_scale, use_int_weight_scale; known once configured.
    """

    target: Target
    env: Environment
    a: NumberType
    b: NumberType
    c: NumberType
    bs: str
    kind: ScaleKind
    gw: int = 0
    gn: int = 0
    scale_2: Literal["none", "tensor", "channel"] = "none"
    zero_point: Literal["none", "int", "fp"] = "none"
    mode: InputMode = "none"
    gi: int = 0
    as_: str | None = None
    fused: bool = False
    int_scale: bool = False


def unsigned(t: NumberType) -> NumberType:
    """intB of a schema is uintB (layouts.md 1)."""
    return number(f"uint{t.bits}") if t.is_integer else t


def pair_of(form: WeightForm, input: InputForm, target: Target, env: Environment, param_dtype: str) -> Pair:  # noqa: A002
    """The pair as asked for. `param_dtype`: `BF16` or `F16`."""
    return Pair(
        target=target,
        env=env,
        a=input.number,
        b=unsigned(form.number),
        c=number(MODEL_DTYPES[param_dtype]),
        bs="float32" if form.scale.kind == "block" else form.scale.dtype,
        kind=form.scale.kind,
        gw=form.scale.k,
        gn=form.scale.n,
        scale_2=form.scale_2,
        zero_point=form.zero_point,
        mode=input.mode,
        gi=input.group,
        as_=input.scale_dtype,
    )


def undocumented_usable(p: Pair) -> bool:
    """e3m4 and e0m3 operands run (on patched cubins)."""
    return p.env.cubin_patch and p.target.undocumented


def is_umma_supported(p: Pair) -> bool:
    if p.target.family != "umma":
        return False
    if p.a.bits == 16:
        return True
    plain = p.kind in ("channel", "tensor")
    if p.a.name in FP8:
        if p.gi == 0 and plain:
            return True
        group_a = p.gi == 0 or (p.gi == 32 and p.as_ in (None, E8M0))
        group_b = p.gw == 0 or (p.gw == 32 and p.bs == E8M0)
        return p.kind != "block" and group_a and group_b
    if p.a.name in FP4:
        if not (p.b.name in FP4 or p.b.is_integer) or p.kind == "block":
            return False
        g = p.gi or p.gw
        scale = (p.as_ or p.bs) if p.gi else p.bs
        known = g == 0 or (g, scale) in ((32, E8M0), (16, E8M0), (16, E4M3))
        return known and (not (p.gi and p.gw) or (p.gi == p.gw and p.as_ in (None, p.bs)))
    return p.a.name == "int8" and p.target.umma_int8 and p.b.is_integer and p.gi == 0 and plain


def mxmma_supported(p: Pair) -> bool:
    if p.target.family != "mxmma" or p.kind == "block":
        return False
    if p.mode == "dynamic_group_token" and not (p.a.name in FP4 and p.gi == 16):
        return False
    if p.kind == "group" and p.gi and p.gi != p.gw:
        return False
    plain = p.kind in ("channel", "tensor")
    if p.a.name in FP8:
        return p.gi in (0, 32) and (plain or (p.gw == 32 and p.bs == E8M0))
    if p.a.name in FP4:
        weights = plain or (p.gw == 16 and p.bs in (E8M0, E4M3)) or (p.gw == 32 and p.bs == E8M0)
        return not (p.a.name == "float4e0m3" and p.gw == 32) and p.gi in (0, 16, 32) and weights
    return False


def use_block_scaled_mma(p: Pair) -> bool:
    if mxmma_supported(p):
        return True
    if p.a.is_integer or p.a.bits > 8 or not (p.a.bits == 4 or p.gi or p.gw):
        return False
    return is_umma_supported(p)


def mma_scale_group_size(p: Pair) -> int:
    return p.gi or p.gw or (16 if "float4e0m3" in (p.a.name, p.b.name) else 32)


def use_ldmatrix_dequant(p: Pair) -> bool:
    if p.target.sm < 75 or p.target.ppu or p.zero_point != "none":
        return False
    if not p.b.is_integer or (p.a.name, p.b.bits) not in (("int8", 4), ("int4", 2)):
        return False
    return p.env.cubin_patch or (p.a.name == "int8" and p.target.sm >= 90 and p.env.compiler >= (13, 4))


def use_raw_weight(p: Pair) -> bool:
    if p.a.bits == p.b.bits:
        return p.target.ppu or is_umma_supported(p)
    return p.a.name in FP8 and p.b.name in ("float4e2m1", "float6e3m2", "float6e2m3") and is_umma_supported(p)


def use_flat_weight(p: Pair) -> bool:
    return use_ldmatrix_dequant(p) or (p.a.bits == p.b.bits and not p.target.ppu and not is_umma_supported(p))


_LOW_FLOATS = ("float4e2m1", "float6e3m2", "float6e2m3")
_NATIVE = (  # activation, first SM, first compiler, weights (layouts.md 4.2)
    ("float16", 89, (11, 8), ("float8e4m3", "float8e5m2")),
    ("float16", 100, (12, 7), _LOW_FLOATS),
    ("bfloat16", 100, (13, 2), (*_LOW_FLOATS, "float8e4m3", "float8e5m2")),
)


def use_native_dequant(p: Pair) -> bool:
    if p.target.family == "wgmma" or use_raw_weight(p) or use_flat_weight(p):
        return False
    return any(p.a.name == a and p.target.sm >= sm and p.env.compiler >= compiler and p.b.name in bs for a, sm, compiler, bs in _NATIVE)


def should_apply_bs_on_c(p: Pair) -> bool:
    if p.fused:
        return False
    if p.target.family == "mxmma" and use_block_scaled_mma(p):
        return p.kind == "channel"
    if p.target.ppu:
        return p.gw == 0 or p.a.bits != 16
    return p.gw == 0


def default_mma(p: Pair) -> str:
    if p.target.family == "wgmma" and p.a.name != "int4":
        return "wgmma"
    if p.target.family == "mxmma" and use_block_scaled_mma(p):
        return "mxmma"
    return "umma" if is_umma_supported(p) else "mma"


def supports_umma_split_async_loads(p: Pair) -> bool:
    """Information only; 0.1.20."""
    fits = use_raw_weight(p) and p.a.name == E4M3 and p.b.name == "float4e2m1" and p.as_ == p.bs == E8M0 and p.gi == p.gw == 32
    return fits and p.mode == "dynamic_group" and p.zero_point == "none"


def mma_b_dtype(p: Pair) -> NumberType:
    """The type that weights are turned into before the MMA."""
    a, b = p.a, p.b
    if (a.name in FP8 and b.name in FP8) or (a.name in FP4 and b.name in FP4):
        return b
    if a.name not in FP8 or b.bits >= 8:
        return a
    candidates: list[NumberType] = [a, number(E4M3), *([number("float8e3m4")] if undocumented_usable(p) else [])]
    for t in candidates:
        if b.is_integer:
            if b.bits <= t.mantissa + (1 if p.zero_point != "none" else 2):
                return t
        elif b.mantissa - (b.exponent == 0) <= t.mantissa and b.exponent <= t.exponent:
            return t
    return a


def use_packed_k_layout(p: Pair, n_padded: int) -> bool:
    """layouts.md 4.1, step 14. `n_padded`: N'."""
    if p.target.family != "wgmma" or use_raw_weight(p) or use_flat_weight(p):
        return False
    if p.a.bits != 8 or p.b.bits % 2 or 0 < p.gi < 128:
        return False
    return (p.gi >= 128 and n_padded % 64 == 0) if p.fused else p.gw == 128


def flags(p: Pair, n_padded: int) -> Mapping[str, Any]:
    """Every derived flag of a configured pair: those that shape bytes first."""
    out: dict[str, Any] = {
        "use_native_dequant": use_native_dequant(p),
        "use_ldmatrix_dequant": use_ldmatrix_dequant(p),
        "use_raw_weight": use_raw_weight(p),
        "use_flat_weight": use_flat_weight(p),
        "use_packed_k_layout": use_packed_k_layout(p, n_padded),
        "use_fused_e8m0_scale": p.fused,
        "use_int_weight_scale": p.int_scale,
        "use_block_scaled_mma": use_block_scaled_mma(p),
        "should_apply_bs_on_c": should_apply_bs_on_c(p),
        "mma_scale_group_size": mma_scale_group_size(p),
        "is_umma_supported": is_umma_supported(p),
        "mxmma_supported": mxmma_supported(p),
        "default_mma": default_mma(p),
        "mma_b_dtype": mma_b_dtype(p).name,
    }
    if p.env.humming_version != "0.1.19":
        out["supports_umma_split_async_loads"] = supports_umma_split_async_loads(p)
    return out


def as_integer(p: Pair) -> Pair:
    """For integer activations an e0m weight counts as the integer of its width (layouts.md 2 S2a, 10.1)."""
    return replace(p, b=number(f"uint{p.b.bits}")) if p.a.is_integer and p.b.is_e0m else p
