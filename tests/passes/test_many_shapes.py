"""Random recipes, shapes, cuts and windows against the numpy reference, for as long as it is told.

pytest -m soak tests/passes -s     HUMMING_CONVERT_SOAK_SECONDS (60), HUMMING_CONVERT_SOAK_SEED (0)
"""

from __future__ import annotations

import itertools
import os
import time

import numpy as np
import pytest

from humming_convert import passes
from humming_convert.layouts.weights import WeightAux, pack_weight
from humming_convert.passes.positions import padded_width
from tests.passes.cases import aux_for, codes_for, recipe, stored, unaligned


class Case:
    """One random layer: recipe, codes, aux values, blocks."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.packing = str(rng.choice(["rows", "gptq", "awq", "signed_rows"]))
        bits = 4 if self.packing == "awq" else int(rng.choice([4, 4, 4, 8, 8, 2, 3, 1, 5, 6, 7]))
        width = padded_width(bits)
        places = ["standard", "standard", "raw"] + ["packed_k"] * (bits % 2 == 0) + ["flat"] * (bits in (2, 4, 8))
        place = str(rng.choice(places))
        act = 8 if place == "packed_k" else int(rng.choice([x for x in (16, 8, 4) if x >= width]))
        maps = self._maps(bits)
        rows, columns = 64 * int(rng.integers(1, 6)), 128 * int(rng.integers(1, 5))
        n, k = rows - int(rng.choice([0, 0, 8, 56])), columns - int(rng.choice([0, 0, 32, 64, 33]))
        if rng.random() < 0.2:
            n = int(rng.integers(8, n + 1))
        n -= n % 8 if self.packing == "awq" else 0
        group = int(rng.choice([32, 64, 128, columns])) if maps[:1] in (("int_to_float_zp",), ("fused_e8m0",)) else 0
        more = {"shape": (rows, columns * bits // 32 + 4 * bits)} if place == "raw" and rng.random() < 0.3 else {}
        self.r = recipe(
            bits,
            act,
            n,
            k,
            place,  # type: ignore[arg-type]
            maps,  # type: ignore[arg-type]
            pad_n=rows - n,
            pad_k=columns - k,
            interleave=str(rng.choice(["mode3", "mode2", "native"])),
            swapped=bool(rng.integers(2)),
            ppu=bool(rng.integers(2)),
            group=group,
            **more,
        )
        self.codes = codes_for(maps, bits, n, k, int(rng.integers(1 << 30)))  # type: ignore[arg-type]
        self.aux = aux_for(maps, bits, rows, columns, group, int(rng.integers(1 << 30)), int(rng.choice([1, 5, 12, 256])))  # type: ignore[arg-type]
        if self.aux is not None and rng.random() < 0.3:
            self.aux[n:] = 0
        aux = WeightAux(zero=self.aux if "int_to_float_zp" in maps else None, offsets=self.aux if "fused_e8m0" in maps else None)
        self.want = np.ascontiguousarray(pack_weight(self.r, self.codes, aux)).reshape(-1).view(np.uint32)
        step = 8 if self.packing == "awq" else int(rng.choice([1, 64]))
        cuts = [0, *sorted(int(x) // step * step for x in rng.integers(0, n, int(rng.integers(0, 3)))), n]
        self.parts = [
            (a, b, unaligned(stored(self.codes[a:b], self.packing, bits), int(rng.integers(0, 9))))
            for a, b in itertools.pairwise(cuts)
            if a < b
        ]

    def _maps(self, bits: int) -> tuple[str, ...]:
        choices: list[tuple[str, ...]] = [(), ("sign_flip",), ("int_to_float",), ("int_to_float_zp",)]
        choices += [("e0m",), ("e0m_to_int",), ("e0m_to_int", "sign_flip")] * (bits > 1) + [("fused_e8m0",)] * (bits == 4)
        return choices[int(self.rng.integers(len(choices)))]

    def pack(self) -> np.ndarray:
        """Window by window, parts in any order with the padding."""
        out = self.rng.integers(0, 1 << 32, len(self.want), dtype=np.uint32)
        windows = list(passes.windows(self.r, int(self.rng.choice([1, 2000, 10**9]))))
        for w in windows:
            part = out[w.first : w.first + w.words]
            steps = [lambda part=part, w=w: passes.fill_padding(self.r, part, self.aux, w)]
            steps += [lambda part=part, w=w, one=one: self._block(part, w, *one) for one in self.parts]
            for i in self.rng.permutation(len(steps)):
                steps[i]()
            assert passes.prove_padding(self.r, part, self.aux, w) is None
        return out

    def _block(self, part: np.ndarray, w: passes.Window, row: int, end: int, block: np.ndarray) -> None:
        n0, n1, k1 = max(row, w.n0), min(end, w.n1), min(w.k1, self.r.k)
        if n0 >= n1 or w.k0 >= k1:
            return
        sub = passes.slice_block(self.packing, self.r.bits, block, end - row, (n0 - row, n1 - row), (w.k0, k1))
        where = {"n": n1 - n0, "k": k1 - w.k0, "row": n0, "column": w.k0, "first": w.first, "aux": self.aux}
        passes.pack_block(self.r, packing=self.packing, stored=sub, out=part, **where)
        assert passes.prove_block(self.r, packing=self.packing, stored=sub, written=part, **where) is None

    def finds(self, broken: np.ndarray) -> int:
        """Differences that the proof sees."""
        found = [
            passes.prove_block(self.r, packing=self.packing, stored=s, n=b - a, k=self.r.k, row=a, written=broken, aux=self.aux)
            for a, b, s in self.parts
        ]
        return sum(x.count for x in [*found, passes.prove_padding(self.r, broken, self.aux)] if x is not None)


@pytest.mark.soak
def test_any_recipe_any_shape_any_cut() -> None:
    seconds, seed = (int(os.environ.get(f"HUMMING_CONVERT_SOAK_{x}", y)) for x, y in (("SECONDS", 60), ("SEED", 0)))
    start, count, fast = time.monotonic(), 0, 0
    while time.monotonic() - start < seconds:
        case = Case(np.random.default_rng((seed, count)))
        out = case.pack()
        assert (out == case.want).all(), (seed, count, case.r, case.packing)
        bit = int(case.rng.integers(len(out) * 32))
        out[bit // 32] ^= np.uint32(1 << (bit % 32))
        assert case.finds(out) == 1, (seed, count, bit, case.r, case.packing)
        for a, b, s in case.parts:
            assert passes.any_zero_code(case.packing, case.r.bits, s, b - a, case.r.k) == bool((case.codes[a:b] == 0).any())
        count += 1
        fast += passes.is_fast(case.r, case.packing)
    print(f"\n{count} layers, {fast} through tiles, {seconds} s, seed {seed}: all equal, every flipped bit found")
