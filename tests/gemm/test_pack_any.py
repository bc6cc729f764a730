"""Packing on a GPU, on a CPU: the template's own code against the compiled passes, and whole conversions through an emulated device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu, EmulatedQueue, compiled
from emulation import COMPILER
from needs import needs_nvrtc

from humming_convert import Refused, api, passes
from humming_convert.demo.models import Shape, decoder
from humming_convert.demo.run import STAGES
from humming_convert.demo.samples import DECODERS, all_samples
from humming_convert.gemm import device as gemm_device
from humming_convert.gemm import pack_any
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.nvrtc import compile_cubin
from humming_convert.gemm.pack_any import FOUND, Block, DeviceFailed, GpuPackers, mismatch, source_of
from humming_convert.gemm.source import KernelSource, struct
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.proof import stream
from humming_convert.proof.failed import ProofFailed
from tests.passes.cases import aux_for, codes_for, recipe, stored
from tests.passes.test_many_shapes import Case
from tests.whole import assert_whole

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
SAMPLES = {s.name: s for s in all_samples()}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("pack_any"))


UNEVEN = {"first late": (True, False), "second late": (False, True)}


@pytest.fixture(params=[(True,), *UNEVEN.values()], ids=["late", *UNEVEN])
def gpu(request: pytest.FixtureRequest, library: ctypes.CDLL, tmp_path: Path) -> EmulatedGpu:
    return EmulatedGpu(tmp_path, library, late=request.param)


@pytest.fixture
def used(gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> EmulatedGpu:
    """`--device cuda` finds the emulated device; small layers go there too, in many windows."""
    monkeypatch.setattr(pack_any, "open_device", lambda **_: gpu)
    pack_any.open_packers.cache_clear()
    monkeypatch.setattr(stream, "SMALL", 0)
    monkeypatch.setattr(stream, "WINDOW", 1 << 10)
    pack_any.open_packers(None)  # looks at the known box
    return gpu


# ------------------------------------------------------------------ blocks
class OnGpu:
    """`passes.pack_block` and `prove_block` through the template."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        self.shared = GpuPackers(gpu)
        self.queue, self.gpu = gpu.queue(), gpu

    def block(self, r: WeightRecipe, words: np.ndarray, kept: list[Any], along_n: bool, **where: Any) -> Block:
        held = None if where["aux"] is None else passes.Aux(where["aux"])
        walk = passes.walk(r, words=len(words), **{**where, "aux": held})
        source = np.ascontiguousarray(walk.source)
        if walk.source.shape[0] > 1:
            source = np.zeros((walk.source.shape[0], walk.source.strides[0]), np.uint8)
            source[:, : walk.source.shape[1]] = walk.source
        kept += [source, held]
        return Block(
            source=gemm_device.address(source),
            words=gemm_device.address(words) + 4 * walk.word,
            aux=0 if walk.aux is None or held is None else gemm_device.address(held.values) + walk.aux,
            aux_pitch=walk.aux_pitch,
            tables=self.shared.tables(walk, self.queue),
            along_n=along_n,
        )

    def pack(self, r: WeightRecipe, out: np.ndarray, along_n: bool = False, **where: Any) -> None:
        kept: list[Any] = []
        self.block(r, out, kept, along_n, **where).start(self.queue, "pack_any", r.bits)
        self.queue.wait()

    def prove(self, r: WeightRecipe, written: np.ndarray, along_n: bool = False, **where: Any) -> passes.Mismatch | None:
        kept: list[Any] = []
        found = np.zeros(FOUND, np.uint64)
        self.block(r, written, kept, along_n, **where).start(self.queue, "prove_any", r.bits, gemm_device.address(found))
        self.queue.wait()
        return mismatch(found, where["n"], where["k"], where["row"], where.get("column", 0))


