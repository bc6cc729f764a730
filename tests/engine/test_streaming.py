"""Windows written by lists of calls: the bytes of the reference, and every call that does not do its work noticed and told."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_128

from humming_convert import Refused, api, passes
from humming_convert.checkpoint.reading import SourceChanged, SourceUnreadable
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.demo.models import Sample, Shape, decoder
from humming_convert.demo.samples import DECODERS
from humming_convert.engine import digest, programs, streaming
from humming_convert.engine.output import OutputWriter
from humming_convert.engine.worker import Worker
from humming_convert.plan import answer
from humming_convert.proof import stream
from humming_convert.proof.failed import ProofFailed
from tests.samples import NAMES, sample

ROWS = {row["name"]: row for row in DECODERS}
WIDE = Shape(hidden=256, intermediate=1024, heads=4, kv_heads=2, head_dim=64)  # ragged nowhere: windows repeat
TARGETS = [("sm90", "bf16"), ("sm90", "fp8"), ("sm90", "int8"), ("sm75", "fp16"), ("sm120", "nvfp4"), ("sm100", "mxfp8"), ("ppu", "bf16")]


@pytest.fixture
def small_lists(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small layers go in several lists of several windows. Gives the windows of each list that was made."""
    made: list[int] = []
    real = streaming._Calls._make

    def counted(self: Any, some: programs.List) -> None:
        made.append(some.last - some.number)
        real(self, some)

    monkeypatch.setattr(stream, "SMALL", 0)
    monkeypatch.setattr(answer, "SMALL", 0)
    monkeypatch.setattr(programs, "_kept", {})
    monkeypatch.setattr(programs, "WINDOW", 1 << 8)
    monkeypatch.setattr(programs, "LIST", 1 << 16)
    monkeypatch.setattr(stream.ExpertStream, "sampled", lambda _, windows: {2} if windows > 4 else set())
    monkeypatch.setattr(streaming._Calls, "_make", counted)
    return made


