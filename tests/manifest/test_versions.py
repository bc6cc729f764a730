"""Which versions would read a layer the same way, and which would make its bytes: each row of layouts.md 9, met and not met."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from humming_convert.checkpoint.tensors import DTYPES
from humming_convert.findings import Findings
from humming_convert.manifest.versions import versions
from humming_convert.model.parallel import Heads
from humming_convert.plan.recipe import Packing, plan_packed
from humming_convert.plan.types import Request
from humming_convert.standard.expr import CodeBlock, Stored, Weight
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.packing import stream_pack
from humming_convert.targets.table import find_target
from tests.manifest.stub import stub_plan
from tests.model.making import Memory

BOTH, OLD, NEW = ("0.1.19", "0.1.20"), ("0.1.19",), ("0.1.20",)
SM90 = find_target("sm90")


def known(memory: Memory, layer: StandardLayer, version: str, act: str = "bf16") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(accepted, same_bytes) of one layer packed for a version."""
    assert SM90 is not None
    request = Request(target=SM90, act=act, humming_version=version)
    findings = Findings()
    packing = Packing(request=request, target=SM90, read=memory.read, findings=findings, headers_only=False, heads=Heads())
    planned = plan_packed(layer, None, packing)
    assert len(planned) == 1, list(findings)
    return versions(stub_plan(layers=planned, request=request), memory.read)


def mxfp4(memory: Memory, scales: Any, *, n: int = 64, zeros: Any = ()) -> StandardLayer:
    """E2M1 with E8M0 groups of 32. scales: bytes [n, groups]; zeros: groups (row, group) whose codes are all 0."""
    scales = np.broadcast_to(np.asarray(scales, np.uint8), (n, 4))
    layer = memory.layer("x", n=n, kind="float4e2m1", group=32, dtype="BF16", k=128)
    codes = memory.rng().integers(1, 8, (n, 128), np.uint8)
    for row, group in zeros:
        codes[row, 32 * group : 32 * group + 32] = 0
    block = CodeBlock(part="x", view=memory.store("codes", stream_pack(codes, 4)), packing="rows", bits=4, n=n, k=128)
    scale = Stored(memory.store("scales", np.ascontiguousarray(scales).view(DTYPES["F8_E8M0"])))
    form = replace(layer.form, scale=replace(layer.form.scale, dtype="float8e8m0"))
    tensors = {"weight": Weight(bits=4, n=n, k=128, experts=None, blocks=(block,)), "weight_scale": scale}
    return replace(layer, form=form, tensors=tensors)


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("form", [{}, {"zeros": True}, {"scale": "channel"}, {"group": 128}, {"kind": "float8e4m3", "scale": "channel"}])
def test_plain_layers_are_the_same_in_both(form: dict[str, Any], version: str) -> None:
    memory = Memory()
    assert known(memory, memory.layer("x", **form), version) == (BOTH, BOTH)


def test_a_group_that_is_split_is_read_by_the_older_but_not_made_by_it() -> None:
    memory = Memory()
    assert known(memory, memory.layer("x", k=192, group=96), "0.1.20") == (BOTH, NEW)


def test_a_group_that_was_not_split_is_not_read_by_the_newer() -> None:
    memory = Memory()
    assert known(memory, memory.layer("x", k=192, group=96), "0.1.19") == (OLD, OLD)


@pytest.mark.parametrize("low", [0, 1])
def test_integers_with_columns_that_are_no_multiple_of_32_are_not_packed_by_the_older(low: int) -> None:
    """It unpacks them to look for code 0, whatever it would find."""
    memory = Memory()
    layer = memory.layer("x", k=40, scale="channel", low=low)
    assert known(memory, layer, "0.1.20") == (BOTH, NEW)


@pytest.mark.parametrize(("low", "same"), [(1, NEW), (0, BOTH)])
def test_only_the_older_makes_sign_magnitude_of_codes_with_float_zero_points(low: int, same: tuple[str, ...]) -> None:
    memory = Memory()
    layer = memory.layer("x", low=low)
    zeros = memory.rng().integers(0, 16, layer.tensors["weight_scale"].shape).astype(DTYPES["BF16"])
    form = replace(layer.form, zero_point="fp")
    layer = replace(layer, form=form, tensors={**layer.tensors, "zero_point": Stored(memory.store("zp", zeros))})
    assert known(memory, layer, "0.1.20") == (BOTH, same)


def test_padded_rows_of_fused_scales_differ_unless_the_largest_scale_is_one() -> None:
    memory = Memory()
    assert known(memory, mxfp4(memory, 120), "0.1.20", "fp8") == (BOTH, NEW)
    assert known(memory, mxfp4(memory, 127), "0.1.20", "fp8") == (BOTH, BOTH)
    assert known(memory, mxfp4(memory, 120, n=256), "0.1.20", "fp8") == (BOTH, BOTH)


@pytest.mark.parametrize(("zeros", "accepted", "same"), [((), BOTH, NEW), (((0, 0),), BOTH, BOTH)])
def test_a_range_that_does_not_fit_is_kept_by_rows_in_the_newer_only(
    zeros: tuple[tuple[int, int], ...], accepted: tuple[str, ...], same: tuple[str, ...]
) -> None:
    memory = Memory()
    scales = np.full((256, 4), 127, np.uint8)
    scales[0, 0] = 110
    assert known(memory, mxfp4(memory, scales, n=256, zeros=zeros), "0.1.20", "fp8") == (accepted, same)


def test_what_the_older_kept_in_one_range_is_read_by_the_newer() -> None:
    memory = Memory()
    scales = np.full((256, 4), 127, np.uint8)
    scales[0, 0] = 110
    assert known(memory, mxfp4(memory, scales, n=256), "0.1.19", "fp8") == (BOTH, OLD)


def test_one_layer_that_differs_is_enough() -> None:
    memory = Memory()
    assert SM90 is not None
    request = Request(target=SM90, humming_version="0.1.20", act="bf16")
    packing = Packing(request=request, target=SM90, read=memory.read, findings=Findings(), headers_only=False, heads=Heads())
    layers = [p for x in (memory.layer("a"), memory.layer("b", k=192, group=96)) for p in plan_packed(x, None, packing)]
    assert versions(stub_plan(layers=layers, request=request), memory.read) == (BOTH, NEW)
