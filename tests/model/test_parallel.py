"""Which rows, columns and experts a rank holds, and which cuts are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from humming_convert.model.parallel import Heads, Rank, cut_layer, max_tp, ranks, where
from humming_convert.model.stack import stack
from humming_convert.model.unify import Rejected
from humming_convert.standard.expr import Weight
from humming_convert.standard.layer import StandardLayer
from tests.model.making import Memory

LLAMA = Heads.of({"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 128})
MLA = Heads.of(
    {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "hidden_size": 128,
    }
)
ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"


def tp(size: int, rank: int = 0) -> Rank:
    return Rank(tp_size=size, tp_rank=rank)


def qkv(memory: Memory, **more: Any) -> StandardLayer:
    rows = {"q_proj": 128, "k_proj": 32, "v_proj": 32}
    return stack(f"{ATTENTION}.qkv_proj", [memory.layer(f"{ATTENTION}.{x}", n=n, **more) for x, n in rows.items()], None)


def rows(layer: StandardLayer, rank: Rank, heads: Heads = LLAMA) -> list[tuple[int, int]]:
    cut = where(layer, rank, heads)
    assert cut is not None and not isinstance(cut, Rejected), cut
    return list(cut.rows)


def reason(layer: StandardLayer, rank: Rank, heads: Heads = LLAMA) -> str:
    cut = where(layer, rank, heads)
    assert isinstance(cut, Rejected), cut
    return cut.reason


# ------------------------------------------------------------------ attention
def test_attention_is_cut_by_heads() -> None:
    assert rows(qkv(Memory()), tp(2, 1)) == [(64, 128), (144, 160), (176, 192)]


def test_a_key_value_head_is_on_several_ranks_where_there_are_fewer_heads_than_ranks() -> None:
    found = [rows(qkv(Memory()), tp(4, r))[1:] for r in range(4)]
    assert found == [[(128, 144), (160, 176)]] * 2 + [[(144, 160), (176, 192)]] * 2


def test_a_fused_matrix_of_the_checkpoint_is_cut_by_its_heads() -> None:
    layer = Memory().layer(f"{ATTENTION}.qkv_proj", n=192)
    assert rows(layer, tp(2)) == [(0, 64), (128, 144), (160, 176)]


def test_the_gate_of_a_gated_attention_goes_with_its_heads() -> None:
    layer = Memory().layer(f"{ATTENTION}.q_proj", n=256)
    assert rows(layer, tp(2, 1)) == [(128, 256)]


def test_latent_attention_is_whole_before_the_heads_and_cut_after() -> None:
    memory = Memory()
    whole = stack(
        f"{ATTENTION}.fused_qkv_a_proj",
        [memory.layer(f"{ATTENTION}.{x}", n=n) for x, n in (("q_a_proj", 32), ("kv_a_proj_with_mqa", 40))],
        None,
    )
    assert rows(whole, tp(4, 3), MLA) == [(0, 72)] and max_tp(whole, MLA) is None
    assert rows(memory.layer(f"{ATTENTION}.q_b_proj", n=96), tp(4, 3), MLA) == [(72, 96)]
    assert rows(memory.layer(f"{ATTENTION}.kv_b_proj", n=128), tp(2, 1), MLA) == [(64, 128)]


@pytest.mark.parametrize(
    ("name", "n", "size", "said"),
    [
        ("q_proj", 128, 3, "num_attention_heads 8 is no multiple of 3"),
        ("q_proj", 96, 2, "not 8 heads of 16"),
        ("k_proj", 64, 2, "not 2 key-value heads of 16"),
        ("qkv_proj", 200, 2, "are 192"),
        ("o_proj", 128, 3, "num_attention_heads"),
    ],
)
def test_heads_that_do_not_fit_are_refused(name: str, n: int, size: int, said: str) -> None:
    assert said in reason(Memory().layer(f"{ATTENTION}.{name}", n=n), tp(size))


def test_key_value_heads_and_ranks_of_which_neither_divides_the_other_are_refused() -> None:
    heads = replace(LLAMA, query=12, key_value=3, query_sizes=(16,))
    assert "neither" in reason(Memory().layer(f"{ATTENTION}.k_proj", n=48), tp(2), heads)


def test_heads_that_config_does_not_state_are_refused() -> None:
    assert "does not state num_attention_heads" in reason(Memory().layer(f"{ATTENTION}.q_proj", n=128), tp(2), Heads.of({}))


# ------------------------------------------------------------------ feed-forward
def test_gate_and_up_are_cut_each() -> None:
    memory = Memory()
    layer = stack(f"{MLP}.gate_up_proj", [memory.layer(f"{MLP}.{x}", n=64) for x in ("gate_proj", "up_proj")], None)
    assert rows(layer, tp(2, 1)) == [(32, 64), (96, 128)]
    assert rows(memory.layer(f"{MLP}.gate_up_proj", n=128), tp(2, 1)) == [(32, 64), (96, 128)]


def test_interleaved_rows_are_cut_in_pairs() -> None:
    layer = replace(Memory().layer(f"{MLP}.gate_up_proj", n=64), row_order="interleaved")
    assert rows(layer, tp(4, 1)) == [(16, 32)]
    assert "no multiple of 6" in reason(layer, tp(3))


def test_down_is_cut_along_k_and_its_bias_is_added_once() -> None:
    memory = Memory()
    layer = memory.layer(f"{MLP}.down_proj", k=256, group=64, bias=True)
    first, second = (cut_layer(layer, tp(2, r), LLAMA) for r in range(2))
    assert isinstance(first, StandardLayer) and isinstance(second, StandardLayer)
    assert (first.n, first.k, second.k) == (layer.n, 128, 128)
    assert np.array_equal(memory.numbers(layer), np.concatenate([memory.numbers(first), memory.numbers(second)], 1))
    assert np.array_equal(memory.values(first.tensors["bias"]), memory.values(layer.tensors["bias"]))
    assert not memory.values(second.tensors["bias"]).any()


# ------------------------------------------------------------------ never inside a unit
@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"k": 192, "group": 64}, "no multiple of the group of 64"),
        ({"k": 128, "group": 128}, "no multiple of the group of 128"),
        ({"k": 96, "scale": "channel", "kind": "uint3"}, "whole words of 32 codes"),
        ({"k": 24, "scale": "channel"}, "whole words of 8 codes"),
        ({"k": 64, "scale": "block", "rows": 32, "group": 64, "kind": "float8e4m3"}, "no multiple of the group of 64"),
    ],
)
def test_a_column_cut_inside_a_word_a_group_or_a_block_is_refused(layer: dict[str, Any], said: str) -> None:
    assert said in reason(Memory().layer(f"{MLP}.down_proj", **layer), tp(2))


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"n": 24, "zeros": True}, "words of zero points"),
        ({"n": 96, "scale": "block", "rows": 32, "kind": "float8e4m3"}, "multiple of the block of 32"),
        ({"n": 33}, "33 rows"),
    ],
)
def test_a_row_cut_inside_a_word_or_a_block_is_refused(layer: dict[str, Any], said: str) -> None:
    assert said in reason(Memory().layer(f"{MLP}.up_proj", **layer), tp(2))


@pytest.mark.parametrize("name", ["model.layers.0.linear_attn.in_proj_qkvz", "visual.blocks.0.attn.q_proj"])
def test_a_layer_whose_share_is_not_known_is_refused_and_whole_for_one_rank(name: str) -> None:
    layer = Memory().layer(name, n=128)
    assert "not known" in reason(layer, tp(2)) and max_tp(layer, LLAMA) == 1
    assert cut_layer(layer, tp(1), LLAMA) is layer


def test_zero_points_of_whole_rows_are_cut_here_but_not_by_stock_vllm() -> None:
    layer = Memory().layer(f"{MLP}.down_proj", k=128, scale="channel", zeros=True)
    assert max_tp(layer, LLAMA) == 16 and max_tp(layer, LLAMA, stock=True) == 1


def test_the_largest_number_of_ranks_is_told() -> None:
    memory = Memory()
    assert max_tp(qkv(memory), LLAMA) == 8
    assert max_tp(memory.layer(f"{MLP}.down_proj", k=384, group=64), LLAMA) == 6


# ------------------------------------------------------------------ numbers and experts
@pytest.mark.parametrize(
    "form", [{"zeros": True}, {"scale": "channel"}, {"scale": "block", "rows": 16, "kind": "float8e4m3"}, {"kind": "uint3"}]
)
def test_ranks_together_hold_every_number_once(form: dict[str, Any]) -> None:
    memory = Memory()
    layer = stack(f"{MLP}.gate_up_proj", [memory.layer(f"{MLP}.{x}", n=64, **form) for x in ("gate_proj", "up_proj")], None)
    found = []
    for r in range(2):
        cut = cut_layer(layer, tp(2, r), LLAMA)
        assert isinstance(cut, StandardLayer) and cut.stack_n == (32, 32)
        found.append(memory.numbers(cut))
    whole = memory.numbers(layer)
    assert np.array_equal(whole, np.concatenate([found[0][:32], found[1][:32], found[0][32:], found[1][32:]]))


def experts(memory: Memory, count: int = 5) -> StandardLayer:
    parts = [memory.layer(f"{MLP}.experts.{e}.{x}", n=32) for e in range(count) for x in ("gate_proj", "up_proj")]
    return stack(f"{MLP}.experts.w13", parts, count)


def test_experts_are_shared_out_whole_the_first_ranks_one_more() -> None:
    memory = Memory()
    layer = experts(memory)
    shares = [cut_layer(layer, r, LLAMA) for r in ranks(1, 2)]
    assert [s.experts for s in shares if isinstance(s, StandardLayer)] == [3, 2]
    last = shares[1]
    assert isinstance(last, StandardLayer)
    assert last.parts == layer.parts[6:]
    assert all(np.array_equal(memory.numbers(last, e), memory.numbers(layer, 3 + e)) for e in range(2))


def test_experts_that_are_shared_out_are_not_cut() -> None:
    layer = experts(Memory())
    share = cut_layer(layer, ranks(2, 2)[1], LLAMA)
    assert isinstance(share, StandardLayer) and (share.n, share.experts) == (layer.n, 2)


def test_an_expert_by_itself_is_on_one_rank_only() -> None:
    heads = Heads.of({"num_experts": 4})
    layer = Memory().layer(f"{MLP}.experts.1.up_proj")
    assert [cut_layer(layer, r, heads) is not None for r in ranks(1, 2)] == [True, False]


def test_fewer_experts_than_ranks_are_refused() -> None:
    assert "fewer" in reason(experts(Memory(), 2), ranks(1, 3)[0])


def test_of_an_expert_only_what_the_rank_holds_is_read() -> None:
    share = cut_layer(experts(Memory()), ranks(1, 5)[2], LLAMA)
    assert isinstance(share, StandardLayer)
    weight = share.tensors["weight"]
    assert isinstance(weight, Weight) and {b.part for b in weight.blocks} == set(share.parts)
    assert len(share.tensors["weight_scale"].reads()) == 2


def test_ranks_have_names_of_their_own() -> None:
    for sizes in ((2, 1), (1, 4), (2, 2), (2, 8)):
        labels = [r.label for r in ranks(*sizes)]
        assert len(set(labels)) == len(labels) == max(sizes)
    assert ranks(2, 1)[1].label == "tp2of2" and ranks(2, 4)[3].label == "tp2of2-ep4of4"
    with pytest.raises(ValueError, match="no multiple"):
        ranks(4, 2)
