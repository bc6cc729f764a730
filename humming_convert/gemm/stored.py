"""The layers of an output folder as the core sees them: configurations and packed tensors.

In: a folder of packed layers.  Out: StoredLayers, lazily read.  Facts: architecture.md 9.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.checkpoint.reading import reader
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Findings, Refused
from humming_convert.gemm.layer import Layer
from humming_convert.gemm.reference import Reference
from humming_convert.manifest.build import NAME
from humming_convert.manifest.inside import StoredTensors, file_inside
from humming_convert.manifest.read import rank_names, read_manifest
from humming_convert.targets.environment import Environment, compiler_version
from humming_convert.targets.table import Target, target_of

STATIC = {"static_tensor": "input_scale", "static_tensor_dynamic_group": "input_scale_2"}  # the role that holds a static scale


@dataclass(frozen=True)
class StoredLayer:
    """One layer of one manifest. views: role -> its place in the files.  rank: number of its manifest, 0 where there is one."""

    name: str
    rank: int
    entry: Mapping[str, Any]
    target: Target
    env: Environment
    views: Mapping[str, TensorView]

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.entry["config"]
        return config

    @cached_property
    def layer(self) -> Layer:
        """UnknownLayer where the templates have no words for it."""
        return Layer.of(self.config, self.entry["flags"], self.target.ppu)

    def tensors(self) -> dict[str, NDArray[Any]]:
        read = reader("mmap")
        return {role: np.asarray(read(view)) for role, view in self.views.items()}

    def given_scale(self) -> float:
        """The static scale of the activations; 1 where the folder has none."""
        role = STATIC.get(self.config["input_quant_mode"])
        if role is None or role not in self.views:
            return 1.0
        return float(np.max(reader("mmap")(self.views[role]).astype(np.float64)))

    def reference(self, tensors: Mapping[str, NDArray[Any]]) -> Reference:
        return Reference(self.config, self.target, self.env, tensors)


def manifest_names(folder: Path) -> list[str]:
    """The full manifests of a folder. Refused if it holds no packed layers."""
    findings = Findings()
    try:
        common = read_manifest(folder)
    except (OSError, ValueError) as error:
        findings.error("no-manifest", f"no readable manifest ({error})", file=NAME, advice="name a folder that this tool finished")
        raise Refused(findings) from None
    if common.get("format") != "humming-packed":
        findings.error(
            "not-packed", "this folder is in the standard form, which no kernel reads", file=NAME, advice="convert with --target"
        )
        raise Refused(findings)
    return rank_names(common) or [NAME]


def stored_layers(folder: Path, only: int | None = None) -> Iterator[StoredLayer]:
    """Every packed layer of every rank, or of one: a machine may have the files of its own rank alone. Refused where files and manifest differ."""
    for rank, name in enumerate(manifest_names(folder)):
        if only is not None and rank != only:
            continue
        manifest = read_manifest(folder, file_inside(folder, name).name)
        humming, where = manifest["humming"], manifest["target"]
        target = target_of(where["sm"], where["ppu"])
        if target is None:
            raise Refused(f"{name}: the target {where['name']} is not known to this version")
        env = Environment(compiler_version(humming["cuda_compiler_version"]), humming["cubin_patch"], humming["version"])
        tensors = StoredTensors(folder)
        for entry in manifest["layers"]:
            yield StoredLayer(entry["name"], rank, entry, target, env, tensors.views(entry))
