"""Packing and proving blocks against the numpy reference of the layouts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from humming_convert import passes
from humming_convert.layouts.weights import WeightAux, pack_weight
from tests.passes.cases import aux_for, codes_for, recipe, stored, unaligned

# packing, bits, A, place, maps, n, k, more.  Whole tiles, ragged ends, padding, every place and map.
CASES = [
    ("gptq", 4, 16, "standard", (), 192, 160, {}),
    ("gptq", 4, 16, "standard", ("e0m",), 200, 100, {"pad_n": 56, "pad_k": 28}),
    ("gptq", 4, 8, "standard", ("int_to_float",), 320, 192, {"pad_n": 64, "pad_k": 64}),
    ("gptq", 4, 8, "packed_k", ("e0m",), 128, 128, {"swapped": True, "pad_n": 128}),
    ("gptq", 4, 8, "packed_k", ("int_to_float_zp",), 192, 256, {"swapped": True, "group": 128, "pad_n": 64}),
    ("gptq", 4, 8, "standard", ("int_to_float_zp",), 100, 200, {"group": 32, "pad_n": 28, "pad_k": 56}),
    ("gptq", 4, 8, "flat", ("sign_flip",), 128, 128, {}),
    ("gptq", 2, 16, "standard", ("e0m",), 64, 96, {}),
    ("gptq", 3, 16, "standard", (), 128, 96, {"pad_k": 32}),
    ("gptq", 6, 8, "packed_k", ("e0m",), 64, 128, {"swapped": True}),
    ("gptq", 8, 16, "standard", ("int_to_float_zp",), 128, 128, {"group": 128}),
    ("gptq", 8, 8, "flat", ("sign_flip",), 128, 128, {"pad_n": 128}),
    ("awq", 4, 16, "standard", (), 192, 160, {}),
    ("awq", 4, 8, "standard", ("int_to_float_zp",), 256, 128, {"group": 64}),
    ("rows", 4, 16, "standard", (), 128, 320, {"pad_n": 128, "pad_k": 64}),
    ("rows", 4, 8, "standard", ("fused_e8m0",), 128, 320, {"interleave": "mode2", "group": 32, "pad_n": 64, "pad_k": 64}),
    ("rows", 4, 8, "packed_k", ("fused_e8m0",), 64, 256, {"interleave": "mode2", "group": 32}),
    ("rows", 4, 16, "standard", (), 64, 128, {"interleave": "native"}),
    ("rows", 4, 16, "standard", ("e0m",), 64, 128, {"ppu": True}),
    ("rows", 8, 8, "raw", ("sign_flip",), 70, 128, {"pad_n": 58, "ppu": True}),
    ("rows", 6, 8, "raw", (), 70, 160, {"pad_n": 58, "shape": (128, 48)}),
    ("rows", 4, 4, "flat", (), 128, 256, {"pad_n": 128}),
    ("rows", 3, 16, "standard", ("e0m",), 64, 64, {}),
    ("signed_rows", 8, 8, "flat", ("sign_flip",), 64, 256, {"pad_n": 64}),
    ("signed_rows", 4, 16, "standard", (), 64, 64, {}),
    ("rows", 5, 8, "standard", ("e0m_to_int",), 64, 64, {}),
    ("gptq", 2, 4, "standard", ("e0m_to_int", "sign_flip"), 64, 128, {}),
    ("rows", 4, 8, "standard", ("int_to_float_zp",), 64, 192, {"group": 96}),
]


class Layer:
    """A case with its stored block, aux values and the reference's words."""

    def __init__(self, case, seed: int = 0, top: int = 12) -> None:
        self.packing, bits, act_bits, place, maps, n, k, more = case
        self.r = recipe(bits, act_bits, n, k, place, maps, **more)
        self.codes = codes_for(maps, bits, n, k, seed)
        self.aux = aux_for(maps, bits, n + self.r.pad_n, k + self.r.pad_k, self.r.group, seed, top)
        self.reference = pack_weight(
            self.r,
            self.codes,
            WeightAux(zero=self.aux if "int_to_float_zp" in maps else None, offsets=self.aux if "fused_e8m0" in maps else None),
        )
        self.want = np.ascontiguousarray(self.reference).reshape(-1).view(np.uint32)

    def block(self, row: int, end: int) -> dict:
        codes = self.codes[row:end]
        return {
            "packing": self.packing,
            "stored": unaligned(stored(codes, self.packing, self.r.bits)),
            "n": end - row,
            "k": self.r.k,
            "row": row,
            "aux": self.aux,
        }

    def empty(self) -> np.ndarray:
        return np.full(len(self.want), 0xDEADBEEF, np.uint32)


