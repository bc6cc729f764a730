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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from humming_convert.gemm.nvrtc import CompileError, compile_cubin, compiler, options_for
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.workers import Compile, at_once
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
        return self.find(source, arch) or self.put(source, arch, compile_cubin(source, arch))

    def find(self, source: KernelSource, arch: str) -> Path | None:
        """The cubin's path, if it is there and whole."""
        if self.shipped and (found := self.shipped.get(content_key(source, arch))) is not None:
            return found
        entry = self.folder / own_key(source, arch)
        return entry / CUBIN if whole(entry) else None

    def put(self, source: KernelSource, arch: str, cubin: bytes) -> Path:
        """What this machine's compiler made of a source."""
        said = {"name": source.name, "arch": arch, "options": options_for(arch), "compiler": ".".join(map(str, compiler().version))}
        return self.keep(own_key(source, arch), cubin, said, source.generated)

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


def own_key(source: KernelSource, arch: str) -> str:
    """The key of what this machine's compiler makes."""
    return kernel_key(source, arch, options_for(arch), compiler().version)


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


Wanted = tuple[KernelSource, str]
"""A source and an architecture."""


def build_all(cache: KernelCache, wanted: list[Wanted], jobs: int | None = None) -> list[Path]:
    """Compiles what is not there yet. The CompileError of one that does not compile, after which no other is begun."""
    out: list[Path] = []
    for found in build_each(cache, wanted, jobs, go_on=False):
        if isinstance(found, CompileError):
            raise found
        out.append(found)
    return out


def build_each(cache: KernelCache, wanted: list[Wanted], jobs: int | None = None, *, go_on: bool = True) -> list[Path | CompileError]:
    """For each the cubin, or why there is none.  go_on: also after an error; else what was not begun by then has this error too.

    All take from the end, which in the order of `ROWS` is the largest: what takes longest begins first, and in this process, while others start."""
    done: dict[Wanted, Path | CompileError] = {}
    todo: list[Wanted] = []
    for one in dict.fromkeys(wanted):
        if (path := cache.find(*one)) is None:
            todo.append(one)
        else:
            done[one] = path

    def work(compiled: Compile) -> None:
        for one in _taken(todo):
            try:
                done[one] = cache.put(*one, compiled(*one))
            except CompileError as error:
                done[one] = error
                if not go_on:
                    todo.clear()

    if todo:
        at_once(work, compile_cubin, min(jobs or os.cpu_count() or 1, len(todo)), todo.clear)
    error = next((x for x in done.values() if isinstance(x, CompileError)), None)
    return [done[one] if error is None else done.get(one, error) for one in wanted]


def _taken(todo: list[Wanted]) -> Iterator[Wanted]:
    """From the end, by several threads."""
    with suppress(IndexError):
        while True:
            yield todo.pop()