def weights(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.safetensors"))}


def wide(name: str) -> Sample:
    return decoder(**{**ROWS[name], "shape": WIDE})


# ------------------------------------------------------------------ the same bytes
@pytest.mark.parametrize(("target", "act"), TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_lists_give_the_bytes_of_the_reference(name: str, target: str, act: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    model = sample(name).write(tmp_path)
    dtype = "fp16" if target == "sm75" else "bf16"
    try:
        plan = api.plan(model, target=target, act=act, dtype=dtype)
    except Refused:
        return  # no legal combination: told elsewhere
    api.convert(plan, out=tmp_path / "reference")
    made = request.getfixturevalue("small_lists")
    plan = api.plan(model, target=target, act=act, dtype=dtype)
    api.convert(plan, out=tmp_path / "lists")
    assert weights(tmp_path / "lists") == weights(tmp_path / "reference")
    ragged_rows = [p.recipe.weight.place == "raw" and p.recipe.weight.pad_n + p.recipe.weight.pad_k > 0 for p in plan.layers if p.recipe]
    assert made or all(ragged_rows)  # padding of rows is filled by Python


@pytest.mark.parametrize("name", ["gptq-4bit-v1-sym", "gptq-3bit-v1-asym", "awq-4bit-gemm", "ct-int4-sym", "ct-nvfp4"])
def test_lists_are_long_and_windows_repeat(name: str, tmp_path: Path, small_lists: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    repeats: list[bool] = []
    real = passes.repeated

    def noted(*given: Any) -> Any:
        found = real(*given)
        repeats.append(found is not None)
        return found

    monkeypatch.setattr(passes, "repeated", noted)
    model = wide(name).write(tmp_path)
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "lists")
    assert max(small_lists) > 3
    assert repeats
    assert all(repeats)


def test_windows_that_do_not_repeat_are_listed_one_by_one(tmp_path: Path, small_lists: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = api.plan(wide("gptq-4bit-v1-sym").write(tmp_path), target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "repeated")
    monkeypatch.setattr(programs, "_kept", {})
    monkeypatch.setattr(passes, "repeated", lambda *_: None)
    api.convert(plan, out=tmp_path / "one by one")
    assert weights(tmp_path / "repeated") == weights(tmp_path / "one by one")


def test_without_the_digest_of_the_library_windows_go_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_lists: list[int]
) -> None:
    model = wide("gptq-4bit-v1-sym").write(tmp_path)
    plan = api.plan(model, target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "lists")
    assert small_lists
    small_lists.clear()
    monkeypatch.setattr(digest, "library", lambda: None)
    api.convert(plan, out=tmp_path / "steps")
    assert not small_lists
    assert weights(tmp_path / "lists") == weights(tmp_path / "steps")
    left, right = (json.loads((tmp_path / x / "humming_manifest.json").read_text()) for x in ("lists", "steps"))
    assert left["layers"] == right["layers"]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 240, 241, 1024, 100_000])
def test_a_digest_is_the_same_however_it_is_fed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    found = digest.Digest()
    assert found.state
    monkeypatch.setattr(digest, "library", lambda: None)
    other = digest.Digest()
    for start in range(0, size, 77):
        found.update(data[start : start + 77])
        other.update(data[start : start + 77])
        assert found.hexdigest() == other.hexdigest()


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_parts_that_are_read_whole_is_foreseen(name: str, target: str, tp: int, tmp_path: Path) -> None:
    try:
        plan = api.plan(sample(name).write(tmp_path), target=target, act="bf16", dtype="bf16", tp=tp)
    except Refused:
        return
    for planned in plan.layers:
        assert planned.recipe is not None
        weight, recipe = planned.layer.tensors["weight"], planned.recipe.weight
        for slot, (row, block) in enumerate(weight.of_expert(0)):  # type: ignore[attr-defined]
            windows = list(passes.windows(recipe, 1 << 8))
            pieces = [p for w in windows if (p := stream._piece(slot, row, block, w)) is not None]
            if len(windows) > 1:
                assert any(p.once for p in pieces) == (stream.held_whole(recipe, block) > 0)


# ------------------------------------------------------------------ calls that do less than wanted
Transfer = Callable[[int, int, int, int], int]
KIND = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, use_errno=True)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, Transfer], Callable[[], int]]:
    """instead(name, number, function): call `number` (0: each) of pread64 or pwrite64 that lists make is this function's. Gives how many
    such calls there were."""
    real, held = passes.function, []

    def put(name: str, number: int, function: Transfer) -> Callable[[], int]:
        plain = ctypes.cast(real(name), KIND)
        count = 0

        def call(fd: int, at: int, nbytes: int, offset: int) -> int:
            nonlocal count
            count += 1
            return int((function if number in (0, count) else plain)(fd, at, nbytes, offset))

        held.append(KIND(call))
        address = int(ctypes.cast(held[-1], ctypes.c_void_p).value or 0)
        monkeypatch.setattr(programs, "_kept", {})
        monkeypatch.setattr(passes, "function", lambda *names: address if names[0] == name else real(*names))
        return lambda: count

    return put


