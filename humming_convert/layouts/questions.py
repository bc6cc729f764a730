"""The questions that only data can answer, which of them a layer asks, and how arrays answer them.

In: forms and target (which questions), small tensors or codes (answers).  Out: names; an Answers.
Facts: layouts.md 2 (S0, S1, S2e, S3), 9; the compiled scans for S1 and S2e live in passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.findings import Refused
from humming_convert.layouts.e8m0 import LIMIT
from humming_convert.standard.forms import InputForm, WeightForm
from humming_convert.standard.numbers import number
from humming_convert.standard.packing import Codes, stream_unpack
from humming_convert.targets.configure import configure, split_group
from humming_convert.targets.environment import Environment
from humming_convert.targets.pair import E4M3, E8M0, Pair, as_integer, pair_of, use_block_scaled_mma
from humming_convert.targets.table import Target

Array = NDArray[Any]

QUESTIONS: dict[str, str] = {
    "tensor_scales_equal": "are the tensor scales of the fused parts equal in every expert? (S0; reads the scales)",
    "no_zero_code": "is no code of the whole tensor 0? (S1; reads the weight)",
    "zero_points_shift": "is zero point - 2^(B-1) exact in the model dtype? (S1 of 0.1.19; reads the zero points)",
    "range_fit": "are groups with a non-zero weight further below their expert's largest scale than fits? (S2e; reads scales, then the weight)",
    "fp16_range": "do E8M0 scales leave the range of float16? (S3; reads the scales)",
}


class Answers(Struct, frozen=True, kw_only=True):
    """None: not asked, or still open."""

    tensor_scales_equal: bool | None = None
    no_zero_code: bool | None = None
    zero_points_shift: bool | None = None
    range_fit: bool | None = None
    fp16_range: bool | None = None

    def get(self, name: str) -> bool:
        """The answer; ValueError while the question is open."""
        answer: bool | None = getattr(self, name)
        if answer is None:
            raise ValueError(f"the question {name} is open: {QUESTIONS[name]}")
        return answer


def asks_tensor_scales(p: Pair, entry: str, parts: int) -> bool:
    return entry != "humming-layer" and parts > 1 and (p.kind == "tensor" or p.scale_2 == "tensor")


def asks_no_zero_code(p: Pair, entry: str, e0m: bool) -> bool:
    zero_points = p.zero_point == "none" or (p.zero_point == "fp" and p.env.e0m_shifts_fp_zero_points)
    float_act = entry != "humming-layer" or not p.a.is_integer
    return e0m and p.b.is_integer and 2 <= p.b.bits <= 8 and zero_points and float_act


def asks_range_fit(p: Pair) -> bool:
    """`p`: configured."""
    return p.env.fits_range and p.fused and p.a.name == E4M3 and p.scale_2 != "channel" and p.bs == E8M0 and p.gn <= 1


def asks_fp16_range(p: Pair, entry: str) -> bool:
    """`p`: configured."""
    wanted = entry == "humming-layer" and p.bs == E8M0 and p.c.name == "float16" and p.kind != "tensor"
    return wanted and not p.fused and not use_block_scaled_mma(p)


def questions(
    form: WeightForm,
    input: InputForm,  # noqa: A002
    target: Target,
    env: Environment,
    entry: str,
    *,
    param_dtype: str,
    parts: int = 1,
    e0m: bool = True,
) -> tuple[str, ...]:
    """Names of the questions that this layer may ask, the cheap ones first. `parts`: fused parts of one expert."""
    p = pair_of(form, input, target, env, param_dtype)
    out = []
    if asks_tensor_scales(p, entry, parts):
        out.append("tensor_scales_equal")
    if asks_no_zero_code(p, entry, e0m):
        if p.zero_point == "fp":
            out.append("zero_points_shift")
        out.append("no_zero_code")
    # whether S1 makes e0m of integers is not known yet, and block-scaled MMA depends on it
    variants = [p, replace(p, b=number(f"float{p.b.bits}e0m{p.b.bits - 1}"))] if "no_zero_code" in out else [p]
    for variant in variants:
        try:
            configured = configure(split_group(as_integer(variant)))
        except Refused:
            continue  # nothing to ask of what is refused whatever the data says
        if asks_fp16_range(configured, entry):
            out.append("fp16_range")
        if asks_range_fit(configured):
            out.append("range_fit")
    return tuple(dict.fromkeys(out))


def answer_tensor_scales_equal(scales: Array) -> bool:
    """scales: F32 [s], or [E, s]: s values of the parts of an expert."""
    view = scales.reshape(scales.shape[0] if scales.ndim > 1 else 1, -1)
    return bool((view == view[:, :1]).all())


def answer_no_zero_code(codes: Codes) -> bool:
    """codes: any shape; the answers of parts are joined by `and`."""
    return bool(codes.all())


def answer_no_zero_code_in_words(words: Array, bits: int) -> bool:
    """words: standard form, int32 [..., K*B/32]."""
    return answer_no_zero_code(stream_unpack(words, bits, words.shape[-1] * 32 // bits))


def answer_zero_points_shift(zero_points: Array, bits: int) -> bool:
    """zero_points: [..., N, G] in the model dtype: P(zp - mid) + mid == zp everywhere."""
    exact, mid = zero_points.astype(np.float32), np.float32(1 << (bits - 1))
    shifted = (exact - mid).astype(zero_points.dtype).astype(np.float32)
    return bool(((shifted + mid).astype(zero_points.dtype) == zero_points).all())


def low_groups(scales: Array, limit: int = LIMIT[E4M3]) -> NDArray[np.bool_]:
    """Groups whose scale is more than `limit` binades below the largest of their expert. scales: bytes [E, N, G] or [N, G].

    Where none is, `range_fit` is False without a look at the weight.
    """
    s = np.ascontiguousarray(scales).view(np.uint8)
    # over one axis of neighbours: numpy is a hundred times slower over two of them
    top = s.reshape(*s.shape[:-2], -1).max(-1)[..., None, None]
    return np.asarray(s < np.maximum(top, np.uint8(limit)) - np.uint8(limit))


def answer_range_fit(scales: Array, codes_of: Callable[[int], Codes], group: int) -> bool:
    """scales: bytes [E, N, G] (one expert: [1, N, G]), not padded. codes_of(e): E2M1 codes [N, K] of expert e."""
    for expert, mine in enumerate(scales):
        s = np.ascontiguousarray(mine).view(np.uint8)
        if int(s.min()) >= int(s.max()) - LIMIT[E4M3]:
            continue  # none is low
        if (low := low_groups(mine)).any():
            live = (codes_of(expert).reshape(*low.shape, group) & 7).any(axis=-1)
            if (live & low).any():
                return True
    return False


def answer_fp16_range(scales: Array) -> bool:
    """scales: E8M0 bytes, not padded, any shape."""
    s = np.ascontiguousarray(scales).view(np.uint8).astype(np.int32) - 127
    return bool(s.min() < -14 or s.max() > 15)
