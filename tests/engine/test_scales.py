"""Scales that go as lists of calls: the bytes and measures of the reference, and every call that does not do its work noticed and told."""

from __future__ import annotations

import copy
import ctypes
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert import api, passes
from humming_convert.checkpoint.reading import SourceUnreadable
from humming_convert.demo.models import Sample, Shape, decoder, gpt_oss
from humming_convert.demo.samples import DECODERS
from humming_convert.engine import pack, programs, scales
from humming_convert.plan.types import Plan
from humming_convert.proof import scales as scale_proof
from humming_convert.proof import small, stream
from humming_convert.proof.failed import ProofFailed

ROWS = {row["name"]: row for row in DECODERS}
WIDE = Shape(hidden=4096, intermediate=512, heads=4, kv_heads=2, head_dim=64)  # 32 groups of 128 in a row, whole tiles of rows
KIND = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4, use_errno=True)


def weights(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.safetensors"))}


def wide(name: str) -> Sample:
    return decoder(**{**ROWS[name], "shape": WIDE})


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Windows of few groups. Gives the layers whose scales went as calls."""
    made: list[str] = []
    real = scales.write_scales

    def noted(streams: Any, *rest: Any) -> str:
        made.append(streams[0].planned.layer.name)
        return real(streams, *rest)

    monkeypatch.setattr(stream, "SMALL", 0)
    monkeypatch.setattr(programs, "_kept", {})
    monkeypatch.setattr(scale_proof, "WINDOW", 1 << 12)
    scale_proof.windows_of.cache_clear()
    scale_proof.has_passes.cache_clear()
    monkeypatch.setattr(pack, "write_scales", noted)
    return made


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return api.plan(wide("gptq-4bit-v1-sym").write(tmp_path), target="sm90", act="bf16")


@pytest.mark.parametrize(
    ("name", "target", "act"),
    [
        ("gptq-4bit-v1-sym", "sm90", "bf16"),
        ("gptq-4bit-v1-sym", "sm90", "fp8"),
        ("gptq-4bit-v1-sym", "ppu", "bf16"),
        ("awq-4bit-gemm", "sm90", "bf16"),
        ("gptq-4bit-v2-asym", "sm90", "fp8"),
        ("ct-int4-asym", "sm90", "bf16"),  # stored row by row; biases and zero points beside them
        ("ct-int4-qwen3-moe", "sm90", "bf16"),  # experts
        ("ct-nvfp4", "sm120", "nvfp4"),
    ],
)
def test_calls_give_the_bytes_and_measures_of_the_reference(
    name: str, target: str, act: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan = api.plan(wide(name).write(tmp_path), target=target, act=act)
    api.convert(plan, out=tmp_path / "reference")
    made = request.getfixturevalue("listed")
    api.convert(plan, out=tmp_path / "calls")
    assert made
    assert weights(tmp_path / "calls") == weights(tmp_path / "reference")
    left, right = (json.loads((tmp_path / x / "humming_manifest.json").read_text()) for x in ("calls", "reference"))
    assert left == right


# ------------------------------------------------------------------ padded and lowered ones
LONGER = Shape(hidden=2144, experts=3, expert_intermediate=96)  # gate and up: 192 rows, padded to 256; 67 groups of 32, padded to 68


def compared(plan: Plan, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Converts by the reference, then by calls; equal bytes and manifests. Returns the layers whose scales went as calls."""
    api.convert(plan, out=tmp_path / "reference")
    made: list[str] = request.getfixturevalue("listed")
    api.convert(plan, out=tmp_path / "calls")
    assert weights(tmp_path / "calls") == weights(tmp_path / "reference")
    left, right = (json.loads((tmp_path / x / "humming_manifest.json").read_text()) for x in ("calls", "reference"))
    assert left == right
    return made


@pytest.mark.parametrize("library", ["0.1.19", "0.1.20"])  # they pad rows of lowered scales with other bytes
@pytest.mark.parametrize(("target", "act"), [("sm90", "bf16"), ("sm90", "fp8"), ("sm89", "fp8"), ("sm80", "bf16"), ("ppu", "bf16")])
def test_padded_and_lowered_scales_give_the_bytes_of_the_reference(
    target: str, act: str, library: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = gpt_oss("longer", LONGER, spread=8).write(tmp_path)
    plan = api.plan(folder, target=target, act=act, humming_version=library)
    assert [x.endswith("w13") for x in compared(plan, tmp_path, request)] == [True]  # w2 has three groups: less than a kernel wants


@pytest.mark.parametrize(
    ("spread", "act", "calls"), [(16, "fp8", 0), (11, "fp8", 1), (12, "fp8", 0), (16, "bf16", 1), (2, "int8", 0)]
)  # int8: by rows
def test_scales_below_what_lowered_ones_are_counted_from_go_with_the_codes_that_they_change(
    spread: int, act: str, calls: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = gpt_oss("longer", LONGER, spread).write(tmp_path)
    assert len(compared(api.plan(folder, target="sm90", act=act), tmp_path, request)) == calls


@pytest.mark.parametrize("name", ["ct-int4-asym", "ct-int4-qwen3-moe"])
def test_padded_scales_of_two_bytes_give_the_bytes_of_the_reference(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ragged = Shape(hidden=4160, intermediate=576, heads=4, kv_heads=2, head_dim=64)
    folder = decoder(**{**ROWS[name], "shape": ragged}).write(tmp_path)
    assert compared(api.plan(folder, target="sm90", act="bf16"), tmp_path, request)


@pytest.fixture
def lowered(tmp_path: Path) -> Plan:
    return api.plan(gpt_oss("longer", LONGER, spread=8).write(tmp_path), target="sm90", act="fp8")


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (lambda x: setattr(x, "minus", x.minus + 1), "restored are not those of"),
        (lambda x: setattr(x, "row_fill", x.row_fill ^ 1), "which are padding"),
    ],
)
def test_wrong_numbers_of_an_expert_are_found_by_python(
    fault: Callable[[Any], None], match: str, lowered: Plan, tmp_path: Path, listed: list[str], monkeypatch: Any
) -> None:
    """Packing and its proof share them; the samples take them from the scales again."""
    real = scales._Calls.make

    def make(calls: Any, stream: Any) -> None:
        changed = copy.copy(stream)
        fault(changed)
        changed.prove_samples = stream.prove_samples
        real(calls, changed)

    monkeypatch.setattr(scales._Calls, "make", make)
    with pytest.raises(ProofFailed, match=match):
        api.convert(lowered, out=tmp_path / "out")


@pytest.mark.parametrize(("to", "match"), [(lambda pitch: 0, "restored are not those of"), (lambda pitch: 1, "restored are not those of")])
def test_a_wrong_fill_of_new_groups_is_found_by_python(
    to: Callable[[int], int], match: str, lowered: Plan, tmp_path: Path, listed: list[str], monkeypatch: Any
) -> None:
    real = passes.add_pad_rows
    monkeypatch.setattr(passes, "add_pad_rows", lambda *x: real(*x[:6], to(x[5]), x[7]))
    with pytest.raises(ProofFailed, match=match):
        api.convert(lowered, out=tmp_path / "out")


@pytest.mark.parametrize(("target", "act"), [("sm120", "nvfp4"), ("sm90", "bf16"), ("sm100", "nvfp4")])
def test_rows_of_scales_too_large_for_the_cache_give_the_same_bytes(
    target: str, act: str, tmp_path: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = api.plan(wide("ct-nvfp4").write(tmp_path), target=target, act=act)
    api.convert(plan, out=tmp_path / "cached")
    monkeypatch.setattr(passes, "CACHED", 0)
    monkeypatch.setattr(programs, "_kept", {})
    scale_proof.has_passes.cache_clear()
    past: list[bool] = []
    real = scale_proof.ScaleSort.shape

    def noted(sort: scale_proof.ScaleSort, part: int, groups: int) -> passes.ScaleShape:
        shape = real(sort, part, groups)
        past.append(shape.past)
        return shape

    monkeypatch.setattr(scale_proof.ScaleSort, "shape", noted)
    api.convert(plan, out=tmp_path / "past")
    assert listed and any(past)
    assert weights(tmp_path / "past") == weights(tmp_path / "cached")


@pytest.mark.parametrize("whole", [0, 1 << 30], ids=["sampled", "restored whole"])
def test_zero_points_beside_them_are_proven(whole: int, tmp_path: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = api.plan(wide("awq-4bit-gemm").write(tmp_path), target="sm90", act="bf16")
    monkeypatch.setattr(small, "WHOLE", whole)
    api.convert(plan, out=tmp_path / "right")
    assert listed
    real = pack.pack_small

    def wrong(recipe: Any, *given: Any, **named: Any) -> Any:
        out, aux = real(recipe, *given, **named)
        return {role: x ^ (role == "zero_point") for role, x in out.items()}, aux

    monkeypatch.setattr(pack, "pack_small", wrong)
    with pytest.raises(ProofFailed, match="restored"):
        api.convert(plan, out=tmp_path / "wrong")


# ------------------------------------------------------------------ calls that do not do their work
Replaced = Callable[[str, int, Callable[..., int]], None]


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch, listed: list[str]) -> Replaced:
    """Call number `number` of a function in a program of scales is another one."""

    def replace(name: str, number: int, function: Callable[..., int]) -> None:
        real = scales._listed
        kept = KIND(function)

        def changed(of: Any) -> Any:
            found = real(of)
            at = np.flatnonzero(found.program.calls[:, 0] == passes.function(*FUNCTIONS[name]))
            found.program.calls[at[number], 0] = ctypes.cast(kept, ctypes.c_void_p).value
            return found

        monkeypatch.setattr(scales, "_listed", changed)
        held.append(kept)

    held: list[Any] = []
    return replace


FUNCTIONS = {"read": ("pread64", "pread"), "write": ("pwrite64", "pwrite"), "compare": ("memcmp",)}


def real(name: str) -> Any:
    return ctypes.cast(passes.function(*FUNCTIONS[name]), KIND)


@pytest.mark.parametrize(("name", "number"), [("read", 0), ("read", 1), ("read", 2), ("write", 0), ("write", 1)])
def test_short_transfers_are_finished(name: str, number: int, plan: Plan, tmp_path: Path, instead: Replaced) -> None:
    instead(name, number, lambda fd, at, nbytes, offset: real(name)(fd, at, nbytes // 3, offset))
    api.convert(plan, out=tmp_path / "short")
    api.verify(tmp_path / "short")


@pytest.mark.parametrize(("name", "error"), [("read", SourceUnreadable), ("write", OSError)])
def test_errors_are_told(name: str, error: type[Exception], plan: Plan, tmp_path: Path, instead: Replaced) -> None:
    def fails(*_: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    instead(name, 0, fails)
    with pytest.raises(error, match=r"Input/output error"):
        api.convert(plan, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_call_is_made_again(plan: Plan, tmp_path: Path, instead: Replaced) -> None:
    def interrupted(*_: int) -> int:
        ctypes.set_errno(errno.EINTR)
        return -1

    instead("read", 0, interrupted)
    api.convert(plan, out=tmp_path / "out")


def test_a_bit_that_the_file_lost_is_found(plan: Plan, tmp_path: Path, instead: Replaced) -> None:
    def flipped(fd: int, at: int, nbytes: int, offset: int) -> int:
        raw = bytearray(ctypes.string_at(at, nbytes))
        raw[nbytes // 2] ^= 4
        return int(real("write")(fd, ctypes.addressof((ctypes.c_char * nbytes).from_buffer(raw)), nbytes, offset))

    instead("write", 1, flipped)
    with pytest.raises(ProofFailed, match="does not hold the source's scales in groups"):
        api.convert(plan, out=tmp_path / "out")


def test_scales_read_from_a_wrong_place_are_found_by_python(plan: Plan, tmp_path: Path, listed: list[str], monkeypatch: Any) -> None:
    """Packing and its proof share what a call read; the samples do not."""
    real = scales._piece
    monkeypatch.setattr(scales, "_piece", lambda of, part, groups: real(of, part, (0, groups[1] - groups[0])))
    monkeypatch.setattr(scale_proof, "GROUPS", 32)
    with pytest.raises(ProofFailed, match="restored are not those of"):
        api.convert(plan, out=tmp_path / "out")


def test_a_wrong_table_is_found_by_python(plan: Plan, tmp_path: Path, listed: list[str], monkeypatch: Any) -> None:
    table, changes = scales.cast_table("F16", "BF16")
    wrong = (table.view(np.uint16) ^ 1).view(table.dtype)
    monkeypatch.setattr(scales, "cast_table", lambda *_: (wrong, changes))
    with pytest.raises(ProofFailed, match="restored are not those of"):
        api.convert(plan, out=tmp_path / "out")


def test_tables_live_as_long_as_calls_use_them(plan: Plan, listed: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    """Two threads may make a table each, of which only one stays elsewhere."""
    real = scales.cast_table.__wrapped__
    monkeypatch.setattr(scales, "cast_table", lambda *names: real(*names))
    api.convert(plan, out=tmp_path / "out")


def test_more_scales_than_a_count_holds_are_counted_in_parts(plan: Plan, listed: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    api.convert(plan, out=tmp_path / "at once")
    monkeypatch.setattr(scales, "COUNTED", 1)
    api.convert(plan, out=tmp_path / "in parts")
    left, right = (json.loads((tmp_path / x / "humming_manifest.json").read_text()) for x in ("at once", "in parts"))
    assert left["layers"] == right["layers"]
