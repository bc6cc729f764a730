"""Kernels built ahead of time and shipped inside an output folder, as one file that the manifest lists.

In: a folder of packed layers.  Out: `humming_kernels-<arch>.zip`: cubins under the key of their content, and an index. Loading them needs no
compiler. The same folder and compiler give the same bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humming_convert.findings import Findings, Refused
from humming_convert.gemm.cache import KernelCache, build_all, content_key
from humming_convert.gemm.compute import Compute
from humming_convert.gemm.families import choose
from humming_convert.gemm.layer import UnknownLayer
from humming_convert.gemm.multiplier import sources
from humming_convert.gemm.nvrtc import architecture, compiler
from humming_convert.gemm.rewrite import drop_file, put_file, rewrite
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.stored import stored_layers
from humming_convert.gemm.tunings import every_tuning
from humming_convert.manifest.build import NAME
from humming_convert.manifest.digests import digest

PREFIX = "humming_kernels-"
INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class Built:
    path: Path
    kernels: int
    layers: int


def archive_name(arch: str) -> str:
    return f"{PREFIX}{arch}.zip"


@dataclass(frozen=True, slots=True)
class Wanted:
    """kernels: key -> source and the layers that need it.  families: layer -> the family that multiplies it, and why faster ones do not."""

    kernels: dict[str, tuple[KernelSource, set[str]]]
    families: dict[str, dict[str, Any]]


def wanted_kernels(folder: Path, sm: int) -> Wanted:
    """What a GPU of `sm` needs for the folder's layers, for any number of rows and any task: by the heuristics, and by the tunings of each GPU
    that the folder was tuned on. Results in the model dtype."""
    tuned = every_tuning(folder, sm)
    findings, out, families = Findings(), dict[str, tuple[KernelSource, set[str]]](), dict[str, dict[str, Any]]()
    for stored in stored_layers(folder):
        try:
            layer = stored.layer
            compute = Compute.of(layer, stored.config, sm=sm, output=layer.half, rounds=True)
        except UnknownLayer as unknown:
            findings.error("gpu-unknown-layer", f"no kernel reads this layer: {unknown}", layer=stored.name)
            continue
        choice = choose(layer, compute, sm)
        families[stored.name] = {"family": choice.kernels.NAME, "rejected": {r.family: r.reason for r in choice.rejected}}
        for kernels in dict.fromkeys([choice.kernels, *(t.applied(choice, layer, compute).kernels for t in tuned)]):
            for source in sources(layer, compute, kernels):
                out.setdefault(content_key(source, architecture(sm)), (source, set()))[1].add(stored.name)
    findings.raise_errors()
    return Wanted(out, families)


def build(folder: Path, sm: int, cache: KernelCache, jobs: int | None = None, told: Callable[[str], None] = lambda _: None) -> Built:
    """Compiles what the folder's layers need for a GPU of `sm` and puts it into the folder. CompileError from the compiler."""
    arch = architecture(sm)
    found = wanted_kernels(folder, sm)
    wanted = found.kernels
    told(f"{len(wanted)} kernels for {arch}, NVRTC {'.'.join(map(str, compiler().version))}")
    paths = build_all(cache, [(source, arch) for source, _ in wanted.values()], jobs)
    index: dict[str, Any] = {}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for (key, (source, layers)), path in sorted(zip(wanted.items(), paths, strict=True), key=lambda x: x[0][0]):
            cubin = path.read_bytes()
            index[key] = {"name": source.name, "arch": arch, "cubin": digest(cubin), "layers": sorted(layers)}
            archive.writestr(zipfile.ZipInfo(f"{key}.cubin"), cubin, zipfile.ZIP_DEFLATED)
        said = {"arch": arch, "compiler": ".".join(map(str, compiler().version)), "kernels": index, "layers": found.families}
        archive.writestr(zipfile.ZipInfo(INDEX), json.dumps(said, indent=1, sort_keys=True), zipfile.ZIP_DEFLATED)
    path = folder / archive_name(arch)
    put_file(path, packed.getbuffer())
    return Built(path, len(wanted), len({name for _, layers in wanted.values() for name in layers}))


def archives(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{PREFIX}*.zip"))


def index_of(path: Path) -> dict[str, Any]:
    """Refused if the archive is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            said: dict[str, Any] = json.loads(archive.read(INDEX))
        return said
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        findings = Findings()
        findings.error(
            "kernels-damaged", f"not readable ({error})", file=path.name, advice="humming-convert kernels build OUT makes it again"
        )
        raise Refused(findings) from None


def unpack(path: Path, cache: KernelCache) -> dict[str, Path]:
    """Cubins of an archive as files: key -> path, each as the index says it is."""
    said, out = index_of(path), dict[str, Path]()
    with zipfile.ZipFile(path) as archive:
        for key, entry in said["kernels"].items():
            cubin = archive.read(f"{key}.cubin")
            if digest(cubin) != entry["cubin"]:
                findings = Findings()
                findings.error(
                    "kernels-damaged", f"{key} is not what was built", file=path.name, advice="humming-convert kernels build OUT"
                )
                raise Refused(findings)
            out[key] = cache.keep(key, cubin, {"name": entry["name"], "arch": entry["arch"], "shipped": path.name})
    return out


def clean(folder: Path) -> int:
    """Removes shipped kernels and their entries; how many archives there were."""
    found = archives(folder)
    for path in found:
        rewrite(folder, lambda manifest, name=path.name: drop_file(manifest, name), NAME)  # type: ignore[misc]
        path.unlink()
    return len(found)