@pytest.fixture(params=["gptq-4bit-v1-sym", "ct-int4-sym"], ids=["as stored", "turned"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Windows read a file's rows as they are stored, or all rows are turned first."""
    return wide(request.param).write(tmp_path)


def test_short_transfers_are_finished(model: Path, tmp_path: Path, small_lists: list[int], instead: Any) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "whole")
    for name in ("pread64", "pwrite64"):
        transfer = os.pread if name == "pread64" else os.pwrite

        def half(fd: int, at: int, nbytes: int, offset: int, transfer: Any = transfer) -> int:
            memory = (ctypes.c_char * (nbytes // 2)).from_address(at)
            if transfer is os.pwrite:
                return os.pwrite(fd, memory, offset)
            memory.raw = os.pread(fd, nbytes // 2, offset)
            return nbytes // 2

        for number in (1, 2, 7):
            instead(name, number, half)
            out = tmp_path / f"{name} {number}"
            api.convert(plan, out=out)
            assert weights(out) == weights(tmp_path / "whole")


@pytest.mark.parametrize(("name", "number", "error"), [("pwrite64", 3, errno.ENOSPC), ("pread64", 3, errno.EIO), ("pread64", 4, errno.EIO)])
def test_a_call_that_fails_once_is_an_error(
    name: str, number: int, error: int, model: Path, tmp_path: Path, small_lists: list[int], instead: Any
) -> None:
    """The same call would succeed if it were made again: an error of a disk is told all the same."""

    def fails(*_: Any) -> int:
        ctypes.set_errno(error)
        return -1

    plan = api.plan(model, target="sm90", act="bf16")
    instead(name, number, fails)
    with pytest.raises((OSError, SourceUnreadable), match=os.strerror(error)):
        api.convert(plan, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_call_is_made_again(model: Path, tmp_path: Path, small_lists: list[int], instead: Any) -> None:
    def interrupted(*_: Any) -> int:
        ctypes.set_errno(errno.EINTR)
        return -1

    plan = api.plan(model, target="sm90", act="bf16")
    instead("pwrite64", 2, interrupted)
    api.convert(plan, out=tmp_path / "out")


def test_a_source_that_ends_early_is_told(model: Path, tmp_path: Path, small_lists: list[int], instead: Any) -> None:
    plan = api.plan(model, target="sm90", act="bf16")

    plain = ctypes.cast(passes.function("pread64"), KIND)

    def cut(fd: int, at: int, nbytes: int, offset: int) -> int:
        file = os.readlink(f"/proc/self/fd/{fd}")
        if file.startswith(str(model)) and nbytes > 1000:
            os.truncate(file, offset + nbytes // 2)
        return int(plain(fd, at, nbytes, offset))

    instead("pread64", 0, cut)
    with pytest.raises(SourceChanged, match=r"shorter|bytes now"):
        api.convert(plan, out=tmp_path / "out")


@pytest.mark.parametrize("number", [8, 12, 16])
def test_a_bit_that_turns_on_its_way_to_the_file_is_found(
    number: int, model: Path, tmp_path: Path, small_lists: list[int], instead: Any
) -> None:
    plan = api.plan(model, target="sm90", act="bf16")

    def turned(fd: int, at: int, nbytes: int, offset: int) -> int:
        raw = bytearray((ctypes.c_char * nbytes).from_address(at).raw)
        raw[nbytes // 3] ^= 16
        return os.pwrite(fd, raw, offset)

    instead("pwrite64", number, turned)
    with pytest.raises(ProofFailed, match=r"n=\d+, k=\d+|scales in groups"):
        api.convert(plan, out=tmp_path / "out", jobs=1)  # so that the number says which call it is
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_padding_that_the_file_does_not_hold_is_found(tmp_path: Path, small_lists: list[int], instead: Any) -> None:
    ragged = decoder(**{**ROWS["ct-int4-sym"], "shape": Shape(hidden=256, intermediate=1088, heads=4, kv_heads=2, head_dim=64)})
    plan = api.plan(ragged.write(tmp_path), target="sm90", act="bf16")
    assert any(p.recipe is not None and p.recipe.weight.pad_n for p in plan.layers)

    told: list[str] = []
    for number in range(1, 100):

        def turned(fd: int, at: int, nbytes: int, offset: int) -> int:
            raw = bytearray((ctypes.c_char * nbytes).from_address(at).raw)
            raw[-1] ^= 1
            return os.pwrite(fd, raw, offset)

        calls = instead("pwrite64", number, turned)
        try:
            api.convert(plan, out=tmp_path / f"out {number}")
        except ProofFailed as failed:
            told.append(str(failed))
            continue
        assert calls() < number, "a wrong bit was written and no one noticed"
        break
    assert len(told) > 5
    assert any("padding" in x for x in told)


def elsewhere(name: str, file: Path, by: int) -> Transfer:
    """The same transfer, of a file of this folder, `by` bytes further on in it."""
    plain = ctypes.cast(passes.function(name), KIND)

    def moved(fd: int, at: int, nbytes: int, offset: int) -> int:
        here = os.readlink(f"/proc/self/fd/{fd}").startswith(str(file))
        return int(plain(fd, at, nbytes, offset + by if here and nbytes > 1000 else offset))

    return moved


def test_lists_that_read_from_a_wrong_place_are_found_by_the_sampled_window(
    model: Path, tmp_path: Path, small_lists: list[int], instead: Any
) -> None:
    """Packing and proof see the same wrong words; Python reads again where the window's words should lie."""
    plan = api.plan(model, target="sm90", act="bf16")
    instead("pread64", 0, elsewhere("pread64", model, -64))
    with pytest.raises(ProofFailed):
        api.convert(plan, out=tmp_path / "out")


def test_lists_that_write_to_a_wrong_place_are_found_by_the_sampled_window(model: Path, tmp_path: Path, small_lists: list[int]) -> None:
    """Every window is written, and read back, 64 bytes further on."""
    plan = api.plan(model, target="sm90", act="bf16")
    real = streaming._Calls._bases

    def shifted(self: Any) -> Any:
        bases = real(self)
        bases[programs.EXPERT] += 64
        return bases

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming._Calls, "_bases", shifted)
        with pytest.raises(ProofFailed):
            api.convert(plan, out=tmp_path / "out")


def test_a_proof_that_does_nothing_is_found(model: Path, tmp_path: Path, small_lists: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts would be those of the window before."""
    plan = api.plan(model, target="sm90", act="bf16")
    real = programs.listed

    def without(expert: Any) -> Any:
        found = real(expert)
        kernels = (found.doing[:, 0] == programs.PROVE) & (found.program.call_bases[:, 1] == 1)
        assert kernels.any()
        found.program.calls[np.flatnonzero(kernels)[3:], 0] = passes.function("memcmp")  # of no bytes: equal
        return found

    monkeypatch.setattr(programs, "listed", without)
    with pytest.raises(AssertionError, match="cannot find again"):
        api.convert(plan, out=tmp_path / "out")


@pytest.mark.parametrize("name", ["ct-int4-sym", "ct-nvfp4", "gptq-4bit-v1-sym"])
def test_rows_are_turned_and_words_of_columns_are_not(name: str, tmp_path: Path, small_lists: list[int]) -> None:
    api.convert(api.plan(wide(name).write(tmp_path), target="sm90", act="bf16"), out=tmp_path / "out")
    assert small_lists
    assert all(bool(x.turned) == name.startswith("ct") for x in programs._kept.values() if isinstance(x, programs.Listed))


@pytest.mark.parametrize("rows", [8, 32])
def test_rows_that_are_turned_to_a_wrong_place_are_found_by_the_sampled_window(
    rows: int, tmp_path: Path, small_lists: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing and proof see the same strips, whose first rows are others' too."""
    plan = api.plan(wide("ct-int4-sym").write(tmp_path), target="sm90", act="bf16")
    real = passes.add_turn

    def moved(listing: Any, n: int, row_bytes: int, pitch: int, source: passes.At, target: passes.At, result: int) -> None:
        source = passes.At(source.base, source.offset + row_bytes * rows)
        real(listing, n - rows, row_bytes, pitch, source, target, result)

    monkeypatch.setattr(passes, "add_turn", moved)
    with pytest.raises(ProofFailed):
        api.convert(plan, out=tmp_path / "out")


# ------------------------------------------------------------------ tensors that are copied
SIZE = 10_000


class Copying:
    """A tensor of 10,000 bytes in a file, copied in blocks of 1 KB behind four bytes of another's."""

    def __init__(self, folder: Path) -> None:
        self.data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()
        self.source, self.out = folder / "source", folder / "out"
        self.source.write_bytes(b"head" + self.data)
        self.view = TensorView(name="x", file=self.source, dtype="U8", shape=(SIZE,), offset=4, nbytes=SIZE)
        self.writer = OutputWriter(self.out, 4 + SIZE)
        self.writer.write(memoryview(b"1234"), 0)
        self.writer.read_back(memoryview(bytearray(4)), 0)
        self.worker = Worker.make("read", threading.Event())

    def copy(self) -> bool:
        return streaming.copy_stored(self.view, self.writer, 4, self.worker)

    def assert_whole(self) -> None:
        assert self.out.read_bytes() == b"1234" + self.data
        assert self.writer.upto == 4 + SIZE
        assert self.writer.digest == "xxh3:" + xxh3_128(b"1234" + self.data).hexdigest()


@pytest.fixture
def copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copying:
    monkeypatch.setattr(streaming, "PIECE", 1 << 10)
    monkeypatch.setattr(programs, "LIST", 1 << 12)
    return Copying(tmp_path)


@pytest.mark.parametrize("listed", [True, False])
def test_a_copied_tensor_is_whole_and_digested(listed: bool, tmp_path: Path, copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:
        monkeypatch.setattr(digest, "library", lambda: None)
        copying = Copying(tmp_path)
    assert copying.copy()
    copying.assert_whole()


@pytest.mark.parametrize("number", [1, 2, 3, 9, 20])
@pytest.mark.parametrize("name", ["pread64", "pwrite64"])
def test_short_transfers_of_a_copy_are_finished(name: str, number: int, copying: Copying, instead: Any) -> None:
    real = ctypes.cast(passes.function(name), KIND)
    instead(name, number, lambda fd, at, nbytes, offset: real(fd, at, nbytes // 3, offset))
    assert copying.copy()
    copying.assert_whole()


@pytest.mark.parametrize(("name", "number"), [("pread64", 1), ("pread64", 2), ("pwrite64", 1), ("pwrite64", 5)])
def test_an_error_of_a_copy_is_told_and_an_interruption_is_not(
    name: str, number: int, tmp_path: Path, copying: Copying, instead: Any
) -> None:
    def fails(error: int) -> Transfer:
        def call(*_: int) -> int:
            ctypes.set_errno(error)
            return -1

        return call

    instead(name, number, fails(errno.EINTR))
    assert copying.copy()
    copying.assert_whole()
    instead(name, number, fails(errno.EIO))
    with pytest.raises((OSError, SourceUnreadable), match=os.strerror(errno.EIO)):
        Copying(tmp_path).copy()


def test_a_bit_that_turns_in_a_copy_is_found(copying: Copying, instead: Any) -> None:
    def turned(fd: int, at: int, nbytes: int, offset: int) -> int:
        raw = bytearray((ctypes.c_char * nbytes).from_address(at).raw)
        raw[-1] ^= 1
        return os.pwrite(fd, raw, offset)

    instead("pwrite64", 6, turned)
    assert not copying.copy()


# ------------------------------------------------------------------ shapes nobody thought of
def random_models(seed: int, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Random shapes, ranks, targets and window sizes: lists give the reference's bytes. Gives how many were compared."""
    dice, compared = random.Random(seed), 0
    while compared < count:
        row, size = dice.choice(DECODERS), dice.choice([64, 128, 192, 256, 320, 512, 576])
        heads = dice.choice([1, 2, 4])
        experts = (
            {"experts": dice.choice([2, 3, 5]), "expert_intermediate": dice.choice([64, 128, 192, 256])}
            if "moe" in row["model_type"]
            else {}
        )
        shape = Shape(
            hidden=size,
            intermediate=dice.choice([64, 128, 192, 256, 384, 640]),
            heads=heads,
            kv_heads=dice.choice([x for x in (1, 2, 4) if heads % x == 0]),
            head_dim=dice.choice([32, 64, 128]),
            **experts,
        )
        here = folder / f"{seed}-{compared}"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        target, act = dice.choice([*TARGETS, ("sm80", "int4"), ("sm80", "int8"), ("sm120", "mxfp8")])
        options = {"target": target, "act": act, "dtype": "fp16" if target == "sm75" else "bf16", "tp": dice.choice([1, 1, 2])}
        monkeypatch.setattr(stream, "SMALL", 1 << 22)
        monkeypatch.setattr(answer, "SMALL", 1 << 22)
        try:
            model = decoder(**{**row, "shape": shape}).write(here)
        except (AssertionError, ValueError):  # a shape that the format does not have
            continue
        try:
            plan = api.plan(model, **options)
        except Refused:
            continue
        api.convert(plan, out=here / "reference")
        monkeypatch.setattr(stream, "SMALL", 0)
        monkeypatch.setattr(answer, "SMALL", 0)
        monkeypatch.setattr(programs, "_kept", {})
        monkeypatch.setattr(programs, "WINDOW", 1 << dice.choice([7, 8, 9, 10, 12, 16]))
        monkeypatch.setattr(programs, "LIST", 1 << dice.choice([10, 12, 14, 16, 18]))
        api.convert(api.plan(model, **options), out=here / "lists", jobs=dice.choice([1, 2]))
        assert weights(here / "reference") == weights(here / "lists"), (row["name"], shape, options, programs.WINDOW, programs.LIST)
        shutil.rmtree(here)
        compared += 1
    return compared


def test_random_models_give_the_bytes_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert random_models(1, 20, tmp_path, monkeypatch) == 20


@pytest.mark.soak
def test_many_random_models_give_the_bytes_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print("\nequal models:", random_models(2, 400, tmp_path, monkeypatch))
