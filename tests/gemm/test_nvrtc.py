"""Kernels compiled without a GPU, for every architecture that NVRTC knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import Case, Spec, selected
from needs import has_nvrtc, needs_nvrtc

from humming_convert.gemm import nvrtc
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.layer import UnknownLayer
from humming_convert.gemm.nvrtc import CompileError, architecture, compile_cubin, compiler, supported_sms
from humming_convert.gemm.source import KernelSource, kernel_source
from humming_convert.gemm.tuning import Tuning


def one_of_each_family() -> dict[str, Spec]:
    """Layout family -> a layer of it, in float16 where there is one, since sm_75 has no other type."""
    out: dict[str, Spec] = {}
    for spec in sorted(selected(), key=lambda s: s.param != "F16"):
        recipe = spec.recipe()
        assert recipe is not None
        out.setdefault(Case.of(spec, recipe, 90).layer.family, spec)
    return out


def source_of(spec: Spec, sm: int) -> KernelSource:
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, sm)
    return kernel_source("mma_any", case.layer, case.compute, Tuning.of(1))


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("sm", supported_sms() if has_nvrtc() else ())
def test_a_kernel_of_each_layout_family_compiles(sm: int) -> None:
    for family, spec in one_of_each_family().items():
        if sm < 80 and spec.param != "F16":
            continue
        assert compile_cubin(source_of(spec, sm), architecture(sm))[:4] == b"\x7fELF", family


@needs_nvrtc
@pytest.mark.parametrize("sm", [75, 90, 120])
def test_a_kernel_compiles_for_old_and_new_architectures(sm: int) -> None:
    spec = one_of_each_family()["standard-mode3-a16"]
    assert compile_cubin(source_of(spec, sm), architecture(sm))[:4] == b"\x7fELF"


@needs_nvrtc
def test_the_same_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def counted(source: KernelSource, arch: str) -> bytes:
        compiled.append(arch)
        return compile_cubin(source, arch)

    monkeypatch.setattr("humming_convert.gemm.cache.compile_cubin", counted)
    source = kernel_source("product_f64")
    first = KernelCache(tmp_path).get(source, "sm_80")
    assert KernelCache(tmp_path).get(source, "sm_80") == first
    assert compiled == ["sm_80"]


@needs_nvrtc
def test_an_error_names_source_options_and_log() -> None:
    broken = KernelSource(name="x", entry='#include "generated.cuh"\n', headers=(("generated.cuh", "int wrong = nothing;\n"),))
    with pytest.raises(CompileError) as raised:
        compile_cubin(broken, "sm_80")
    text = str(raised.value)
    assert "-arch=sm_80" in text and "nothing" in raised.value.log and "int wrong = nothing" in text


@needs_nvrtc
def test_a_missing_header_names_its_package() -> None:
    broken = KernelSource(name="x", entry="#include <cuda/std/cstdint>\n", headers=())
    with pytest.raises(CompileError, match="nvidia-cuda-cccl"):
        compile_cubin(broken, "sm_80")


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "folders", list)
    compiler.cache_clear()
    with pytest.raises(CompileError, match="pip install"):
        compiler()
    compiler.cache_clear()


def test_bfloat16_below_sm_80_is_refused_by_name() -> None:
    spec = next(s for s in selected() if s.param == "BF16")
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, 90)
    with pytest.raises(UnknownLayer, match="sm_80"):
        Compute.of(case.layer, recipe.config.as_dict(), sm=75)
