"""`doctor`: what the kernels need, what is there, and the command that mends what is missing.

Out: rows of (what, found or not, details, advice). Nothing is changed; converting needs none of it.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from humming_convert import __version__
from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.device import CUPY, NoDevice, open_device
from humming_convert.gemm.nvrtc import INSTALL, CompileError, architecture, compile_cubin, compiler, supported_sms
from humming_convert.gemm.source import kernel_source, templates


@dataclass(frozen=True, slots=True)
class Row:
    """ok None: not needed here."""

    what: str
    ok: bool | None
    found: str
    advice: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rows() -> list[Row]:
    return [*_versions(), _templates(), *_nvrtc(), _cupy(), _gpu(), _cache()]


def _versions() -> Iterator[Row]:
    yield Row("humming-convert", True, __version__)
    yield Row("python", True, f"{platform.python_version()} on {platform.machine()} {sys.platform}")
    for name in ("numpy", "numba"):
        yield Row(name, True, importlib.import_module(name).__version__)


def _templates() -> Row:
    headers = len(templates()[1])
    return Row("templates", headers > 0, f"{headers} headers, none includes a CUDA header")


def _nvrtc() -> Iterator[Row]:
    try:
        found = compiler()
    except CompileError as error:
        yield Row("nvrtc", False, str(error).splitlines()[0], INSTALL)
        return
    sms = supported_sms()
    yield Row("nvrtc", True, f"{'.'.join(map(str, found.version))} at {found.path}; sm {' '.join(map(str, sms))}")
    arch = architecture(90 if 90 in sms else sms[0])
    try:
        size = len(compile_cubin(kernel_source("product_f64"), arch))
        yield Row("compiles", True, f"a kernel for {arch}, {size} bytes")
    except CompileError as error:
        yield Row("compiles", False, str(error), error.missing)


def _cupy() -> Row:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        return Row("cupy", None, f"not installed ({error}); only running kernels needs it", CUPY)
    return Row("cupy", True, f"{cupy.__version__}, CUDA run time {cupy.cuda.runtime.runtimeGetVersion()}")


def _gpu() -> Row:
    try:
        device = open_device()
    except NoDevice as error:
        return Row("gpu", None, str(error).partition(";")[0], error.advice)
    driver = device.cupy.cuda.runtime.driverGetVersion()
    free, total = device.cupy.cuda.runtime.memGetInfo()
    return Row("gpu", True, f"{device.name}, sm_{device.sm}, driver for CUDA {driver}, {free >> 20} of {total >> 20} MiB free")


def _cache() -> Row:
    cache = KernelCache()
    entries = list(cache.entries())
    above = next(p for p in (cache.folder, *cache.folder.parents) if p.exists())
    writable = os.access(above, os.W_OK)
    advice = None if writable else "set HUMMING_CONVERT_CACHE to a folder that you may write to"
    return Row("cache", writable, f"{cache.folder}: {len(entries)} kernels", advice)
