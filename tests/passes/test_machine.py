"""Machine code: where it is kept, what is trusted, that it is right on other processors."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys

import pytest

from humming_convert.passes import known, machine, written
from humming_convert.passes.flat import flattened
from humming_convert.passes.kernels import tile_kernel
from humming_convert.passes.routes import way
from tests.passes.cases import recipe


def some_route(maps=()):
    found = way(recipe(4, 16, 128, 128, "standard", maps), "gptq", 512)
    assert found is not None
    return found.route


def held(folder, route, check=None):
    """(kernel, whether it was compiled) from a fresh set of kernels."""
    asked = []

    def text():
        asked.append(1)
        return tile_kernel(route, "pack")

    kernels = machine.Kernels(folder)
    kernel = kernels.get(str(route), text, check or (lambda k: known.holds(route, "pack", k)))
    return kernel, bool(asked)


def test_the_second_process_finds_the_first_ones_code(tmp_path):
    route = some_route()
    assert held(tmp_path, route)[1]
    kernel, compiled = held(tmp_path, route)
    assert not compiled and known.holds(route, "pack", kernel)


def test_a_torn_or_foreign_object_is_compiled_again(tmp_path):
    route = some_route()
    held(tmp_path, route)
    (path,) = tmp_path.glob("*.o")
    path.write_bytes(path.read_bytes()[:-1])
    kernel, compiled = held(tmp_path, route)
    assert compiled and known.holds(route, "pack", kernel)
    assert not held(tmp_path, route)[1]


def test_a_kernel_that_fails_its_check_is_neither_used_nor_kept(tmp_path):
    with pytest.raises(machine.KernelCheckFailed):
        held(tmp_path, some_route(), lambda kernel: False)
    assert not list(tmp_path.iterdir())


def test_a_kernel_of_another_route_fails_the_check(tmp_path):
    kernel, _ = held(tmp_path, some_route())
    assert not known.holds(some_route(("e0m",)), "pack", kernel)


def test_no_folder_still_gives_a_kernel():
    kernel, compiled = held(None, some_route())
    assert compiled and known.holds(some_route(), "pack", kernel)


def test_the_environment_names_the_folder(tmp_path):
    assert machine.cache_folder({"HUMMING_CONVERT_CACHE": str(tmp_path / "a"), "HOME": str(tmp_path)}) == tmp_path / "a" / "passes"
    assert machine.cache_folder({"XDG_CACHE_HOME": str(tmp_path / "x")}) == tmp_path / "x" / "humming-convert" / "passes"
    assert machine.cache_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "humming-convert" / "passes"


def test_a_home_that_cannot_be_written_falls_back_to_a_private_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    blocked = tmp_path / "home"
    blocked.write_text("a file, no folder")
    found = machine.cache_folder({"HOME": str(blocked)})
    assert found is not None and found.parent == tmp_path
    assert found.stat().st_mode & 0o077 == 0


def test_a_folder_that_others_can_write_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    open_to_all = tmp_path / "cache" / "humming-convert" / "passes"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    assert machine.cache_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")}) != open_to_all


PROCESS = """
import numpy as np, zlib
from humming_convert import passes
from humming_convert.layouts.recipe import WeightRecipe
r = WeightRecipe(bits=4, act_bits=16, n=128, k=64, pad_n=0, pad_k=0, maps=(), place="standard", shape=(4, 1024))
i, j = np.arange(128)[:, None], np.arange(64)
codes = (31 * i + 7 * j + i * j // 64) % 16
words = (codes.reshape(128, 8, 8) << np.arange(0, 32, 4)).sum(-1).astype(np.uint32)
out = np.zeros(1024, np.uint32)
passes.pack_block(r, packing="gptq", stored=np.ascontiguousarray(words.T), n=128, k=64, row=0, out=out)
print(f"{zlib.crc32(out):08x}")
"""


def test_many_processes_may_fill_one_cache_at_once(tmp_path):
    environment = os.environ | {"HUMMING_CONVERT_CACHE": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", PROCESS], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [x.communicate(timeout=120)[0].strip() for x in running] == ["74ecf964"] * 4  # layouts.md 13
    assert not list(tmp_path.rglob(".new-*"))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere LLVM loads what it made")
def test_nothing_that_compiles_is_loaded_for_cached_code(tmp_path):
    environment = os.environ | {"HUMMING_CONVERT_CACHE": str(tmp_path)}
    script = PROCESS + "import sys; print(sorted({x.split('.')[0] for x in sys.modules} & {'numba', 'llvmlite'}))"
    first, second = (
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout.split("\n")
        for _ in range(2)
    )
    assert first[:2] == ["74ecf964", "['llvmlite']"] and second[:2] == ["74ecf964", "[]"]


def test_code_of_another_processor_has_another_name(tmp_path):
    text = "processor\t: 0\nmodel name\t: some\ncpu MHz\t\t: {}\nflags\t\t: fpu {}\n\nprocessor\t: 1\nflags\t\t: none\n"

    def words(clock, flags):
        (tmp_path / "cpuinfo").write_text(text.format(clock, flags))
        return machine._processor(tmp_path / "cpuinfo")

    assert words(1000, "sse2 avx2") == words(2000, "sse2 avx2") != words(1000, "sse2")


def test_a_system_that_says_nothing_of_its_processor_is_asked_through_the_compiler(tmp_path):
    (tmp_path / "cpuinfo").write_text("Processor: some\n")
    assert machine._processor(tmp_path / "cpuinfo") == machine._processor(tmp_path / "none") == repr(machine._host()[1:]).encode()


# ------------------------------------------------------------------ flat code
x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="flat code is of x86-64")


@x86_64
@pytest.mark.parametrize(
    "case", [("gptq", 4, "e0m"), ("gptq", 3, "e0m"), ("awq", 4, ""), ("rows", 4, "fused_e8m0"), ("strips", 4, "")], ids=str
)
@pytest.mark.parametrize("purpose", ["pack", "prove"])
def test_every_kind_of_kernel_is_flat_code_that_does_the_same(case, purpose):
    packing, bits, name = case
    r = recipe(bits, 8 if name == "fused_e8m0" else 16, 128, 256, "standard", (name,) if name else (), group=32)
    found = way(r, packing, 4096)
    assert found is not None
    code = machine.compiled(tile_kernel(found.route, purpose))
    assert flattened(code, "kernel") is not None
    kernel = machine.kernel_of(machine.entry_of(code))
    assert kernel is not None and known.holds(found.route, purpose, kernel)


@x86_64
@pytest.mark.parametrize("name", ["CALLER", "LOOK_UP", "ROW_RANGE", "RAISE_ROWS", "PAD_ROWS"])
def test_kernels_that_walk_no_tiles_are_flat_code(name):
    assert flattened(machine.compiled(getattr(written, name)), "kernel") is not None


OTHERS = {
    "a function of another library": "declare i64 @getpid()\ndefine i64 @kernel(i64 %x) {\n %y = call i64 @getpid()\n ret i64 %y\n}",
    "data that is written to": "@x = internal global i64 7\ndefine i64 @kernel(i64 %a) {\n %y = load volatile i64, ptr @x\n"
    " store volatile i64 %a, ptr @x\n ret i64 %y\n}",
    "memory that begins as zeros": "@x = internal global i64 0\ndefine i64 @kernel(i64 %a) {\n %y = load volatile i64, ptr @x\n"
    " store volatile i64 %a, ptr @x\n ret i64 %y\n}",
    "no such function": "define i64 @another(i64 %x) {\n ret i64 %x\n}",
}


@x86_64
@pytest.mark.parametrize("what", OTHERS)
def test_what_needs_a_linker_is_no_flat_code(what):
    code = machine.compiled(OTHERS[what])
    assert flattened(code, "kernel") is None
    assert machine.entry_of(code)[machine.ENTRY_BYTES :] == code, "kept as the object that LLVM loads"


def test_an_object_of_another_processor_is_no_flat_code():
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arm = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(opt=1)
    assert flattened(arm.emit_object(llvm.parse_assembly(tile_kernel(some_route(), "pack"))), "kernel") is None


def test_code_that_the_system_will_not_run_is_loaded_by_the_compiler(tmp_path, monkeypatch):
    route = some_route()
    held(tmp_path, route)
    monkeypatch.setattr(machine, "placed", lambda flat: None)
    kernel, compiled = held(tmp_path, route)
    assert compiled and known.holds(route, "pack", kernel)


@x86_64
def test_memory_of_code_lives_as_long_as_its_kernel():
    kernel = machine.kernel_of(machine.entry_of(machine.compiled(tile_kernel(some_route(), "pack"))))
    gc.collect()
    assert kernel is not None and known.holds(some_route(), "pack", kernel)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64 processors")
@pytest.mark.parametrize("cpu", ["haswell", "x86-64"])
@pytest.mark.parametrize("case", [("gptq", 4, "e0m"), ("gptq", 3, "e0m"), ("rows", 4, "fused_e8m0")], ids=str)
def test_older_processors_do_the_same(cpu, case):
    packing, bits, name = case
    r = recipe(bits, 8 if name == "fused_e8m0" else 16, 128, 256, "standard", (name,), group=32)
    found = way(r, packing, 4096)
    assert found is not None
    for purpose in ("pack", "prove"):
        kernel = machine.loaded(machine.compiled(tile_kernel(found.route, purpose), cpu))
        assert known.holds(found.route, purpose, kernel)


def test_kernels_are_no_code_of_one_processor():
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arm = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(opt=1)
    for maps in ((), ("e0m",)):
        module = llvm.parse_assembly(tile_kernel(some_route(maps), "pack"))
        module.verify()
        assert len(arm.emit_object(module)) > 1000
