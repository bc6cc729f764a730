"""`benchmarks/gemm_beside.py` without a GPU: which points, the same bytes as `prepare`, and what its tables say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import candidate_times, standard_layers
from benchmarks.beside_table import CORE, LIBRARY, report, verdict
from benchmarks.gemm_beside import points, shapes_of
from humming_convert.gemm.tuning import Tuning
from humming_convert.layouts import Standard, prepare
from humming_convert.targets.activations import activation
from humming_convert.targets.table import target_of
from tests.layouts.layer_maker import form, layer

HARNESS = SimpleNamespace(
    MAIN=(8192, 8192), OTHERS=[(4096, 14336)], MOE_SHAPE=(64, 8, 2048, 2048), MOE_FORMATS=("bf16", "mxfp4_a16"), M_FEW=[1, 16]
)
FORMS = {  # one of each place and of each kind of aux values
    "standard": (("uint4", "group", 128), "bf16", None),
    "zero points": (("uint4", "group", 128, "bfloat16", "int"), "fp8", None),
    "three bits": (("uint3", "group", 128), "bf16", 2),
    "fused": (("float4e2m1", "group", 32, "float8e8m0"), "fp8", None),
    "flat": (("float8e4m3", "channel", 0), "fp8", None),
}


def test_few_rows_come_first_and_experts_last() -> None:
    wanted = points(HARNESS, ["w4a16_g128"], shapes_of(HARNESS, "8192x8192,64x128"), [256, 1], moe=True)
    assert [p.m for p in wanted if p.moe is None] == [1] * 6 + [256] * 6
    assert {p.moe for p in wanted[12:]} == {"gateup", "down", "grouped"}
    assert {p.moe for p in wanted if p.format == "bf16"} == {None, "grouped"}


def test_shapes_by_name() -> None:
    assert shapes_of(HARNESS, "all") == [(8192, 8192), (4096, 14336)]
    assert shapes_of(HARNESS, "none") == []


@pytest.mark.parametrize("name", FORMS)
def test_bands_are_the_bytes_of_prepare(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_layers, "BAND_CODES", 64 * 256)
    args, act, experts = FORMS[name]
    made, target, rows = layer(form(*args), 256, 256, experts=experts, lowest=False), target_of(90, False), activation(act, "BF16")
    assert target is not None
    assert len(standard_layers.bands(256, 256)) == 4
    assert_same(packed_here(made, target, rows), prepare(made, target, rows))


def packed_here(made: Standard, target: Any, act: Any) -> dict[str, Any]:
    """`pack_all` of one layer, in this process."""
    recipe, tensors, aux = standard_layers.decide(standard_layers.Wanted(made, target, act))
    each = []
    for e in range(made.experts or 1):
        words = made.tensors["weight"] if made.experts is None else made.tensors["weight"][e]
        parts = [standard_layers.band_of(recipe, made, words, aux, e, rows) for rows in standard_layers.bands(made.n, made.k)]
        each.append(standard_layers.joined(recipe.weight, [standard_layers.pack_band(*p) for p in parts]))
    return {**tensors, "weight": np.stack(each) if made.experts else each[0]}


def assert_same(got: dict[str, Any], want: Any) -> None:
    assert got.keys() == want.tensors.keys()
    for role, x in want.tensors.items():
        assert got[role].shape == x.shape and got[role].tobytes() == x.tobytes(), role


def test_better_only_beyond_the_spread_and_in_every_run() -> None:
    assert verdict([10, 10], [11, 11], m=16) == "better"
    assert verdict([10, 10], [10.7, 10.7], m=16) == "even"
    assert verdict([10, 10], [10.7, 10.7], m=1024) == "better"
    assert verdict([11, 11], [10, 10], m=16) == "worse"
    assert verdict([10, 10], [11, 10], m=16) == verdict([10, 11], [11, 10], m=16) == "unsure"


def point(contender: str, us: float, **more: Any) -> dict[str, Any]:
    row = {"contender": contender, "format": "w4a16_g128", "n": 8192, "k": 8192, "m": 16, "moe": None, "us": us, "floor_us": 9.0}
    return row | {"ok": True} | more


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"device": "a GPU", "torch": "2", "cuda": "13", "library": "0.1.20", "order": "core-first", "results": list(rows)}


def test_the_table_lists_what_is_slower_with_its_kernel() -> None:
    tuning = {"family": "mma_sm80", "tile_m": 16, "threads": 128, "stages": 4, "parts": 2}
    run = document(point(CORE, 18.0, tuning=tuning), point(LIBRARY, 15.0), point("cublas_bf16", 36.0, format="bf16"))
    lines = report([run, run])
    row = next(x for x in lines if x.startswith("| 16 "))
    assert row == "| 16 | 18.0 | 15.0 | 36.0 | - | 9.0 | 2.00 | 0.83 | 2.00 | worse | mma_sm80 16 rows, 128 threads, 4 stages, 2 parts |"
    assert lines[-1] == "* w4a16_g128, 8192 x 8192, M = 16: 1.20 of the library's time; mma_sm80 16 rows, 128 threads, 4 stages, 2 parts"


def test_a_wrong_product_is_no_gain() -> None:
    lines = report([document(point(CORE, 5.0, ok=False), point(LIBRARY, 15.0))])
    assert "core WRONG" in next(x for x in lines if x.startswith("| 16 "))


def test_a_point_that_failed_says_so() -> None:
    failed = {k: v for k, v in point(CORE, 0).items() if k not in ("us", "ok", "floor_us")} | {"error": "RuntimeError: no"}
    lines = report([document(failed, point(LIBRARY, 15.0))])
    assert "  core: RuntimeError: no" in lines
    assert next(x for x in lines if x.startswith("| 16 ")).startswith("| 16 | - | 15.0 |")


def test_points_of_candidates_are_asked_for_by_kind() -> None:
    assert {p.moe for p in candidate_times.wanted(HARNESS, ["experts"])} == {"gateup", "grouped"}
    dense = candidate_times.wanted(HARNESS, ["dense", "shapes"])
    assert [p.m for p in dense] == sorted(p.m for p in dense) and len(set(dense)) == len(dense) and {p.n for p in dense} == {8192, 4096}


def test_a_candidate_that_is_off_has_no_time() -> None:
    off = candidate_times.Timed(None, "mma_sm80", Tuning(tile_m=8, tile_k=256, parts=4, blocks=4, stages=3), False, "OFF by 2")
    assert (
        off.line == "OFF by 2 mma 8x256 128t 4p 4b 3s 1c" and replace(off, us=1.25, chosen=True).line == "1.2 mma 8x256 128t 4p 4b 3s 1c*"
    )
