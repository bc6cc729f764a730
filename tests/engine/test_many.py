"""Many machines, many targets, little memory: the bytes are those of one plain run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.engine import folder as folders
from humming_convert.engine import jobs, local, memory
from humming_convert.engine.memory import Budget, allowed, limit_of_cgroup
from humming_convert.engine.merge import PartsMissing
from humming_convert.engine.progress import Counter, Event
from tests.samples import sample
from tests.whole import assert_whole, manifest_of

HAS_RAY = importlib.util.find_spec("ray") is not None
SHARDS = "40KB"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return sample("gptq-4bit-v1-sym").write(tmp_path / "models")


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.fixture
def whole(model: Path, tmp_path: Path) -> dict[str, bytes]:
    api.convert(api.plan(model, target="sm90", act="bf16", shard_size=SHARDS), out=tmp_path / "whole")
    found = content(tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    return found


def part(model: Path, out: Path, number: int, of: int) -> Any:
    return api.convert(api.plan(model, target="sm90", act="bf16", shard_size=SHARDS), out=out, split=f"{number}/{of}")


# ------------------------------------------------------------------ parts
@pytest.mark.parametrize("parts", [1, 2, 3, 16])
def test_merged_parts_are_the_bytes_of_one_run(model: Path, tmp_path: Path, whole: dict[str, bytes], parts: int) -> None:
    did: list[str] = []
    for number in range(parts, 0, -1):
        result = part(model, tmp_path / "out", number, parts)
        did += result.part["files"]
        assert not (tmp_path / "out").exists()
    assert sorted(did) == sorted(n for n in whole if n.endswith(".safetensors"))
    api.merge(tmp_path / "out")
    assert content(tmp_path / "out") == whole
    assert_whole(tmp_path / "out")
    assert api.convert(api.plan(model, target="sm90", act="bf16", shard_size=SHARDS), out=tmp_path / "out").already_done


@pytest.mark.parametrize("options", [{"target": "sm90", "act": "bf16"}, {"standard": True}], ids=["packed", "standard"])
@pytest.mark.parametrize("parts", [1, 2, 3, 16])
def test_what_a_part_says_is_of_the_part(model: Path, tmp_path: Path, options: dict[str, Any], parts: int) -> None:
    plan = api.plan(model, **options, shard_size=SHARDS)
    found = [api.convert(plan, out=tmp_path / "out", split=f"{n}/{parts}") for n in range(1, parts + 1)]
    for result in found:
        document = result.document()
        written = [(tmp_path / "out.partial" / name).stat().st_size for name in document["part"]["files"]]
        assert document["totals"]["bytes_out"] == sum(written)
        assert document["totals"].keys() == plan.totals.keys() and document["totals"]["layers"] == document["layers"]
    for what in ("layers", "modules", "bytes_in", "bytes_out"):
        whole_ = plan.totals[what]
        assert sum(r.totals[what] for r in found) == whole_, what
    assert sum(r.totals["passthrough"]["bytes"] for r in found) == plan.totals["passthrough"]["bytes"]


def test_merge_names_the_parts_that_are_missing(model: Path, tmp_path: Path) -> None:
    part(model, tmp_path / "out", 2, 3)
    with pytest.raises(PartsMissing, match=r"--split 1/3 .*, 3/3"):
        api.merge(tmp_path / "out")
    with pytest.raises(api.UsageError, match="no split run"):
        api.merge(tmp_path / "other")


def test_a_plain_run_writes_what_parts_left_and_no_more(
    model: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    part(model, tmp_path / "out", 1, 2)
    written: list[str] = []
    real = jobs._write_item

    def write(item: Any, writer: Any, *rest: Any) -> None:
        written.append(writer.path.name)
        real(item, writer, *rest)

    monkeypatch.setattr(jobs, "_write_item", write)
    plan = api.plan(model, target="sm90", act="bf16", shard_size=SHARDS)
    api.convert(plan, out=tmp_path / "out")
    left = jobs.share(jobs.jobs_of(plan, tmp_path), 2, 2)
    assert set(written) == {j.file.name for j in left}
    assert content(tmp_path / "out") == whole


def test_parts_work_side_by_side_but_not_beside_a_whole_run(model: Path, tmp_path: Path) -> None:
    with folders.workspace(tmp_path / "out", "1of2"):
        with folders.workspace(tmp_path / "out", "2of2"):
            pass
        with pytest.raises(folders.LockHeld):
            api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")


def test_another_hosts_lock_holds_as_long_as_it_gives_signs_of_life(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    (tmp_path / "out.partial").mkdir()
    lock = tmp_path / "out.partial" / folders.LOCK
    lock.write_text('{"pid": 1, "host": "another", "boot": "x", "start": "1"}')
    with pytest.raises(folders.LockHeld, match="on another"):
        api.convert(plan, out=tmp_path / "out")
    os.utime(lock, (time.time() - 2 * folders.STALE,) * 2)
    api.convert(plan, out=tmp_path / "out")
    assert_whole(tmp_path / "out")


# ------------------------------------------------------------------ many targets
@pytest.mark.parametrize("link", [False, True])
def test_several_targets_from_one_reading_are_what_each_is_by_itself(model: Path, tmp_path: Path, link: bool) -> None:
    plans = api.plans(model, ["sm90", "sm80", "sm120"], act="bf16", shard_size=SHARDS)
    api.convert_all([(p, tmp_path / "all" / api.default_name(p)) for p in plans], link_common=link)
    common = []
    for plan in plans:
        name = api.default_name(plan)
        alone = api.plan(model, target=plan.request.target.name, act="bf16", shard_size=SHARDS)  # type: ignore[union-attr]
        api.convert(alone, out=tmp_path / "alone" / name)
        assert content(tmp_path / "all" / name) == content(tmp_path / "alone" / name)
        assert_whole(tmp_path / "all" / name)
        common.append(next((tmp_path / "all" / name).glob("model-common-*")).stat().st_nlink)
    if link:
        assert common == [3, 3, 3]


def test_a_target_that_is_refused_refuses_all_and_names_every_reason(model: Path, tmp_path: Path) -> None:
    from humming_convert import Refused

    with pytest.raises(Refused) as refused:
        api.plans(model, ["sm90", "sm80"], act="nvfp4")
    assert {f.code for f in refused.value.findings if f.severity == "error"}
    assert [p.name for p in tmp_path.iterdir()] == ["models"]


# ------------------------------------------------------------------ Ray
@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_the_way_to_install_it_is_said(model: Path, tmp_path: Path) -> None:
    from humming_convert.engine.on_ray import MissingExtra

    with pytest.raises(MissingExtra, match=r"pip install 'humming-convert\[ray\]'"):
        api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out", engine="ray")
    assert [p.name for p in tmp_path.iterdir()] == ["models"]


def test_an_address_without_ray_is_a_usage_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(api.UsageError, match=r"--address .* --engine ray"):
        api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out", address="a:1")
    assert [p.name for p in tmp_path.iterdir()] == ["models"]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="needs Ray")
@pytest.mark.parametrize("workers", [1, 2])
def test_ray_makes_the_same_bytes(model: Path, tmp_path: Path, whole: dict[str, bytes], workers: int) -> None:
    plan = api.plan(model, target="sm90", act="bf16", shard_size=SHARDS)
    start = time.perf_counter()
    api.convert(plan, out=tmp_path / "out", engine="ray", jobs=workers)
    print(f"\nRay, {workers} workers: {time.perf_counter() - start:.1f} s with its start")
    assert content(tmp_path / "out") == whole


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="needs Ray")
def test_a_ray_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    model = sample("gptq-4bit-larger").write(tmp_path / "models")
    plan = api.plan(model, target="sm90", act="bf16", shard_size="1MB")
    api.convert(plan, out=tmp_path / "whole")
    killed: list[int] = []

    def kill() -> None:
        for _ in range(600):
            time.sleep(0.05)
            mine = workers_below(os.getpid())
            if mine:
                os.kill(mine[0], signal.SIGKILL)
                killed.append(mine[0])
                return

    thread = threading.Thread(target=kill)
    thread.start()
    api.convert(plan, out=tmp_path / "out", engine="ray", jobs=2)
    thread.join()
    assert killed
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def workers_below(pid: int) -> list[int]:
    """Processes below `pid` that run a task. Threads and processes may end while they are looked at."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []
    out: list[int] = []
    for task in threads:
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            try:
                name = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            out += [child] if name.startswith(b"ray::write_one") else []
            out += workers_below(child)
    return out


