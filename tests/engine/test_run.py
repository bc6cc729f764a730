"""A run as a user sees it: one whole folder or none, the same bytes every time, and a way on after everything that can go wrong."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from humming_convert import Refused, api
from humming_convert.engine import folder as folders
from humming_convert.engine import jobs, output, prepare, run
from humming_convert.plan.types import Plan, PlannedLayer
from tests.fuzz.folders import bases, write
from tests.samples import sample
from tests.whole import assert_whole, manifest_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return sample("gptq-4bit-v1-sym").write(tmp_path / "models")


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_a_run_leaves_one_whole_folder(model: Path, tmp_path: Path) -> None:
    result = api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert assert_whole(tmp_path / "out")["fingerprint"] == result.plan.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models", "out"]


@pytest.mark.parametrize("options", [{"target": "sm90", "act": "fp8"}, {"standard": True}])
def test_the_bytes_do_not_depend_on_the_workers(model: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    plan = api.plan(model, shard_size="40KB", **options)
    assert len(plan.files) > 3
    for workers in (1, 3):
        api.convert(plan, out=tmp_path / str(workers), jobs=workers)
    assert content(tmp_path / "1") == content(tmp_path / "3")


def test_the_same_command_on_a_whole_folder_does_nothing(model: Path, tmp_path: Path) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "out")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    assert api.convert(plan, out=tmp_path / "out").already_done
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


def test_a_folder_of_another_request_is_not_touched_and_the_difference_is_named(model: Path, tmp_path: Path) -> None:
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(folders.Occupied, match=r'options\.act: "bf16", now "fp8"'):
        api.convert(api.plan(model, target="sm90", act="fp8"), out=tmp_path / "out")
    assert content(tmp_path / "out") == before


def test_overwrite_replaces_a_folder(model: Path, tmp_path: Path) -> None:
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    api.convert(api.plan(model, target="sm90", act="fp8"), out=tmp_path / "out", overwrite=True)
    assert assert_whole(tmp_path / "out")["act"] == "fp8"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models", "out"]


def test_a_foreign_folder_is_not_touched(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(folders.Occupied, match="no output of this tool"):
        api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert content(tmp_path / "out") == {"thesis.tex": b"years of work"}


def test_a_foreign_partial_folder_is_not_touched(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.tex").write_text("years of work")
    with pytest.raises(folders.Occupied, match="not ours"):
        api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert content(tmp_path / "out.partial") == {"thesis.tex": b"years of work"}


class Stop(Exception):
    """What a test throws into a run."""


def stop_after(monkeypatch: pytest.MonkeyPatch, items: int, error: BaseException) -> list[str]:
    """The run fails when `items` layers and plain tensors are written, each journalled as it is; what is written (several workers: some more)."""
    written: list[str] = []
    real = jobs._write_item

    def write(item: Any, *args: Any) -> None:
        if len(written) >= items:
            raise error
        real(item, *args)
        written.append("")

    monkeypatch.setattr(jobs, "PIECE", 1)
    monkeypatch.setattr(jobs, "_write_item", write)
    return written


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is written from now on."""
    written: list[str] = []
    real = jobs._write_item

    def write(item: Any, *args: Any) -> None:
        written.append(item.key if isinstance(item, PlannedLayer) else item.output.name)
        real(item, *args)

    monkeypatch.setattr(jobs, "_write_item", write)
    return written


def items_of(plan: Plan) -> int:
    return len(plan.layers) + len(plan.plain)


@pytest.mark.parametrize("shard_size", ["40KB", "5GB"])
@pytest.mark.parametrize("jobs_", [1, 2])
def test_an_interrupted_run_goes_on_where_it_stopped_and_makes_the_same_bytes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_size: str, jobs_: int
) -> None:
    plan = api.plan(model, target="sm90", act="bf16", shard_size=shard_size)
    api.convert(plan, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        first = stop_after(patched, 5, Stop())
        with pytest.raises(Stop):
            api.convert(plan, out=tmp_path / "out", jobs=jobs_)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial" / "humming_manifest.json").exists()
    written = counted(monkeypatch)
    api.convert(plan, out=tmp_path / "out", jobs=jobs_)
    assert len(written) == items_of(plan) - len(first)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("shard_size", ["40KB", "5GB"])
def test_finished_bytes_that_were_damaged_are_written_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_size: str
) -> None:
    plan = api.plan(model, target="sm90", act="bf16", shard_size=shard_size)
    api.convert(plan, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        stop_after(patched, 3, Stop())
        with pytest.raises(Stop):
            api.convert(plan, out=tmp_path / "out", jobs=1)
    line = json.loads((tmp_path / "out.partial" / ".humming-convert.journal").read_text().splitlines()[1])
    with open(tmp_path / "out.partial" / line["file"], "r+b") as f:
        f.seek(line["upto"] - 1)
        last = f.read(1)[0]
        f.seek(line["upto"] - 1)
        f.write(bytes([last ^ 1]))
    written = counted(monkeypatch)
    api.convert(plan, out=tmp_path / "out")
    assert len(written) > items_of(plan) - 3
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_source_that_was_touched_between_two_tries_is_read_from_the_beginning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 5, Stop())
        with pytest.raises(Stop):
            api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out", jobs=1)
    os.utime(model / "model.safetensors", ns=(1, 1))
    plan = api.plan(model, target="sm90", act="bf16")
    written = counted(monkeypatch)
    api.convert(plan, out=tmp_path / "out")
    assert len(written) == items_of(plan)
    assert_whole(tmp_path / "out")


