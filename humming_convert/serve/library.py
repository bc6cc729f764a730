"""humming-kernels as it is installed here: its version, its compiler, and how it reads a stored configuration.

In: nothing, or a layer's configuration.  Out: a Machine; a LayerConfig of the library; findings.  The only module of this room that imports it.
Facts: humming-kernels 0.1.19 and 0.1.20 (`config.config`, `jit.runtime`, `utils.cubin`); runtimes.md 3.4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from humming_convert.findings import Finding
from humming_convert.serve.machine import FLAGS, Machine, reading_findings

PACKAGE = "humming-kernels"
NO_PATCH = "HUMMING_DISABLE_PATCH_CUBIN"


def installed_version() -> str | None:
    """Of humming-kernels; nothing is imported."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def cubin_patch() -> bool:
    """As the library decides it."""
    return os.environ.get(NO_PATCH, "0") != "1"


def compiler() -> str:
    """Version of the CUDA compiler that the library takes, as `13.0`. What the library raises where it finds none goes up."""
    from humming.config.config import _cuda_compiler_version
    from humming.jit.runtime import KernelRuntime

    major, minor = _cuda_compiler_version(KernelRuntime._get_compiler())
    return f"{major}.{minor}"


def layer_config(entry: Mapping[str, Any], experts: int | None = None) -> Any:
    """The library's own LayerConfig of a stored one. experts: how many this rank has, if not all of them."""
    from humming.config import LayerConfig

    config = dict(entry["config"])
    return LayerConfig(**(config if experts is None else {**config, "num_experts": experts}))


def as_read(config: Any) -> dict[str, Any]:
    """Fields and flags of a LayerConfig, as plain values under the manifest's names."""
    fields = {name: _plain(value) for name, value in config.to_dict().items()}
    return fields | {flag: bool(getattr(config, flag)) for flag in FLAGS if hasattr(config, flag)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def differences(manifest: Mapping[str, Any], entry: Mapping[str, Any], machine: Machine) -> Iterator[Finding]:
    """How the installed library reads a layer's configuration otherwise than it was written."""
    yield from reading_findings(manifest, entry, as_read(layer_config(entry)), machine)
