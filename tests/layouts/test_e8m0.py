"""E8M0 scales for 8-bit activations and float16 (layouts.md 2, S2e, S3, S5)."""

from __future__ import annotations

import layer_maker as make
import numpy as np
import pytest

from humming_convert.layouts import e8m0, pack_small, prepare
from humming_convert.layouts.padding import extend_fused
from humming_convert.layouts.questions import answer_fp16_range, answer_range_fit, low_groups
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import values
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.table import find_target

SM90 = find_target("sm90")
TABLE = {1: "01122345", 2: "00111223", 3: "00001112", 4: "00000011"}


@pytest.mark.parametrize("d", range(1, 128))
def test_codes_are_rewritten_to_the_nearest_value_ties_away_from_zero(d: int) -> None:
    want = [int(x) for x in TABLE.get(d, "00000000")]
    assert e8m0.rewrite_table()[d, :8].tolist() == want
    assert e8m0.rewrite_table()[d, 9:].tolist() == [8 + x for x in want[1:]]  # the sign is kept, also of zero
    assert e8m0.rewrite_table()[d, 8] == 0


def test_offset_0_only_takes_the_sign_off_minus_zero() -> None:
    assert e8m0.rewrite_table()[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15]


def test_offset_128_gives_the_librarys_garbage() -> None:
    assert e8m0.rewrite_table()[128].tolist() == [7] + [14] * 7 + [7] + [6] * 7


def test_minus_zero_counts_as_unchanged() -> None:
    assert not e8m0.changed_table()[0].any()
    value = values("float4e2m1")
    for d in (1, 2, 5):
        assert np.array_equal(e8m0.changed_table()[d], value[e8m0.rewrite_table()[d]] * 2.0**d != value)


@pytest.mark.parametrize(("limit", "plus"), [(11, 1), (3, 0)])
def test_fused_scales_times_their_factor_are_the_scales_they_were(limit: int, plus: int) -> None:
    s = np.random.default_rng(0).integers(100, 116, (2, 8, 4)).astype(np.uint8)
    new, offsets, factor = e8m0.fused_scales(s, True, limit, plus)
    assert np.array_equal(np.ldexp(factor[:, :, None], new.astype(int) + 1 - plus), np.exp2(s + offsets.astype(int) - 127.0))
    assert new.min() >= plus and new.max() <= limit + plus
    assert np.array_equal(offsets == 0, s >= s.max(axis=2, keepdims=True).astype(int) - limit)


def test_fp16_range_moves_a_whole_expert_by_one_factor() -> None:
    s = np.array([[[127, 150]], [[127, 130]]], np.uint8)
    moved, factor = e8m0.fp16_range(s)
    assert factor.tolist() == [2.0**8, 1.0]
    assert (moved - 127).astype(np.int8).tolist() == [[[-8, 15]], [[0, 3]]]


@pytest.mark.parametrize(("codes", "outside"), [((113, 142), False), ((112, 120), True), ((120, 143), True)])
def test_scales_leave_the_range_of_float16_below_minus_14_and_above_15(codes: tuple[int, int], outside: bool) -> None:
    assert answer_fp16_range(np.array(codes, np.uint8)) is outside


def test_a_group_of_zeros_below_the_range_asks_for_nothing() -> None:
    scales = np.full((1, 2, 2), 127, np.uint8)
    scales[0, 1, 1] = 127 - 12
    codes = np.full((2, 64), 3, np.uint8)
    codes[1, 32:] = 8
    assert low_groups(scales).sum() == 1
    assert not answer_range_fit(scales, lambda e: codes, 32)
    codes[1, 40] = 1
    assert answer_range_fit(scales, lambda e: codes, 32)


def test_a_wide_range_turns_to_one_secondary_scale_a_row_since_0_1_20() -> None:
    layer = make.layer(make.form("float4e2m1", k=32, dtype="float8e8m0"), 64, 128, spread=11)
    layer.tensors["weight_scale"].view(np.uint8)[3, 1] = 60
    act = activation("fp8", "BF16")
    new = prepare(layer, SM90, act)
    old = prepare(layer, SM90, act, env=Environment(humming_version="0.1.19"))
    assert (new.recipe.config.weight_scale_2_type, old.recipe.config.weight_scale_2_type) == ("channel", "tensor")
    assert new.tensors["weight_scale_2"].shape == (256,) and old.tensors["weight_scale_2"].shape == (1,)


def test_padded_rows_take_the_largest_byte_of_the_expert_and_columns_of_the_row() -> None:
    s = np.array([[[5, 9], [3, 4]]], np.uint8)
    assert extend_fused(s, 3, 3, True).tolist() == [[[5, 9, 9], [3, 4, 4], [9, 9, 9]]]
    assert extend_fused(s, 3, 3, False).tolist() == [[[5, 9, 9], [3, 4, 4], [127, 127, 127]]]


def test_an_offset_without_meaning_is_counted() -> None:
    layer = make.layer(make.form("float4e2m1", k=32, dtype="float8e8m0", scale_2="channel"), 64, 128)
    layer.tensors["weight_scale"].view(np.uint8)[0] = (0, 254, 254, 254)
    packed = prepare(layer, SM90, activation("int8", "BF16"))

    _, aux = pack_small(packed.recipe, layer.tensors, Meter())
    (finding,) = aux.findings("model.layer")
    assert (finding.code, finding.severity, finding.count) == ("e8m0-spread", "warning", 1)
    assert packed.findings == aux.findings()
