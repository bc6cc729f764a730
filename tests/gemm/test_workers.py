"""Kernels compiled in processes of their own: in order, with the errors of compiling here, and no process that is left or waited for in vain."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from needs import needs_nvrtc

from humming_convert.gemm import cache, nvrtc_program, workers
from humming_convert.gemm.cache import KernelCache, build_all, build_each
from humming_convert.gemm.nvrtc import CompileError, compile_cubin
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.workers import Worker

ARCH = "sm_90a"
ENTRY = '#include "generated.cuh"\nextern "C" __global__ void {0}(int* x) {{ x[0] = {0}_value; }}\n'
# a __main__ that must not be run by workers; it has no guard
MAIN = """
import sys
from pathlib import Path
print("imported", flush=True)
from humming_convert.gemm.cache import KernelCache, build_all
from humming_convert.gemm.source import KernelSource
wanted = [(KernelSource(name=f"k{i}", entry=f'extern "C" __global__ void k{i}() {{}}', headers=()), "sm_90a") for i in range(4)]
print(len(set(build_all(KernelCache(Path(sys.argv[1])), wanted, 3))), flush=True)
"""
# a process that asks a worker for nothing more and is killed
KILLED = """
import os, signal
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.workers import Worker
worker = Worker()
worker.cubin(KernelSource(name="k", entry='extern "C" __global__ void k() {}', headers=()), "sm_90a")
print(worker.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
NOISY = "import os, runpy, sys\nos.write(2, b'noise' * 100000)\nrunpy.run_path({0!r}, run_name='__main__')\n"


def kernel(name: str, value: str = "1") -> KernelSource:
    return KernelSource(name=name, entry=ENTRY.format(name), headers=(("generated.cuh", f"constexpr int {name}_value = {value};\n"),))


def some(count: int) -> list[tuple[KernelSource, str]]:
    return [(kernel(f"k{i}"), ARCH) for i in range(count)]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Event:
    """This process compiles nothing before a worker has been asked, and has answered."""
    answered, asked = Event(), Worker.cubin

    def cubin(self: Worker, source: KernelSource, arch: str) -> bytes:
        try:
            return asked(self, source, arch)
        finally:
            answered.set()

    def here(source: KernelSource, arch: str) -> bytes:
        assert answered.wait(60)
        return compile_cubin(source, arch)

    monkeypatch.setattr(Worker, "cubin", cubin)
    monkeypatch.setattr(cache, "compile_cubin", here)
    return answered


@needs_nvrtc
def test_results_come_in_the_order_of_what_is_wanted(tmp_path: Path, late: Event) -> None:
    wanted = some(5)
    again = [*wanted, wanted[0]]
    paths = build_all(KernelCache(tmp_path / "many"), again, 3)
    assert late.is_set() and len(set(paths)) == 5 and paths[0] == paths[-1]
    alone = build_all(KernelCache(tmp_path / "one"), again, 1)
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in alone]
    assert all(name.encode() in p.read_bytes() for name, p in zip(("k0", "k1", "k2", "k3", "k4"), paths))
    assert paths == [KernelCache(tmp_path / "many").find(*one) for one in again]


@needs_nvrtc
@pytest.mark.parametrize("at", [0, 2])
def test_a_source_that_does_not_compile_gives_the_error_of_compiling_here(tmp_path: Path, at: int, late: Event) -> None:
    wanted = some(3)
    wanted[at] = (kernel("broken", "nothing"), ARCH)
    with pytest.raises(CompileError) as here:
        compile_cubin(*wanted[at])
    with pytest.raises(CompileError) as raised:
        build_all(KernelCache(tmp_path), wanted, 3)
    assert str(raised.value) == str(here.value) and "broken does not compile for sm_90a" in str(raised.value)
    assert raised.value.log == here.value.log and raised.value.options == here.value.options


@needs_nvrtc
@pytest.mark.parametrize("jobs", [1, 3])
def test_the_others_are_compiled_beside_one_that_does_not(tmp_path: Path, jobs: int) -> None:
    wanted = [*some(3), (kernel("broken", "nothing"), ARCH)]
    *paths, error = build_each(KernelCache(tmp_path), wanted, jobs)
    assert all(isinstance(p, Path) and p.is_file() for p in paths)
    assert isinstance(error, CompileError) and "broken" in str(error)


@needs_nvrtc
def test_a_worker_that_is_killed_is_an_error_that_says_so_and_the_next_one_works() -> None:
    worker = Worker()
    assert worker.cubin(kernel("k"), ARCH) == compile_cubin(kernel("k"), ARCH)
    assert worker.process is not None
    os.kill(worker.process.pid, signal.SIGKILL)
    with pytest.raises(
        CompileError, match=r"k for sm_90a: .* signal 9 \(SIGKILL\), as processes are when memory runs out\nadvice: compile fewer"
    ):
        worker.cubin(kernel("k"), ARCH)
    assert worker.cubin(kernel("k"), ARCH)[:4] == b"\x7fELF"
    worker.end()


@needs_nvrtc
def test_workers_that_end_at_once_are_an_error_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: Event) -> None:
    script = tmp_path / "ends.py"
    script.write_text("import sys\nprint('no such library', file=sys.stderr)\nsys.exit(3)\n")
    monkeypatch.setattr(workers, "SCRIPT", script)
    with pytest.raises(CompileError, match="ended with status 3; it printed:\nno such library"):
        build_all(KernelCache(tmp_path / "cache"), some(3), 2)


@needs_nvrtc
def test_what_a_worker_prints_neither_stops_it_nor_is_its_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "noisy.py"
    script.write_text(NOISY.format(nvrtc_program.__file__))
    monkeypatch.setattr(workers, "SCRIPT", script)
    worker = Worker()
    assert worker.cubin(kernel("k"), ARCH)[:4] == b"\x7fELF"
    worker.end()


@needs_nvrtc
def test_no_process_where_everything_is_there_or_one_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*rest: Any, **more: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", none)
    kernels = KernelCache(tmp_path)
    wanted = some(3)
    for one in wanted[:-1]:
        kernels.get(*one)
    paths = build_all(kernels, wanted, 8)
    monkeypatch.setattr(cache, "compile_cubin", none)
    assert build_all(kernels, wanted, 8) == paths


@needs_nvrtc
def test_a_process_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    worker = Worker()
    with pytest.raises(CompileError, match="cannot be started"):
        worker.cubin(kernel("k"), ARCH)
    worker.end()


@needs_nvrtc
def test_another_error_ends_all(tmp_path: Path, late: Event) -> None:
    """A full disk, say."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        build_all(KernelCache(tmp_path / "file"), some(5), 3)


@needs_nvrtc
def test_main_is_not_imported_again(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "cache")], capture_output=True, text=True, env=_environment())
    assert done.stdout.split() == ["imported", "4"], done.stderr


@needs_nvrtc
def test_a_worker_ends_with_the_process_that_started_it() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, env=_environment())
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, until = int(done.stdout), time.monotonic() + 30
    while _runs(pid):
        assert time.monotonic() < until, pid
        time.sleep(0.01)


def test_the_script_imports_little() -> None:
    """Each module more is paid for by every worker, and site-packages are not there."""
    tree = ast.parse(Path(nvrtc_program.__file__).read_text())
    found = {
        x.names[0].name if isinstance(x, ast.Import) else x.module for x in ast.walk(tree) if isinstance(x, (ast.Import, ast.ImportFrom))
    }
    assert found == {"__future__", "ctypes", "os", "struct", "sys"}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(workers.__file__).parents[2])}


def _runs(pid: int) -> bool:
    """Not as one that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
