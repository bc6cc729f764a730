"""prepare and restore are inverses; what is lost has a name."""

from __future__ import annotations

import pickle
from typing import Any

import layer_maker as make
import numpy as np
import pytest
from hypothesis import given, settings

from humming_convert.findings import Refused
from humming_convert.layouts import pack_small, prepare, restore, sample_codes, standard_codes
from humming_convert.layouts.weights import WeightAux
from humming_convert.standard.lossy import Meter
from humming_convert.targets.activations import activation
from humming_convert.targets.environment import Environment
from humming_convert.targets.table import find_target

SM90, SM100 = find_target("sm90"), find_target("sm100")


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@settings(max_examples=80, deadline=None)
@given(make.jobs())
def test_restore_undoes_prepare_up_to_the_named_lossy_steps(job: Any) -> None:
    layer, target, act, param, env, pad_n, pad_k = job
    try:
        packed = prepare(layer, target, act, param_dtype=param, env=env, pad_n=pad_n, pad_k=pad_k)
    except Refused:
        return
    back = restore(packed)
    before, after = make.numbers(layer), make.numbers(back)
    steps = {m.step for m in packed.lossy}
    if steps == {"e8m0-range"}:
        assert (before != after).sum() == sum(m.count for m in packed.lossy)
    elif steps and "e8m0-range" not in steps:
        assert steps <= {"scale-cast", "scale2-cast"}
        assert np.allclose(before, after, rtol=2**-7, atol=0)  # two roundings to bfloat16
    elif not steps:
        assert np.array_equal(before, after)
    if "bias" in layer.tensors:
        assert same(layer.tensors["bias"], back.tensors["bias"])
    assert {role: (x.dtype, x.shape) for role, x in packed.tensors.items()}.keys() == packed.recipe.outputs.keys()


@settings(max_examples=60, deadline=None)
@given(make.jobs())
def test_the_address_formula_finds_every_code_where_it_was_packed(job: Any) -> None:
    layer, target, act, param, env, pad_n, pad_k = job
    try:
        packed = prepare(layer, target, act, param_dtype=param, env=env, pad_n=pad_n, pad_k=pad_k)
    except Refused:
        return
    recipe = packed.recipe
    _, aux = pack_small(recipe, layer.tensors, Meter())
    words = packed.tensors["weight"].reshape(layer.experts or 1, *recipe.weight.shape)
    back = restore(packed)
    rng = np.random.default_rng(1)
    n, k = rng.integers(0, layer.n, 200), rng.integers(0, layer.k, 200)
    for e, w in enumerate(words):
        placed = sample_codes(recipe.weight, w, n, k)
        assert np.array_equal(standard_codes(recipe.weight, placed, n, k, aux.of_expert(e)), back.codes(e)[n, k])


@pytest.mark.parametrize("weight", [f"uint{b}" for b in range(1, 9)])
@pytest.mark.parametrize("zero_point", ["none", "int", "fp"])
def test_integers_with_every_zero_point_come_back_bit_for_bit(weight: str, zero_point: str) -> None:
    layer = make.layer(make.form(weight, zero_point=zero_point), 96, 256, bias=True)
    back = restore(prepare(layer, SM90, activation("bf16", "BF16")))
    assert back.form == layer.form
    assert layer.tensors.keys() == back.tensors.keys()
    for role, x in layer.tensors.items():
        assert same(x, back.tensors[role]), role


def test_symmetric_integers_without_the_lowest_code_come_back_from_e0m() -> None:
    layer = make.layer(make.form("uint4"), 64, 128, lowest=False)
    packed = prepare(layer, SM90, activation("fp8", "BF16"))
    assert packed.recipe.config.b_dtype == "float4e0m3"
    assert same(restore(packed).tensors["weight"], layer.tensors["weight"])


def test_one_lowest_code_anywhere_keeps_the_whole_tensor_integer() -> None:
    layer = make.layer(make.form("uint4"), 64, 128, experts=3, lowest=False)
    layer.tensors["weight"][2, 63, 15] &= 0x0FFFFFFF
    assert prepare(layer, SM90, activation("fp8", "BF16")).recipe.config.b_dtype == "uint4"


def test_e0m_never_leaves_integers_as_they_are() -> None:
    layer = make.layer(make.form("uint4"), 64, 128, lowest=False)
    assert prepare(layer, SM90, activation("fp8", "BF16"), e0m=False).recipe.config.b_dtype == "uint4"