def ids(case) -> str:
    packing, bits, act_bits, place, maps, n, k, _ = case
    return f"{packing}{bits}-A{act_bits}-{place}-{'+'.join(maps) or 'plain'}-{n}x{k}"


@pytest.fixture(params=CASES, ids=ids)
def layer(request) -> Layer:
    return Layer(request.param)


def test_packed_words_are_the_reference_words(layer):
    out = layer.empty()
    passes.pack_block(layer.r, out=out, **layer.block(0, layer.r.n))
    passes.fill_padding(layer.r, out, layer.aux)
    assert (out == layer.want).all()


def test_padding_may_come_first(layer):
    out = layer.empty()
    passes.fill_padding(layer.r, out, layer.aux)
    passes.pack_block(layer.r, out=out, **layer.block(0, layer.r.n))
    assert (out == layer.want).all()


def test_the_proof_accepts_the_reference_words(layer):
    assert passes.prove_block(layer.r, written=layer.want, **layer.block(0, layer.r.n)) is None
    assert passes.prove_padding(layer.r, layer.want, layer.aux) is None


def test_the_proof_finds_each_flipped_bit_in_one_place_only(layer):
    rng = np.random.default_rng(1)
    for bit in rng.integers(0, len(layer.want) * 32, 24):
        broken = layer.want.copy()
        broken[bit // 32] ^= np.uint32(1 << (bit % 32))
        found = [passes.prove_block(layer.r, written=broken, **layer.block(0, layer.r.n)), passes.prove_padding(layer.r, broken, layer.aux)]
        assert [x.count for x in found if x is not None] == [1]


def test_a_mismatch_names_the_code(layer):
    i, j = layer.r.n - 1, layer.r.k // 2
    other = layer.codes.copy()
    other[i, j] = other[i, j] % ((1 << layer.r.bits) - 1) + 1  # another code that is not 0
    block = layer.block(0, layer.r.n) | {"stored": stored(other, layer.packing, layer.r.bits)}
    found = passes.prove_block(layer.r, written=layer.want, **block)
    if found is None:
        assert any(m in layer.r.maps for m in ("fused_e8m0", "e0m_to_int"))  # two codes that become one
    else:
        assert (found.n, found.k, found.count) == (i, j, 1) and found.got != found.want


@pytest.mark.parametrize("case", [x for x in CASES if x[5] >= 128], ids=ids)
@pytest.mark.parametrize("cuts", [(64,), (8, 72)])
def test_parts_are_packed_side_by_side(case, cuts):
    layer = Layer(case)
    out, edges = layer.empty(), [0, *cuts, layer.r.n]
    blocks = [layer.block(a, b) for a, b in itertools.pairwise(edges)]
    for block in blocks:
        passes.pack_block(layer.r, out=out, **block)
    passes.fill_padding(layer.r, out, layer.aux)
    assert (out == layer.want).all()
    assert all(passes.prove_block(layer.r, written=out, **block) is None for block in blocks)


@pytest.mark.parametrize("case", [x for x in CASES if x[6] >= 256 or x[3] == "raw"], ids=ids)
def test_windows_one_by_one_make_the_whole(case):
    layer = Layer(case)
    out = layer.empty()
    windows = list(passes.windows(layer.r, 1))
    assert (len(windows) > 1 or layer.r.n < 128) and sum(w.words for w in windows) == len(out)
    whole = layer.block(0, layer.r.n)
    for w in windows:
        part = np.full(w.words, 0xDEADBEEF, np.uint32)
        n1, k1 = min(w.n1, layer.r.n), min(w.k1, layer.r.k)
        if n1 > w.n0 and k1 > w.k0:
            sub = passes.slice_block(layer.packing, layer.r.bits, whole["stored"], layer.r.n, (w.n0, n1), (w.k0, k1))
            block = whole | {"stored": sub, "n": n1 - w.n0, "k": k1 - w.k0, "row": w.n0, "column": w.k0, "first": w.first}
            passes.pack_block(layer.r, out=part, **block)
            assert passes.prove_block(layer.r, written=part, **block) is None
        passes.fill_padding(layer.r, part, layer.aux, w)
        assert passes.prove_padding(layer.r, part, layer.aux, w) is None
        out[w.first : w.first + w.words] = part
    assert (out == layer.want).all()


@pytest.mark.parametrize("top", [1, 6, 256], ids=["all 0", "small", "beyond the arithmetic"])
def test_e8m0_offsets_of_any_size(top):
    layer = Layer(next(x for x in CASES if x[4] == ("fused_e8m0",)), seed=3, top=top)
    out = layer.empty()
    block = layer.block(0, layer.r.n) | {"aux": passes.Aux(layer.aux)}
    passes.pack_block(layer.r, out=out, **block)
    passes.fill_padding(layer.r, out, layer.aux)
    assert (out == layer.want).all()
    assert passes.prove_block(layer.r, written=out, **block) is None


def test_words_outside_of_the_block_stay():
    layer = Layer(CASES[0])
    out = layer.empty()
    passes.pack_block(layer.r, out=out, **layer.block(64, 128))
    mine = np.zeros(layer.r.shape, bool).reshape(layer.r.shape[0], -1, 128)
    mine[:, 1] = True
    assert (out[mine.reshape(-1)] == layer.want[mine.reshape(-1)]).all()
    assert (out[~mine.reshape(-1)] == 0xDEADBEEF).all()


def test_an_array_that_is_too_small_is_refused():
    layer = Layer(CASES[0])
    with pytest.raises(AssertionError):
        passes.pack_block(layer.r, out=layer.empty()[:-1], **layer.block(0, layer.r.n))
    block = layer.block(0, layer.r.n)
    with pytest.raises(AssertionError):
        passes.pack_block(layer.r, out=layer.empty(), **(block | {"stored": block["stored"][:-1]}))


def test_what_no_library_packs_is_not_supported():
    assert not passes.supported(recipe(8, 4, 64, 128), "rows", 8, 64, 128)  # layouts.md 5.7
    assert not passes.supported(recipe(4, 16, 64, 128), "awq", 4, 60, 128)
    assert not passes.supported(recipe(4, 16, 64, 128), "planar", 4, 64, 128)
    assert passes.supported(recipe(4, 16, 64, 128), "awq", 4, 64, 128)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_the_fast_way_is_there_for_what_checkpoints_hold(case):
    packing, bits, _, place, _, _, _, more = case
    r = recipe(*case[1:3], *case[5:7], place, case[4], **more)
    slow = (packing == "signed_rows" and bits != 8) or (place == "raw" and bits == 6) or r.group == 96
    assert passes.is_fast(r, packing) != slow


@pytest.mark.parametrize("k", [2880, 2944, 4096, 1056, 256])
@pytest.mark.parametrize("words", [1, 1 << 15, 1 << 18, 1 << 20])
def test_no_window_has_so_few_columns_that_they_go_code_by_code(k: int, words: int) -> None:
    r = recipe(4, 16, 1024, k, pad_k=-k % 128)
    windows = list(passes.windows(r, words))
    assert sum(w.words for w in windows) == r.shape[0] * r.shape[1]
    assert [w.k0 for w in windows[1:]] == [w.k1 for w in windows[:-1]]
    assert all(min(w.k1, k) - w.k0 >= min(256, windows[0].k1, k) for w in windows)