@needs_compiler
def test_random_recipes_are_packed_as_the_compiled_passes_pack_them(library: ctypes.CDLL, tmp_path: Path) -> None:
    on_gpu = OnGpu(EmulatedGpu(tmp_path, library))
    seen = set()
    for number in range(70):
        case = Case(np.random.default_rng((7, number)))
        r, words = case.r, np.zeros(len(case.want), np.uint32)
        for row, end, block in case.parts:
            where = {"packing": case.packing, "stored": block, "n": end - row, "k": r.k, "row": row, "aux": case.aux}
            on_gpu.pack(r, words, along_n=bool(number % 2), **where)
        passes.fill_padding(r, words, case.aux)
        assert (words == case.want).all(), (number, r, case.packing)
        bit = int(case.rng.integers(32 * len(words)))
        words[bit // 32] ^= np.uint32(1 << bit % 32)
        for row, end, block in case.parts:
            where = {"packing": case.packing, "stored": block, "n": end - row, "k": r.k, "row": row, "aux": case.aux, "written": words}
            assert on_gpu.prove(r, along_n=bool(number % 2), **where) == passes.prove_block(r, **where), (number, bit, r, case.packing)
        seen |= {case.packing, r.place, r.bits, r.interleave, *r.maps}
    assert seen >= {
        "rows",
        "signed_rows",
        "gptq",
        "awq",
        "standard",
        "packed_k",
        "raw",
        "flat",
        *range(1, 9),
        "fused_e8m0",
        "int_to_float_zp",
    }


@needs_compiler
@pytest.mark.parametrize(("packing", "bits"), [*((p, b) for p in ("rows", "signed_rows", "gptq") for b in range(1, 9)), ("awq", 4)])
@pytest.mark.parametrize("maps", [(), ("int_to_float_zp",)])
def test_every_packing_and_width_in_windows(library: ctypes.CDLL, tmp_path: Path, packing: str, bits: int, maps: Any) -> None:
    n, k = 128, 256
    r = recipe(bits, 8, n, k, maps=maps, group=32 if maps else 0)
    codes, aux = codes_for(maps, bits, n, k, bits), aux_for(maps, bits, n, k, 32, bits)
    block, on_gpu = stored(codes, packing, bits), OnGpu(EmulatedGpu(tmp_path, library, late=(True,)))
    for w in passes.windows(r, 1):
        sub = passes.slice_block(packing, bits, block, n, (0, n), (w.k0, w.k1))
        where = {"packing": packing, "n": n, "k": w.k1 - w.k0, "row": 0, "column": w.k0, "first": w.first, "aux": aux}
        want, have = np.zeros(w.words, np.uint32), np.zeros(w.words, np.uint32)
        passes.pack_block(r, stored=sub, out=want, **where)
        on_gpu.pack(r, have, stored=sub, **where)
        assert (have == want).all()


@needs_compiler
@pytest.mark.parametrize("bits", range(1, 9))
def test_kernels_are_checked_with_known_values_and_wrong_ones_are_not_used(bits: int, gpu: EmulatedGpu) -> None:
    GpuPackers(gpu).packer().prepare(bits)

    def spoil(words: int) -> None:
        ctypes.c_uint.from_address(words).value ^= 1

    gpu.spoil = spoil
    with pytest.raises(passes.KernelCheckFailed, match="emulated"):
        GpuPackers(gpu).packer().prepare(bits)


class CupyStream:
    ptr = 7

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


@needs_compiler
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_copies_and_launches_are_asked_of_cupy(bits: int, library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's own code, with a CuPy whose GPU is this processor."""

    def room(nbytes: int) -> Any:
        memory = np.full(nbytes + 8, 0xA5, np.uint8)
        return SimpleNamespace(ptr=gemm_device.address(memory), memory=memory)

    def kernel(self: gemm_device.Device, source: KernelSource, shared: int = 0) -> Callable[..., None]:
        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int = 0) -> None:
            emulated = EmulatedQueue(EmulatedGpu(tmp_path, library), late=False)
            emulated.launch(source, grid, block[0], arguments)

        return launch

    runtime = SimpleNamespace(
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyAsync=lambda to, at, nbytes, kind, stream: ctypes.memmove(to, at, nbytes),
        memsetAsync=lambda at, value, nbytes, stream: ctypes.memset(at, value, nbytes),
    )
    used: list[int] = []
    of_number = lambda i: SimpleNamespace(use=lambda: used.append(i))  # noqa: E731
    cuda = SimpleNamespace(runtime=runtime, alloc=room, alloc_pinned_memory=bytearray, Stream=CupyStream, Device=of_number)
    monkeypatch.setattr(gemm_device.Device, "function", kernel)
    device = gemm_device.Device(SimpleNamespace(cuda=cuda), 90, "this processor", KernelCache(tmp_path), index=1)
    packer = GpuPackers(device).packer()
    packer.prepare(bits)
    assert used == [1]
    assert packer.empty(5).nbytes == 5 and packer.empty(0).nbytes == 0


# ------------------------------------------------------------------ conversions
def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@needs_compiler
@pytest.mark.parametrize("gpu", [(True,)], indirect=True, ids=["late"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_device_writes_the_bytes_of_the_cpu(name: str, used: EmulatedGpu, tmp_path: Path) -> None:
    model = SAMPLES[name].write(tmp_path)
    for stage, options in STAGES:
        try:
            plan = api.plan(model, **options)
        except Refused:
            continue
        streamed = [x for x in plan.layers if x.recipe is not None and stream.streams(x.recipe, x.layer.tensors["weight"])]  # type: ignore[arg-type]
        api.convert(plan, out=tmp_path / f"cpu-{stage}", jobs=1)
        before = used.launched.total()
        api.convert(plan, out=tmp_path / f"gpu-{stage}", jobs=2, device="cuda")
        assert files(tmp_path / f"gpu-{stage}") == files(tmp_path / f"cpu-{stage}")
        assert (used.launched.total() > before) == bool(streamed)
        assert_whole(tmp_path / f"gpu-{stage}")


@needs_compiler
@pytest.mark.parametrize("name", ["ct-fp8-channel", "ct-int4-asym", "ct-int4-qwen3-moe", "gptq-3bit-v1-asym", "awq-4bit-gemm"])
@pytest.mark.parametrize("act", ["bf16", "fp8"])
def test_windows_follow_each_other_and_wait_for_what_they_share(name: str, act: str, used: EmulatedGpu, tmp_path: Path) -> None:
    """Layers and experts of sizes that were there before, so that nothing waits for more memory."""
    row = next(x for x in DECODERS if x["name"] == name)
    moe = {"experts": 4, "expert_intermediate": 512} if "moe" in name else {}
    shape = Shape(hidden=512, intermediate=512, heads=8, kv_heads=8, head_dim=64, **moe)
    plan = api.plan(decoder(**{**row, "shape": shape}).write(tmp_path), target="sm90", act=act)
    api.convert(plan, out=tmp_path / "cpu", jobs=1)
    api.convert(plan, out=tmp_path / "gpu", jobs=1, device="cuda")
    assert used.launched["prove_any"] > 20
    assert files(tmp_path / "gpu") == files(tmp_path / "cpu")


@needs_compiler
def test_mapped_files_are_read_into_page_locked_memory_all_the_same(used: EmulatedGpu, tmp_path: Path) -> None:
    plan = api.plan(SAMPLES["ct-nvfp4"].write(tmp_path), target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "cpu")
    api.convert(plan, out=tmp_path / "gpu", io="mmap", device="cuda:0")
    assert files(tmp_path / "gpu") == files(tmp_path / "cpu")


@needs_compiler
def test_a_wrong_bit_that_the_device_packs_is_found(used: EmulatedGpu, tmp_path: Path) -> None:
    plan = api.plan(SAMPLES["gptq-4bit-v2-asym"].write(tmp_path), target="sm90", act="bf16")

    def spoil(words: int) -> None:
        ctypes.c_uint.from_address(words).value ^= 1

    used.spoil = spoil
    with pytest.raises(ProofFailed, match=r"Mismatch\(n=0, k="):
        api.convert(plan, out=tmp_path / "out", jobs=1, device="cuda")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


@needs_compiler
def test_what_changes_in_the_file_is_found(used: EmulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from humming_convert.engine.output import OutputWriter

    plan = api.plan(SAMPLES["awq-4bit-gemm"].write(tmp_path), target="sm90", act="fp8")
    weight = min((x.outputs["weight"] for x in plan.layers), key=lambda t: (t.file, t.offset))
    real: Callable[..., None] = OutputWriter.write

    def wrong(self: OutputWriter, data: memoryview, offset: int) -> None:
        if self.path.name == weight.file and offset == weight.offset:
            data = memoryview(bytes([data[0] ^ 16]) + bytes(data[1:]))
        real(self, data, offset)

    monkeypatch.setattr(OutputWriter, "write", wrong)
    with pytest.raises(ProofFailed, match=r"Mismatch\(n=0, k="):
        api.convert(plan, out=tmp_path / "out", jobs=1, device="cuda")


@needs_compiler
def test_a_device_that_gives_up_leaves_a_run_that_goes_on_without_it(
    used: EmulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = api.plan(SAMPLES["gptq-4bit-v2-asym"].write(tmp_path), target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "cpu")

    def lost(words: int) -> None:
        raise FloatingPointError("device lost")

    used.spoil = lost
    with pytest.raises(DeviceFailed, match=r"device lost.*goes on"):
        api.convert(plan, out=tmp_path / "out", jobs=1, device="cuda")
    api.convert(plan, out=tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "cpu")


# ------------------------------------------------------------------ what is compiled
@needs_nvrtc
@pytest.mark.parametrize("sm", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_the_kernels_compile(sm: str, bits: int) -> None:
    for purpose in ("pack_any", "prove_any"):
        assert compile_cubin(source_of(purpose, bits), sm)[:4] == b"\x7fELF"


def test_only_the_width_is_compiled_in() -> None:
    assert struct("Layer", pack_any.Codes(bits=3)) in source_of("pack_any", 3).generated
