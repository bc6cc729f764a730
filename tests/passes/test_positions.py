"""The address formulas of the passes against the self-check values of layouts.md 13."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from humming_convert.passes.positions import packed_bits, source_bits
from humming_convert.standard.packing import PACKINGS
from tests.check_values import REPACKED
from tests.passes.cases import recipe

COLUMNS = (
    {"place": "standard", "interleave": "mode3"},
    {"place": "standard", "interleave": "mode2"},
    {"place": "standard", "interleave": "native"},
    {"place": "packed_k", "interleave": "mode3", "swapped": True},
    {"place": "packed_k", "interleave": "mode2"},
)


def known_values():
    for line in REPACKED.split("\n"):
        for crc, column in zip(line.split()[2:], COLUMNS):
            if crc != "-":
                a, b = line.split()[:2]
                yield pytest.param(int(a), int(b), column, crc, id=f"A{a}-B{b}-{column['place']}-{column['interleave']}")


def formula_codes(n: int, k: int, bits: int) -> np.ndarray:
    i, j = np.arange(n)[:, None], np.arange(k)
    return ((31 * i + 7 * j + i * j // 64) % (1 << bits)).astype(np.uint8)


@pytest.mark.parametrize(("act_bits", "bits", "column", "crc"), list(known_values()))
def test_packed_positions_give_the_self_check_values(act_bits, bits, column, crc):
    n, k = 128, 1024 // act_bits
    codes = formula_codes(n, k, bits)
    at = packed_bits(recipe(bits, act_bits, n, k, **column), np.arange(n), np.arange(k))
    places = at.rows[:, None] + at.columns + at.jump[at.row_slot[:, None] + at.column_slot]
    out = np.zeros(n * k * bits, np.uint8)
    out[places.reshape(-1)] = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little").reshape(-1)
    assert f"{zlib.crc32(np.packbits(out, bitorder='little')):08x}" == crc


PACKED = [(packing, bits) for packing in ("rows", "gptq", "signed_rows") for bits in range(1, 9)] + [("awq", 4)]


@pytest.mark.parametrize(("packing", "bits"), PACKED)
def test_source_positions_read_what_the_reference_reads(packing, bits):
    n, k = 24, 64
    shape = {"rows": (n, k * bits // 8), "signed_rows": (n, k), "gptq": (k * bits // 32, n * 4), "awq": (k, n // 2)}[packing]
    raw = np.random.default_rng(bits).integers(0, 256, shape, dtype=np.uint8)
    stored = raw if packing in ("rows", "signed_rows") else raw.view(np.int32)
    rows, columns = source_bits(packing, bits, raw.strides[0], np.arange(n), np.arange(k))
    code = (np.unpackbits(raw.reshape(-1), bitorder="little")[rows[:, None] + columns] << np.arange(bits)).sum(-1)
    if packing == "signed_rows":
        code ^= 1 << (bits - 1)
    assert (code == PACKINGS[packing](stored, bits, n, k)).all()
