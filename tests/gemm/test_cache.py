"""Kernels on disk: whole or not there, whoever comes first; found by all that shapes them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from humming_convert.gemm import nvrtc
from humming_convert.gemm.cache import KernelCache, content_key, kernel_key, whole
from humming_convert.gemm.source import kernel_source

SOURCE = kernel_source("product_f64")
RACE = """
import sys
from pathlib import Path
from humming_convert.gemm.cache import KernelCache
path = KernelCache(Path(sys.argv[1])).keep("ab", b"cubin" * 100000, {"name": "x"})
assert path.read_bytes() == b"cubin" * 100000
"""


def test_an_entry_is_kept_once_and_read_back(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    path = cache.keep("ab", b"cubin", {"name": "x"})
    assert path.read_bytes() == b"cubin"
    assert cache.keep("ab", b"another", {"name": "x"}).read_bytes() == b"cubin"
    assert [(key, said["name"]) for key, said in cache.entries()] == [("ab", "x")]
    assert cache.clean() == 1 and not list(cache.entries())


def test_a_damaged_entry_is_replaced(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    path = cache.keep("ab", b"cubin", {})
    path.write_bytes(b"cub")
    assert not whole(path.parent) and not list(cache.entries())
    assert cache.keep("ab", b"cubin", {}).read_bytes() == b"cubin"
    assert [p.name for p in tmp_path.iterdir()] == ["ab"]


def test_many_processes_leave_one_whole_entry(tmp_path: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path)]) for _ in range(6)]
    assert [p.wait(timeout=60) for p in running] == [0] * 6
    assert [p.name for p in tmp_path.iterdir()] == ["ab"]
    assert whole(tmp_path / "ab")


def test_the_key_depends_on_everything_that_shapes_a_cubin() -> None:
    other = replace(SOURCE, headers=(("a.cuh", ""), *SOURCE.headers))
    keys = {
        kernel_key(SOURCE, "sm_90a", (), (13, 0)),
        kernel_key(other, "sm_90a", (), (13, 0)),
        kernel_key(SOURCE, "sm_80", (), (13, 0)),
        kernel_key(SOURCE, "sm_90a", ("-O3",), (13, 0)),
        kernel_key(SOURCE, "sm_90a", (), (13, 1)),
        content_key(SOURCE, "sm_90a"),
    }
    assert len(keys) == 6


def test_shipped_kernels_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise AssertionError("the compiler was asked for")

    monkeypatch.setattr("humming_convert.gemm.cache.compiler", none)
    monkeypatch.setattr(nvrtc, "compiler", none)
    cache = KernelCache(tmp_path)
    cache.shipped[content_key(SOURCE, "sm_90a")] = tmp_path / "k.cubin"
    assert cache.get(SOURCE, "sm_90a") == tmp_path / "k.cubin"
