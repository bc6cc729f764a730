"""NVRTC through its C interface: CUDA text to a cubin, on any machine, without a driver.

In: a KernelSource and an architecture.  Out: the bytes of a cubin; CompileError names source, options, log and what is missing.
Facts: nvidia-cuda-nvrtc puts its libraries into site-packages/nvidia/cu13/lib (CUDA 12: nvidia/cuda_nvrtc/lib), and only a real architecture
(`sm_90a`) gives a cubin.  The calls themselves: gemm/nvrtc_program.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from humming_convert.gemm import nvrtc_program
from humming_convert.gemm.source import KernelSource

INSTALL = "python -m pip install 'nvidia-cuda-nvrtc>=13.0' (CUDA 12: nvidia-cuda-nvrtc-cu12), or humming-convert[cuda13]"
# -default-device: generic lambdas of a kernel carry no annotation
OPTIONS = ("-std=c++17", "-default-device", "--fmad=true", "--prec-div=true", "--ftz=false")
# the feature set of a family where there is one; layouts never need it, the instructions of faster families do
FEATURES = {90: "a", 100: "a", 103: "a", 110: "a", 120: "a", 121: "a"}


class CompileError(Exception):
    """The kernel did not compile. source, options, log: what the compiler saw and said; missing: what to install, if that is the reason."""

    def __init__(self, message: str, *, source: str = "", options: tuple[str, ...] = (), log: str = "", missing: str | None = None) -> None:
        self.source, self.options, self.log, self.missing = source, options, log, missing
        parts = [message]
        if options:
            parts.append(f"options: {' '.join(options)}")
        if log:
            parts.append(f"log:\n{log.strip()}")
        if source:
            parts.append(f"generated source:\n{source.strip()}")
        if missing:
            parts.append(f"missing: {missing}")
        super().__init__("\n".join(parts))


@dataclass(frozen=True, slots=True)
class Compiler:
    """NVRTC, loaded. `version` as the library says it, not as its file is named.  builtins: what was loaded before it."""

    library: ctypes.CDLL
    path: Path
    builtins: tuple[Path, ...]
    version: tuple[int, int]


def folders() -> list[Path]:
    """Where NVRTC may be, in the order of preference: an override, packages beside this interpreter, a toolkit."""
    out = [Path(x) for x in (os.environ.get("HUMMING_CONVERT_NVRTC"),) if x]
    for site in dict.fromkeys(Path(p) for p in sys.path if p):
        out += [site / "nvidia" / "cu13" / "lib", site / "nvidia" / "cuda_nvrtc" / "lib"]
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            out.append(Path(home) / "lib64")
    return out


@lru_cache(maxsize=1)
def compiler() -> Compiler:
    """The first NVRTC that is found. CompileError if there is none."""
    for folder in folders():
        for path in sorted(folder.glob("libnvrtc.so.1[0-9]"), reverse=True):
            builtins = tuple(sorted(folder.glob("libnvrtc-builtins.so.1*")))
            library = nvrtc_program.load(str(path), tuple(map(str, builtins)))
            major, minor = ctypes.c_int(), ctypes.c_int()
            library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
            return Compiler(library, path, builtins, (major.value, minor.value))
    raise CompileError("NVRTC, the CUDA run-time compiler, is not installed", missing=INSTALL)


def supported_sms() -> tuple[int, ...]:
    """The architectures that this NVRTC knows."""
    nvrtc, count = compiler().library, ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(found)
    return tuple(found)


def architecture(sm: int) -> str:
    return f"sm_{sm}{FEATURES.get(sm, '')}"


def options_for(arch: str) -> tuple[str, ...]:
    # NVRTC's own disk cache starts the driver where there is one; ours replaces it
    cache = ("-no-cache",) if compiler().version >= (12, 9) else ()
    return (f"-arch={arch}", *OPTIONS, *cache)


def compile_cubin(source: KernelSource, arch: str) -> bytes:
    """arch: a real architecture such as `sm_90a`."""
    return cubin_of(source, arch, nvrtc_program.compiled(compiler().library, program_of(source, arch)))


def program_of(source: KernelSource, arch: str) -> list[bytes]:
    """What nvrtc_program compiles, here or elsewhere."""
    return nvrtc_program.program(source.entry, source.headers, options_for(arch))


def cubin_of(source: KernelSource, arch: str, reply: list[bytes]) -> bytes:
    """Out of the reply of nvrtc_program."""
    (outcome, status, data), options = reply, options_for(arch)
    if outcome == nvrtc_program.COMPILED:
        return data
    if outcome == nvrtc_program.NO_PROGRAM:
        raise CompileError(f"NVRTC takes no program (status {int(status)})", options=options)
    log = data.decode(errors="replace")
    raise CompileError(
        f"{source.name} does not compile for {arch} (status {int(status)})",
        source=source.generated,
        options=options,
        log=log,
        missing=_missing(log),
    )


def _missing(log: str) -> str | None:
    """What a log asks for that a package brings."""
    if "nvrtc-builtins" in log:
        return INSTALL
    if "could not open source file" in log or "cannot open source file" in log:
        if "cuda/std" in log or "cub/" in log:
            return "the CCCL headers: python -m pip install nvidia-cuda-cccl"
        if "cuda_" in log:
            return "the CUDA headers: python -m pip install nvidia-cuda-runtime (CUDA 12: nvidia-cuda-runtime-cu12)"
    return None