# ------------------------------------------------------------------ memory
def test_workers_wait_for_memory_and_one_always_goes_on() -> None:
    budget, most, now = Budget(100), [0], [0]
    lock = threading.Lock()

    def work(nbytes: int) -> None:
        with budget.take(nbytes, lambda: None):
            with lock:
                now[0] += nbytes
                most[0] = max(most[0], now[0])
            time.sleep(0.01)
            with lock:
                now[0] -= nbytes

    threads = [threading.Thread(target=work, args=(n,)) for n in (60, 60, 30, 30, 250, 10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(10)
    assert most[0] in (100, 250) or most[0] <= 100
    assert budget.used == 0


def test_a_tight_budget_changes_no_byte(model: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    plan = api.plan(model, target="sm90", act="bf16", shard_size=SHARDS)
    api.convert(plan, out=tmp_path / "out", max_memory="1MB", jobs=4)
    assert content(tmp_path / "out") == whole


@pytest.mark.parametrize(("base", "driver"), [(0, 0), (60_000_000, 0), (600_000_000, 500_000_000), (10, 500_000_000)])
def test_less_memory_than_one_layer_takes_is_refused_with_what_it_takes(model: Path, base: int, driver: int) -> None:
    plan = api.plan(model, target="sm90", act="bf16")
    items = [*plan.layers, *plan.plain]
    least = max(base - driver, 0) + max(map(memory.need, items))
    with pytest.raises(memory.TooLittleMemory, match=f"{least:,} are needed"):
        memory.check_enough(items, least - 1, base, driver, 1)
    memory.check_enough(items, least, base, driver, 1)
    assert allowed(items, least, None, max(base, driver), driver) >= max(map(memory.need, items))


@pytest.mark.parametrize("io", ["mmap", "read"])
def test_the_way_of_reading_changes_no_byte(model: Path, tmp_path: Path, whole: dict[str, bytes], io: Any) -> None:
    plan = api.plan(model, target="sm90", act="bf16", shard_size=SHARDS, io=io)
    api.convert(plan, out=tmp_path / "out", io=io)
    assert content(tmp_path / "out") == whole


def cgroup(root: Path, lines: str, files: dict[str, str]) -> int | None:
    (root / "proc").mkdir()
    (root / "proc" / "cgroup").write_text(lines)
    for name, text in files.items():
        (root / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "fs" / name).write_text(text)
    return limit_of_cgroup(root / "proc", root / "fs")


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000\n", "memory.max": "5000\n"}, 1000),
        ("0::/a\n", {"a/memory.max": "max\n"}, None),
        ("0::/of/the/host\n", {"memory.max": "2000\n"}, 2000),
        ("5:cpu,cpuacct:/x\n9:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "3000\n"}, 3000),
        ("9:memory:/\n", {"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, None),
    ],
)
def test_limits_of_cgroups_are_seen(tmp_path: Path, lines: str, files: dict[str, str], limit: int | None) -> None:
    assert cgroup(tmp_path, lines, files) == limit


def test_the_budget_is_the_least_of_what_is_asked_and_what_the_machine_gives(model: Path) -> None:
    items = [*api.plan(model, target="sm90", act="bf16").layers]
    largest = max(map(memory.fused_bytes, items))
    assert allowed(list(items), None, None, 50) == memory.ALLOWED + largest - 50
    assert allowed(list(items), 200_000_000, None, 50) == 200_000_000 - 50
    assert allowed(list(items), 200_000_000, 100_000_000, 50) == 80_000_000 - 50
    assert allowed(list(items), 40, None, 50) == 0


def test_a_process_that_is_large_already_still_gives_its_workers_something(model: Path) -> None:
    items = list(api.plan(model, target="sm90", act="bf16").layers)
    assert allowed(items, None, None, 10**10) == memory.LEAST
    assert allowed(items, 10**9, None, 10**10) == 0
    assert allowed(items, None, 10**9, 700_000_000) == 100_000_000
    assert allowed(items, None, 10**9, 10**9) == 0


# ------------------------------------------------------------------ progress
def test_the_rate_counts_this_run_only_and_the_rest_follows_from_it() -> None:
    told: list[Event] = []
    seconds = iter([0.0, 1.0, 3.0])
    counter = Counter(100, told.append, clock=lambda: next(seconds))
    counter.tell("resume", "file", 40)
    counter.tell("tensor", "layer", 20)
    assert (told[0].done, told[0].rate, told[0].eta) == (40, 0.0, None)
    assert (told[1].done, round(told[1].rate, 3), told[1].eta) == (60, 6.667, 6.0)


def test_the_seconds_of_a_run_are_told_by_phase(model: Path, tmp_path: Path) -> None:
    result = api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    assert {"read", "pack", "prove", "write", "all", "finish"} <= result.seconds.keys()
    assert all(s >= 0 for s in result.seconds.values())
    assert manifest_of(tmp_path / "out").keys().isdisjoint({"seconds"})


def test_files_of_the_same_plain_tensors_are_grouped_and_others_are_not(model: Path, tmp_path: Path) -> None:
    plans = api.plans(model, ["sm90", "sm80"], act="bf16")
    tasks = [local.Task(job=j, begun=None, keep=lambda *_: None, result=lambda _: None) for p in plans for j in jobs.jobs_of(p, tmp_path)]
    groups = local.grouped(tasks)
    assert sorted(len(g) for g in groups) == [1] * (len(groups) - 1) + [2]