def test_groups_that_are_no_power_of_two_are_split_and_come_back_as_they_were() -> None:
    layer = make.layer(make.form("uint4", k=96, zero_point="int"), 64, 384)
    packed = prepare(layer, SM90, activation("bf16", "BF16"))
    assert packed.recipe.config.weight_scale_group_size == 32
    back = restore(packed)
    assert back.form.scale.k == 96
    assert same(back.tensors["weight_scale"], layer.tensors["weight_scale"])
    assert same(back.tensors["zero_point"], layer.tensors["zero_point"])


def test_mxfp4_inside_the_range_comes_back_bit_for_bit_but_for_minus_zero() -> None:
    layer = make.layer(make.form("float4e2m1", k=32, dtype="float8e8m0"), 64, 128, spread=11)
    packed = prepare(layer, SM90, activation("fp8", "BF16"))
    assert packed.recipe.config.use_fused_e8m0_scale and packed.lossy == ()
    back = restore(packed)
    assert same(back.tensors["weight_scale"], layer.tensors["weight_scale"])
    assert np.array_equal(back.codes(0), np.where(layer.codes(0) == 8, 0, layer.codes(0)))


def test_mxfp4_beyond_the_range_is_measured_on_weights_that_really_change() -> None:
    layer = make.layer(make.form("float4e2m1", k=32, dtype="float8e8m0"), 64, 128, spread=11)
    scale = layer.tensors["weight_scale"].view(np.uint8)
    scale[5] = 125
    scale[5, 0] = 112  # d = 2 for 11 binades below the row's top 125
    packed = prepare(layer, SM90, activation("fp8", "BF16"))
    (measure,) = [m for m in packed.lossy if m.step == "e8m0-range"]
    changes = make.numbers(layer) != make.numbers(restore(packed))
    assert measure.count == changes.sum() > 0
    assert not changes[0, :5].any() and not changes[0, 6:].any() and not changes[0, 5, 32:].any()


def test_unequal_tensor_scales_of_parts_become_one_for_each_row() -> None:
    form = make.form("float4e2m1", k=16, dtype="float8e4m3", scale_2="tensor")
    layer = make.layer(form, 128, 128, stack_n=(64, 64))
    packed = prepare(layer, SM90, activation("bf16", "BF16"))
    assert packed.recipe.config.weight_scale_2_type == "channel"
    assert [m.step for m in packed.lossy] == ["scale2-cast"]
    assert restore(packed).tensors["weight_scale_2"].shape == (128,)


def test_equal_tensor_scales_of_parts_become_one() -> None:
    form = make.form("float4e2m1", k=16, dtype="float8e4m3", scale_2="tensor")
    layer = make.layer(form, 128, 128, stack_n=(64, 64))
    layer.tensors["weight_scale_2"][:] = 0.75
    packed = prepare(layer, SM90, activation("bf16", "BF16"))
    assert packed.recipe.config.weight_scale_2_type == "tensor"
    assert packed.tensors["weight_scale_2"].tolist() == [0.75]


def test_small_tensors_do_not_need_the_weight() -> None:
    layer = make.layer(make.form("uint4", zero_point="int"), 64, 256, bias=True)
    packed = prepare(layer, SM90, activation("fp8", "BF16"))
    small = {role: x for role, x in layer.tensors.items() if role != "weight"}
    tensors, aux = pack_small(packed.recipe, small, Meter())
    assert all(same(x, packed.tensors[role]) for role, x in tensors.items())
    assert isinstance(aux, WeightAux) and aux.zero is not None and aux.zero.shape == (1, 256, 2)


def test_a_recipe_can_be_pickled() -> None:
    layer = make.layer(make.form("float4e2m1", k=32, dtype="float8e8m0"), 64, 128)
    recipe = prepare(layer, SM100, activation("mxfp8", "BF16")).recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_scales_as_integers_lose_what_the_step_measures() -> None:
    form = make.form("uint4", n=1, k=128)
    layer = make.layer(form, 64, 256)
    packed = prepare(layer, SM90, activation("int8", "BF16"), env=Environment())
    assert packed.recipe.config.use_int_weight_scale
    assert [m.step for m in packed.lossy] == ["int-weight-scale"]
    top = np.abs(layer.tensors["weight_scale"].astype(np.float64)).max()
    error = np.abs(make.numbers(restore(packed)) - make.numbers(layer)).max()
    assert 0 < error <= 8 * top / 1024


@pytest.mark.parametrize("role", ["weight_scale", "zero_point", "bias"])
def test_a_missing_tensor_is_refused_by_name(role: str) -> None:
    layer = make.layer(make.form("uint4", zero_point="int"), 64, 128, bias=True)
    recipe = prepare(layer, SM90, activation("bf16", "BF16")).recipe
    with pytest.raises(Refused, match=role):
        pack_small(recipe, {r: x for r, x in layer.tensors.items() if r != role}, Meter())
