"""Exact rewrites: the layer that comes out stands for the same numbers."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from humming_convert.standard.expr import stack_weights
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.packing import stream_pack
from humming_convert.standard.packing_ct import zero_words
from humming_convert.standard.rewrite import absorb_zero_point, explicit_zero_point, regroup, to_rows, widen
from tests.formats.folders import E4M3, Got, clean, codes, dequantized, e4m3_codes, factors, named, reading_of


def integers(path: Path, bits: int, *, zeros: bool, group: int = 64, experts: int | None = None) -> Got:
    """A Humming folder of one integer layer."""
    lead = () if experts is None else (experts,)
    config = {"quant_method": "humming", "b_dtype": f"uint{bits}", "weight_scale_group_size": group, "has_zero_point": zeros}
    zero = zero_words(np.random.default_rng(9).integers(0, 1 << bits, (*lead, 32, 128 // (group or 128)), np.uint8), bits)
    tensors = {
        "weight": stream_pack(codes(bits, 32, 128, *lead), bits),
        "weight_scale": factors(*lead, 32, 128 // (group or 128)),
        "zero_point": zero if zeros else None,
    }
    return clean(reading_of(path, config, named(tensors)))


def same(got: Got, after: StandardLayer) -> None:
    after = pickle.loads(pickle.dumps(after))
    for e in range(after.experts or 1):
        np.testing.assert_array_equal(dequantized(after, got.context, e), got.weight(expert=e))


def blocked(path: Path, n: int, k: int) -> Got:
    config = {"quant_method": "fp8", "weight_block_size": [32, 64], "activation_scheme": "dynamic"}
    tensors = {"weight": e4m3_codes(n, k).view(E4M3), "weight_scale_inv": factors(-(-n // 32), -(-k // 64), dtype=np.float32)}
    return clean(reading_of(path, config, named(tensors)))


def test_blocks_become_rows_without_rounding(tmp_path: Path) -> None:
    got = blocked(tmp_path, 64, 128)
    assert got.layer.form.scale.kind == "block"
    rows = to_rows(got.layer)
    assert (rows.form.scale.kind, rows.form.scale.k, rows.form.scale.dtype) == ("group", 64, "float32")
    assert rows.tensors["weight_scale"].shape == (64, 2)
    same(got, rows)


def test_a_layer_without_blocks_stays_as_it_is(tmp_path: Path) -> None:
    layer = integers(tmp_path, 4, zeros=False).layer
    assert to_rows(layer) is layer


@pytest.mark.parametrize("group", [64, 0])
def test_groups_and_rows_are_split_with_their_zero_points(tmp_path: Path, group: int) -> None:
    got = integers(tmp_path, 4, zeros=True, group=group)
    after = regroup(got.layer, 32)
    assert after.form.scale.k == 32 and after.tensors["zero_point"].shape == (4, 4)
    same(got, after)


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_written_out_zero_point_says_the_middle(tmp_path: Path, bits: int) -> None:
    got = integers(tmp_path, bits, zeros=False)
    after = explicit_zero_point(got.layer)
    assert after.form.zero_point == "int"
    same(got, after)


@pytest.mark.parametrize(("bits", "wide"), [(2, 3), (4, 5), (3, 8)])
def test_wider_codes_stand_for_the_same_integers(tmp_path: Path, bits: int, wide: int) -> None:
    got = integers(tmp_path, bits, zeros=False)
    after = widen(got.layer, wide)
    assert (after.form.number.bits, after.recoded) == (wide, f"uint{bits}->uint{wide}")
    assert after.tensors["weight"].evaluate(got.context).shape == (32, 128 * wide // 32)
    same(got, after)


@pytest.mark.parametrize("experts", [None, 3])
@pytest.mark.parametrize("bits", range(1, 8))
def test_zero_points_are_absorbed_by_one_more_bit(tmp_path: Path, bits: int, experts: int | None) -> None:
    got = integers(tmp_path, bits, zeros=True, experts=experts)
    after = absorb_zero_point(got.layer)
    assert (after.form.number.bits, after.form.zero_point, after.recoded) == (bits + 1, "none", f"uint{bits}+zp->uint{bits + 1}")
    assert "zero_point" not in after.tensors
    same(got, after)
    same(got, widen(after, 8))


def test_recoded_parts_can_still_be_stacked(tmp_path: Path) -> None:
    a, b = integers(tmp_path / "a", 3, zeros=True), integers(tmp_path / "b", 4, zeros=False)
    one, two = absorb_zero_point(a.layer), b.layer
    weights = [x.tensors["weight"] for x in (one, two)]
    stacked = stack_weights(weights, None)  # type: ignore[arg-type]
    assert stacked.evaluate(a.context).shape == (64, 16)
    np.testing.assert_array_equal(stacked.expert_codes(a.context, 0)[:32], one.tensors["weight"].expert_codes(a.context, 0))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(stacked.expert_codes(a.context, 0)[32:], b.codes())


def test_absorbing_reads_the_zero_points_once(tmp_path: Path) -> None:
    layer = absorb_zero_point(integers(tmp_path, 4, zeros=True, experts=3).layer)
    names = [v.name.rpartition(".")[2] for v in layer.tensors["weight"].reads()]
    assert names.count("zero_point") == 1


def test_a_code_outside_the_new_range_is_a_bug_and_says_so(tmp_path: Path) -> None:
    got = integers(tmp_path, 4, zeros=True)
    layer = absorb_zero_point(got.layer)
    weight = layer.tensors["weight"]
    block = weight.blocks[0]  # type: ignore[attr-defined]
    wrong = replace(block, recode=replace(block.recode, add=40))
    with pytest.raises(AssertionError):
        wrong.codes(got.context)
