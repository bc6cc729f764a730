"""Faults at single calls of a small conversion: an error with its code and words, never a folder that is not whole, always a way on.

The short set takes a few calls of each kind; `-m soak` takes every call and prints counts.
"""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from humming_convert import api
from tests.faults.faults import Bench, Server, build_shim, content, some
from tests.samples import sample

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
KINDS = (["write"], ["read"], ["sync"], ["name"])
FEW = 4

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim is compiled by gcc")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module", params=[False, True], ids=["reference", "lists of calls"])
def bench(request: pytest.FixtureRequest, shim: Path) -> Iterator[Bench]:
    """In memory where the system has a folder there: the calls are the same ones, and thousands of fsync wait for no disk."""
    server = Server(shim)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None, prefix="faults-") as top:
        folder = Path(top)
        (folder / "work").mkdir()
        yield Bench(server, sample("gptq-4bit-v1-sym").write(folder / "models"), folder / "work", lists=request.param)
    server.close()


# ------------------------------------------------------------------ one call
def sweep(bench: Bench, most: int) -> int:
    """Errors and short transfers, once and for good, at up to `most` calls of each kind."""
    trials = 0
    for kinds in KINDS:
        for at in some(bench.calls(kinds), most):
            for for_good in (False, True):
                for error in ERRORS:
                    bench.trial(kinds, at, "fail", error=error, for_good=for_good)
                    trials += 1
                if kinds in (["write"], ["read"]):
                    bench.trial(kinds, at, "short", for_good=for_good)
                    trials += 1
    return trials


def kills(bench: Bench, most: int) -> int:
    trials = 0
    every = ["write", "sync", "name"]
    for at in some(bench.calls(every), most):
        for action in ("kill-before", "kill-after"):
            bench.trial(every, at, action)
            trials += 1
    return trials


def test_a_failing_or_short_call_is_an_error_and_the_run_goes_on_later(bench: Bench) -> None:
    assert sweep(bench, FEW) > 0


def test_a_kill_at_a_call_leaves_a_folder_that_goes_on(bench: Bench) -> None:
    assert kills(bench, 3 * FEW) > 0


def test_replacing_a_folder_survives_a_kill_at_a_call(bench: Bench) -> None:
    assert replace(bench, FEW) > 0


def replace(bench: Bench, most: int) -> int:
    """--overwrite of a folder of another request: at any time the old one or the new one is there, whole."""
    old = ["convert", str(bench.model), "--out", str(bench.out), "--target", "sm90", "--act", "fp8", "--quiet"]
    new = ["convert", str(bench.model), "--out", str(bench.out), *bench.options, "--overwrite"]
    every, trials, calls = ["write", "sync", "name"], 0, 0
    bench.clear()
    assert bench.server.run(old).code == 0
    before = content(bench.out)
    shutil.copytree(bench.out, bench.work.parent / "old", dirs_exist_ok=True)
    calls = bench.server.run(new, fault=bench.fault(every, 0, "fail")).calls
    for at in [*some(calls, most), *range(calls - 12, calls + 1)]:
        for action in ("kill-before", "kill-after"):
            bench.clear()
            shutil.copytree(bench.work.parent / "old", bench.out)
            bench.server.run(new, fault=bench.fault(every, at, action))
            assert content(bench.out) in (before, bench.want), (action, at)
            assert bench.server.run(new).code == 0
            assert content(bench.out) == bench.want
            assert [p.name for p in bench.work.iterdir()] == ["out"], (action, at)
            trials += 1
    return trials


# ------------------------------------------------------------------ the source fails
def unreadable(bench: Bench, most: int) -> int:
    """Reads of the source fail or end short, in the plan and in the passes."""
    trials = 0
    bench.clear()
    where = {"folder": str(bench.model), "kinds": ["read"], "at": 0, "action": "fail", "errno": errno.EIO, "for_good": False}
    calls = bench.convert(fault=where).calls
    for at in some(calls, most):
        for action, for_good in (("fail", False), ("fail", True), ("short", False), ("short", True)):
            bench.clear()
            ended = bench.convert(fault={**where, "at": at, "action": action, "for_good": for_good})
            bench.assert_safe(f"{action} at read {at} of the source", ended)
            assert ended.code in ((3, 5) if action == "fail" else (0,)), ended
            if ended.code == 3:  # the file could not be read when the checkpoint was opened
                assert list(bench.work.iterdir()) == []
            bench.assert_resumes(f"{action} at read {at} of the source")
            trials += 1
    return trials


