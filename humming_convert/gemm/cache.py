"""Compiled kernels on disk, found by their content: templates, configurations, options, compiler.

In: a KernelSource and an architecture.  Out: a path to a cubin.  Safe under many processes: an entry is a folder that is written beside,
flushed and renamed into place whole; whoever comes second throws its own away. A damaged entry is compiled again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from humming_convert.gemm.nvrtc import compile_cubin, compiler, options_for
from humming_convert.gemm.source import KernelSource
from humming_convert.manifest.digests import canonical, digest

CUBIN, DESCRIPTION = "kernel.cubin", "kernel.json"


def cache_folder() -> Path:
    """HUMMING_CONVERT_CACHE, else below XDG_CACHE_HOME."""
    if own := os.environ.get("HUMMING_CONVERT_CACHE"):
        return Path(own) / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "humming-convert" / "kernels"


def kernel_key(source: KernelSource, arch: str, options: tuple[str, ...], version: tuple[int, int]) -> str:
    """32 hex digits over all that shapes a cubin."""
    return digest(canonical([source.name, source.entry, list(source.headers), arch, list(options), list(version)])).removeprefix("xxh3:")


@dataclass(slots=True)
class KernelCache:
    """shipped: key -> cubin, from an output folder; looked at first, so that no compiler is needed."""

    folder: Path = field(default_factory=cache_folder)
    shipped: dict[str, Path] = field(default_factory=dict)

    def get(self, source: KernelSource, arch: str) -> Path:
        """The cubin's path; compiled if it is not there."""
        if self.shipped and (found := self.shipped.get(content_key(source, arch))) is not None:
            return found
        key = kernel_key(source, arch, options_for(arch), compiler().version)
        entry = self.folder / key
        if not whole(entry):
            self.put(entry, source, arch, compile_cubin(source, arch))
        return entry / CUBIN

    def put(self, entry: Path, source: KernelSource, arch: str, cubin: bytes) -> None:
        said = {"name": source.name, "arch": arch, "options": options_for(arch), "compiler": ".".join(map(str, compiler().version))}
        self.keep(entry.name, cubin, said, source.generated)

    def keep(self, key: str, cubin: bytes, said: Mapping[str, object], generated: str = "") -> Path:
        """An entry of the cache, whole or not at all; the path of its cubin."""
        entry = self.folder / key
        if whole(entry):
            return entry / CUBIN
        self.folder.mkdir(parents=True, exist_ok=True)
        description = json.dumps({**said, "cubin": digest(cubin), "bytes": len(cubin)}, indent=1)
        beside = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=self.folder))
        try:
            for name, data in ((CUBIN, cubin), ("generated.cuh", generated.encode()), (DESCRIPTION, description.encode())):
                with open(beside / name, "wb") as f:
                    f.write(data)
                    f.flush()
                    os.fsync(f.fileno())
            if entry.exists() and not whole(entry):
                self._put_aside(entry)
            try:
                os.rename(beside, entry)
            except OSError:
                if not whole(entry):  # a rename onto a full folder fails: then another process has put the same bytes there
                    raise
            _flush_folder(self.folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return entry / CUBIN

    def _put_aside(self, entry: Path) -> None:
        """A damaged entry out of the way; another process may be doing the same."""
        broken = Path(tempfile.mkdtemp(prefix=".broken.", dir=self.folder))
        try:
            os.rename(entry, broken / "entry")
        except FileNotFoundError:
            pass
        shutil.rmtree(broken, ignore_errors=True)

    def entries(self) -> Iterator[tuple[str, dict[str, object]]]:
        """(key, what kernel.json says) of the whole entries."""
        for entry in sorted(self.folder.glob("[0-9a-f]*")) if self.folder.is_dir() else ():
            if whole(entry):
                yield entry.name, json.loads((entry / DESCRIPTION).read_bytes())

    def clean(self) -> int:
        """Removes every entry; how many there were."""
        found = [p for p in self.folder.glob("*") if p.is_dir()] if self.folder.is_dir() else []
        for entry in found:
            shutil.rmtree(entry, ignore_errors=True)
        return sum(not p.name.startswith(".") for p in found)


def content_key(source: KernelSource, arch: str) -> str:
    """The key of shipped cubins: whoever uses them has no compiler, so that its version is no part of it."""
    return kernel_key(source, arch, (), (0, 0))


def whole(entry: Path) -> bool:
    """An entry whose cubin is what its description says."""
    try:
        said = json.loads((entry / DESCRIPTION).read_bytes())
        return bool(said["cubin"] == digest((entry / CUBIN).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _build(folder: Path, source: KernelSource, arch: str) -> str:
    return str(KernelCache(folder).get(source, arch))


def build_all(cache: KernelCache, wanted: list[tuple[KernelSource, str]], jobs: int | None = None) -> list[Path]:
    """Compiles what is not there yet, in processes of their own, since NVRTC compiles one program at a time in a process. This process takes part:
    the last of them, which in the order of `ROWS` is the largest, while the others start, and then what none of them has begun."""
    jobs = min(jobs or os.cpu_count() or 1, max(1, len(wanted)))
    if jobs == 1:
        return [cache.get(source, arch) for source, arch in wanted]
    with ProcessPoolExecutor(jobs - 1, mp_context=get_context("spawn")) as pool:
        elsewhere = [pool.submit(_build, cache.folder, source, arch) for source, arch in wanted[:-1]]
        here = [cache.get(*wanted[-1])]
        for future, of in zip(reversed(elsewhere), reversed(wanted[:-1]), strict=True):
            here.append(cache.get(*of) if future.cancel() else Path(future.result()))
        return here[::-1]
