"""Maps on whole words against the maps code by code, and those against the text of layouts.md."""

from __future__ import annotations

import numpy as np
import pytest

from humming_convert.layouts import code_maps
from humming_convert.passes.maps import MAPS, Fields, e2m1_shifted, table, zero_fields
from humming_convert.passes.positions import padded_width

FIELD_MAPS = [(m, b) for m in ("e0m", "e0m_to_int", "sign_flip", "int_to_float", "int_to_float_zp") for b in range(2, 9)]


def words_of(codes: np.ndarray, width: int) -> np.ndarray:
    """[words, fields] codes -> uint32."""
    return (codes.astype(np.uint32) << np.arange(0, 32, width, dtype=np.uint32)).sum(-1).astype(np.uint32)


def codes_of(words: np.ndarray, f: Fields) -> np.ndarray:
    """uint32 -> [words, fields]; bits outside of the codes must be 0."""
    assert not (words & np.uint32(~f.code & 0xFFFFFFFF)).any()
    return (words[:, None] >> np.arange(0, 32, f.width, dtype=np.uint32)) & ((1 << f.bits) - 1)


@pytest.mark.parametrize(("name", "bits"), FIELD_MAPS)
def test_a_map_on_words_does_to_each_field_what_it_does_to_a_code(name, bits):
    f = Fields(bits, padded_width(bits))
    rng = np.random.default_rng(bits)
    codes = rng.integers(1 if name == "e0m" else 0, 1 << bits, (4096, 32 // f.width))
    aux = rng.integers(0, 1 << bits, codes.shape) if name == "int_to_float_zp" else np.zeros_like(codes)
    out = MAPS[name].forth(words_of(codes, f.width), words_of(aux, f.width), f)
    assert (codes_of(out, f) == table((name,), bits)[aux, codes]).all()
    if MAPS[name].back is not None:
        assert (MAPS[name].back(out, words_of(aux, f.width), f) == words_of(codes, f.width)).all()


@pytest.mark.parametrize("bits", range(2, 9))
def test_minus_zero_in_packed_e0m_codes_does_not_pass_for_zero(bits):
    f = Fields(bits, padded_width(bits))
    back = MAPS["e0m"].back
    assert back is not None
    minus_zero, zero = (np.array([f.every(x)], np.uint32) for x in (1 << (bits - 1), 0))
    assert back(minus_zero, zero, f) != back(zero, zero, f)


@pytest.mark.parametrize("d", [*range(14), 64, 127])
def test_e2m1_codes_are_scaled_as_the_exact_arithmetic_does(d):
    f = Fields(4, 4)
    codes = np.array([[x] * 4 + [y] * 4 for x in range(16) for y in range(16)])
    out = e2m1_shifted(words_of(codes, 4), np.full(256, d, np.uint32), f)
    assert (codes_of(out, f) == table(("fused_e8m0",), 4)[d, codes]).all()


def test_the_fused_table_is_that_of_layouts_md():
    rows = {1: (0, 1, 1, 2, 2, 3, 4, 5), 2: (0, 0, 1, 1, 1, 2, 2, 3), 3: (0, 0, 0, 0, 1, 1, 1, 2), 4: (0, 0, 0, 0, 0, 0, 1, 1)}
    made = table(("fused_e8m0",), 4)
    for d, row in rows.items():
        assert tuple(made[d, :8]) == row
    assert tuple(made[0]) == (0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15)
    assert tuple(made[128]) == (7, 14, 14, 14, 14, 14, 14, 14, 7, 6, 6, 6, 6, 6, 6, 6)  # garbage, reproduced
    assert tuple(made[1, 9:]) == tuple(8 + x for x in rows[1][1:])


@pytest.mark.parametrize("name", ["e0m", "e0m_to_int", "sign_flip", "int_to_float"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_code_tables_are_those_of_the_reference(name, bits):
    first = 1 if name == "e0m" else 0
    assert (table((name,), bits)[0, first:] == code_maps.table(name, bits)[first:]).all()


def test_a_zero_point_turns_codes_as_layouts_md_5_0_says():
    assert tuple(table(("int_to_float_zp",), 4)[5]) == (15, 14, 13, 12, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_zero_code_is_seen_in_any_field_and_only_there(bits):
    f = Fields(bits, padded_width(bits))
    fields = 32 // f.width
    none = np.random.default_rng(bits).integers(1, 1 << bits, (512, fields)) if bits > 1 else np.ones((512, fields), int)
    assert not zero_fields(words_of(none, f.width), f).any()
    for field in range(fields):
        one = none.copy()
        one[:, field] = 0
        assert zero_fields(words_of(one, f.width), f).all()