def test_a_source_that_cannot_be_read_is_an_error_and_the_run_goes_on_later(bench: Bench) -> None:
    assert unreadable(bench, 2 * FEW) > 0


# ------------------------------------------------------------------ limits of the file size
def sizes(bench: Bench, count: int) -> int:
    largest = max(len(raw) for raw in bench.want.values())
    failed = 0
    for number in range(count):
        bench.clear()
        limit = largest * (number + 1) // (count + 1)
        ended = bench.convert(file_limit=limit)
        bench.assert_safe(f"files of {limit} bytes at most", ended)
        if ended.code:
            assert ended.code == 5 and "--shard-size" in ended.said, ended
            failed += 1
        bench.assert_resumes(f"files of {limit} bytes at most")
    return failed


def test_a_limit_of_the_file_size_is_an_error_that_names_the_way_out(bench: Bench) -> None:
    assert sizes(bench, 5) == 5


# ------------------------------------------------------------------ two runs, flipped bits
def races(shim: Path, bench: Bench, count: int) -> tuple[int, int]:
    """Two conversions into one folder at the same time: (rounds in which one was told of the other, rounds in which both succeeded)."""
    other, told, both = Server(shim), 0, 0
    try:
        other.send({"warm": [str(bench.model), str(bench.work.parent / "other")]})
        other.receive()
        trial = {"arguments": ["convert", str(bench.model), "--out", str(bench.out), *bench.options]}
        for _ in range(count):
            bench.clear()
            bench.server.send(trial)
            other.send(trial)
            ends = [bench.server.receive(), other.receive()]
            codes = sorted(e["code"] for e in ends)
            assert codes in ([0, 0], [0, 5]), ends
            if codes == [0, 5]:
                assert any("is locked by process" in e["said"] for e in ends), ends
            told, both = told + (codes == [0, 5]), both + (codes == [0, 0])
            assert content(bench.out) == bench.want
            assert [p.name for p in bench.work.iterdir()] == ["out"]
    finally:
        other.close()
    return told, both


def test_of_two_runs_into_one_folder_one_is_told_of_the_other(shim: Path, bench: Bench) -> None:
    assert sum(races(shim, bench, 3)) == 3


def flips(bench: Bench, count: int, seed: int) -> int:
    dice = random.Random(seed)
    names = sorted(n for n in bench.want)
    for number in range(count):
        name = names[number % len(names)] if number < 4 * len(names) else dice.choices(names, [len(bench.want[n]) for n in names])[0]
        if not bench.want[name]:
            continue
        at, bit = dice.randrange(len(bench.want[name])), dice.randrange(8)
        path = bench.out / name
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(bytes([bench.want[name][at] ^ 1 << bit]))
        assert api.verify(bench.out).findings.errors, f"bit {bit} of byte {at} of {name}"
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(bench.want[name][at : at + 1])
    assert not api.verify(bench.out).findings.errors
    return count


def test_verify_finds_every_flipped_bit(bench: Bench) -> None:
    bench.clear()
    assert bench.convert().code == 0
    assert flips(bench, 60, seed=0) == 60


# ------------------------------------------------------------------ all of it
@pytest.mark.soak
def test_every_call_of_a_conversion(bench: Bench) -> None:
    print(f"\nfaults: {sweep(bench, 1 << 30)} trials of errors and short transfers, all as they must be")
    print(f"source: {unreadable(bench, 1 << 30)} trials of errors and short reads")


@pytest.mark.soak
def test_a_kill_at_every_call_of_a_conversion(bench: Bench) -> None:
    print(
        f"\nkills: {kills(bench, 1 << 30)} of a new folder, {replace(bench, 1 << 30)} of one that is replaced, all resumed to equal bytes"
    )


@pytest.mark.soak
def test_a_hundred_file_size_limits_two_hundred_races_ten_thousand_flips(shim: Path, bench: Bench) -> None:
    print(f"\nsizes: 100 limits, {sizes(bench, 100)} too small and told so")
    print(f"races: 200 rounds, (told of the other, both succeeded): {races(shim, bench, 200)}")
    bench.clear()
    assert bench.convert().code == 0
    print(f"flips: {flips(bench, 10_000, seed=1)} single bits, all found")