def test_another_request_does_not_go_on_in_an_unfinished_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 3, Stop())
        with pytest.raises(Stop):
            api.convert(api.plan(model, target="sm90", act="bf16", shard_size="40KB"), out=tmp_path / "out", jobs=1)
    other = api.plan(model, target="sm90", act="fp8", shard_size="40KB")
    with pytest.raises(folders.Occupied, match=r"options\.act.*--fresh"):
        api.convert(other, out=tmp_path / "out")
    api.convert(other, out=tmp_path / "out", fresh=True)
    assert assert_whole(tmp_path / "out")["act"] == "fp8"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_is_an_error_and_the_run_goes_on_later(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    calls = 0
    real = os.pwrite

    def pwrite(fd: int, data: Any, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError(code, os.strerror(code))
        return real(fd, data[: max(len(data) // 2, 1)], offset)  # and every other write is a short one

    with monkeypatch.context() as patched:
        patched.setattr(output.os, "pwrite", pwrite)
        with pytest.raises(OSError, match=os.strerror(code)):
            api.convert(plan, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    api.convert(plan, out=tmp_path / "out")
    assert_whole(tmp_path / "out")


def test_a_disk_that_is_too_small_is_told_before_the_start(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = prepare.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(prepare.NoSpace, match=r"1,000 bytes free.*a reserve of 67,108,864"):
        api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models"]


def test_a_source_that_changes_under_the_run_ends_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from humming_convert.checkpoint import SourceChanged

    plan = api.plan(model, target="sm90", act="bf16")
    real = run._write

    def write(*args: Any) -> Any:
        out = real(*args)
        os.utime(model / "model.safetensors", ns=(1, 1))
        return out

    monkeypatch.setattr(run, "_write", write)
    with pytest.raises(SourceChanged):
        api.convert(plan, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    written = counted(monkeypatch)  # nothing that was read of it is believed
    plan = api.plan(model, target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "out")
    assert len(written) == items_of(plan)


def test_two_runs_into_one_folder_do_not_meet(model: Path, tmp_path: Path) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    with folders.workspace(tmp_path / "out"), pytest.raises(folders.LockHeld, match=str(os.getpid())):
        api.convert(plan, out=tmp_path / "out")
    api.convert(plan, out=tmp_path / "out")
    assert_whole(tmp_path / "out")


def test_the_lock_of_a_dead_process_is_taken_over(model: Path, tmp_path: Path) -> None:
    import socket

    partial = tmp_path / "out.partial"
    partial.mkdir()
    dead = {"pid": 2**22 + 1, "host": socket.gethostname(), "boot": folders._boot_id(), "start": "1"}
    (partial / folders.LOCK).write_text(json.dumps(dead))
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert_whole(tmp_path / "out")


def test_a_packed_word_that_does_not_reach_the_file_fails_the_proof(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from humming_convert.proof.failed import ProofFailed

    real = output.read_into

    def flip(fd: int, data: memoryview, offset: int, path: Path) -> None:
        real(fd, data, offset, path)
        if "packed" in path.name and len(data) > 5000:
            data[4000] ^= 16

    monkeypatch.setattr(output, "read_into", flip)
    with pytest.raises(ProofFailed, match="code at n="):
        api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["models"]


def test_a_run_that_died_between_its_last_byte_and_the_rename_is_only_published(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    with monkeypatch.context() as patched:
        patched.setattr(folders.os, "rename", fail_for("out.partial", folders.os.rename))
        with pytest.raises(Stop):
            api.convert(plan, out=tmp_path / "out")
    written = counted(monkeypatch)
    api.convert(plan, out=tmp_path / "out")
    assert written == []
    assert_whole(tmp_path / "out")


def fail_for(name: str, real: Any) -> Any:
    def call(first: Any, *rest: Any) -> Any:
        if Path(first).name == name:
            raise Stop
        return real(first, *rest)

    return call


@pytest.mark.parametrize("one_step", [True, False])
def test_overwriting_never_leaves_the_name_without_a_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_step: bool
) -> None:
    """A run that dies right after old and new changed places leaves the new one, and the next removes the old."""
    if not one_step:
        monkeypatch.setattr(folders.ctypes, "CDLL", lambda *_, **__: object())
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    plan = api.plan(model, target="sm90", act="fp8")
    real = folders.exchange

    def exchange(a: Path, b: Path) -> None:
        real(a, b)
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(folders, "exchange", exchange)
        with pytest.raises(Stop):
            api.convert(plan, out=tmp_path / "out", overwrite=True)
    assert manifest_of(tmp_path / "out")["act"] == "fp8"
    assert api.convert(plan, out=tmp_path / "out", overwrite=True).already_done
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models", "out"]
    assert_whole(tmp_path / "out")


def test_a_refused_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    made = sample("gptq-4bit-v1-sym")
    name = next(n for n in made.tensors if n.endswith(".scales"))
    broken = {**made.tensors, name: made.tensors[name].copy()}
    broken[name].reshape(-1)[3] = float("nan")
    from dataclasses import replace

    model = replace(made, tensors=broken).write(tmp_path / "models")
    with pytest.raises(Refused) as refused:
        api.plan(model, target="sm90", act="bf16")
    assert any(f.tensor == name for f in refused.value.findings)


def test_the_manifest_names_no_path_of_the_run(model: Path, tmp_path: Path) -> None:
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert str(tmp_path) not in json.dumps(manifest_of(tmp_path / "out"))


@pytest.mark.parametrize("options", [{"target": "sm90", "act": "bf16"}, {"standard": True}])
def test_a_quantized_head_becomes_a_matrix_in_the_output(tmp_path: Path, options: dict[str, Any]) -> None:
    """A dequantized matrix is an expression over a whole layer, unlike the tensors that are copied beside it."""
    folder = bases()["demo:gptq-4bit-v1-sym"].copy()
    tensors = folder.weights["model.safetensors"]
    tensors |= {f"lm_head.{leaf}": tensors[f"model.layers.0.self_attn.o_proj.{leaf}"] for leaf in ("qweight", "qzeros", "scales", "g_idx")}
    write(folder, tmp_path / "in")
    result = api.convert(api.plan(tmp_path / "in", **options), out=tmp_path / "out")
    assert [d["name"] for d in result.manifest["dequantized"]] == ["lm_head"]
    assert_whole(tmp_path / "out")


def test_memory_that_runs_out_is_told_with_its_exit_code_and_the_run_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import signal

    from humming_convert.cli.guard import guarded
    from humming_convert.cli.main import application

    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    # one worker: several write some more in the first run, and then too little may be left for the second to fail
    command = ["convert", str(model), "--target", "sm90", "--act", "bf16", "--out", str(tmp_path / "out"), "--jobs", "1", "-q"]
    try:
        for error in (MemoryError(), RuntimeError("can't start new thread")):
            with monkeypatch.context() as patched:
                stop_after(patched, 3, error)
                assert guarded(application(), command) == 5
            said = capsys.readouterr().err
            assert "--jobs" in said and "Traceback" not in said
            assert not (tmp_path / "out").exists()
        assert guarded(application(), command) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert_whole(tmp_path / "out")


def test_a_source_that_vanishes_under_the_run_is_told_and_the_run_goes_on_when_it_is_back(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from humming_convert.checkpoint.reading import SourceError

    plan = api.plan(model, target="sm90", act="bf16")
    hidden = model / "hidden"
    real = jobs._write_item

    def write(item: Any, *args: Any) -> None:
        real(item, *args)
        if (model / "model.safetensors").exists():
            os.rename(model / "model.safetensors", hidden)

    with monkeypatch.context() as patched:
        patched.setattr(jobs, "_write_item", write)
        with pytest.raises(SourceError) as failed:
            api.convert(plan, out=tmp_path / "out", jobs=1)
    assert failed.value.finding.file == "model.safetensors"
    assert not (tmp_path / "out").exists()
    os.rename(hidden, model / "model.safetensors")
    api.convert(plan, out=tmp_path / "out")
    assert_whole(tmp_path / "out")


@pytest.mark.parametrize("name", ["gptq-4bit-v1-sym", "mxfp4-gpt-oss"])
def test_strict_refuses_what_changed_a_value_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    source = sample(name).write(tmp_path / "models")
    options = {"target": "sm90", "act": "fp16" if name.startswith("mxfp4") else "bf16"}
    plan = api.plan(source, **options, **({"dtype": "fp16"} if name.startswith("mxfp4") else {}))
    steps = api.convert(plan, out=tmp_path / "free").lossy_steps
    assert steps
    strict = api.plan(source, **options, strict=True, **({"dtype": "fp16"} if name.startswith("mxfp4") else {}))
    with pytest.raises(Refused, match="lossy-step") as refused:
        api.convert(strict, out=tmp_path / "out")
    assert all(f.layer for f in refused.value.findings)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["free", "models"]


def test_strict_takes_what_changed_nothing(tmp_path: Path) -> None:
    source = sample("humming-uint4").write(tmp_path / "models")
    result = api.convert(api.plan(source, target="sm90", act="bf16", strict=True), out=tmp_path / "out")
    assert not result.lossy_steps and (tmp_path / "out").is_dir()


def test_no_output_is_made_inside_of_a_finished_one(model: Path, tmp_path: Path) -> None:
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(folders.Occupied, match="finished output"):
        api.convert(api.plan(model, target="sm80", act="bf16"), out=tmp_path / "out" / "more" / "sm80")
    assert content(tmp_path / "out") == before


def test_one_target_twice_is_a_usage_error(model: Path) -> None:
    with pytest.raises(api.UsageError, match="twice"):
        api.plans(model, ["sm90", "SM90"], act="bf16")
