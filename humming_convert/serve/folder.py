"""A packed folder as a serving machine sees it: the common manifest, one rank's layers under the names that vLLM asks for.

In: a folder.  Out: PackedFolder, RankLayers; Refused with every reason. Tensors are found, not read.
Facts: architecture.md 9.4, 9.6; runtimes.md 3.1 (prefixes), 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from humming_convert.findings import Finding, Findings, Refused
from humming_convert.manifest.build import NAME
from humming_convert.manifest.inside import StoredTensors
from humming_convert.manifest.whole import whole_manifest
from humming_convert.serve.refusals import refusal

Entry = Mapping[str, Any]
EXPERTS = ("w13", "w2")  # leaves of the two layers that vLLM makes one module of (architecture.md 9.4)


def packed_manifest(folder: Path, name: str = NAME) -> dict[str, Any]:
    """A manifest of a packed folder, as it was published. Refused if it is none, damaged, of a format that is not read, or of the standard form."""
    manifest = whole_manifest(folder, name)
    if manifest["format"] == "humming-standard":
        raise Refused([refusal("not-packed", "the folder is in the standard form", file=name)])
    return manifest


@dataclass(frozen=True)
class PackedFolder:
    """`common`: humming_manifest.json, which is the full manifest where there is one rank."""

    path: Path
    common: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> PackedFolder:
        return cls(path, packed_manifest(path))

    @property
    def tp_size(self) -> int:
        return int(self.common["parallel"]["tp_size"])

    @property
    def ep_size(self) -> int:
        return int(self.common["parallel"]["ep_size"])

    @cached_property
    def rank_files(self) -> Mapping[tuple[int, int], str]:
        """(tp_rank, ep_rank) -> name of the full manifest."""
        rows = self.common.get("ranks")
        return {(0, 0): NAME} if rows is None else {(r["tp_rank"], r["ep_rank"]): r["file"] for r in rows}

    def rank(self, tp_rank: int, ep_rank: int) -> RankLayers:
        """The layers of one rank. KeyError if the folder has no such rank."""
        name = self.rank_files[tp_rank, ep_rank]
        manifest = self.common if name == NAME else packed_manifest(self.path, name)
        return RankLayers(self.path, name, manifest)


@dataclass(frozen=True)
class Group:
    """What vLLM makes one module of. entries: one layer under its own leaf, or w13 and w2."""

    vllm: str
    entries: Mapping[str, Entry]

    @property
    def experts(self) -> bool:
        return set(self.entries) <= set(EXPERTS)

    @property
    def one(self) -> Entry:
        (entry,) = self.entries.values()
        return entry


@dataclass(frozen=True)
class RankLayers:
    """One full manifest. file: its name."""

    path: Path
    file: str
    manifest: Mapping[str, Any]
    tensors: StoredTensors = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", StoredTensors(self.path))

    @property
    def layers(self) -> list[Entry]:
        return list(self.manifest["layers"])

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """By the prefix that vLLM asks for. Refused where a layer has none, or where two layers meet under one."""
        findings = Findings(_unnamed(self.layers))
        found: dict[str, dict[str, Entry]] = {}
        for entry in self.layers:
            if entry["vllm"] is not None:
                leaf = leaf_of(entry)
                if leaf in found.setdefault(entry["vllm"], {}):
                    findings.add(refusal("layer-apart", f"a second layer for {entry['vllm']}", layer=entry["name"]))
                found[entry["vllm"]][leaf] = entry
        for prefix, entries in found.items():
            if set(entries) & set(EXPERTS) and set(entries) != set(EXPERTS):
                findings.add(refusal("layer-incomplete", f"{prefix} has {', '.join(entries)} alone", layer=prefix))
        findings.raise_errors()
        return {prefix: Group(prefix, entries) for prefix, entries in found.items()}


def leaf_of(entry: Entry) -> str:
    """`w13` or `w2` of stacked experts; for every other layer its own leaf."""
    leaf = str(entry["name"]).rpartition(".")[2]
    return leaf if entry["shape"]["experts"] or leaf not in EXPERTS else f"{leaf} of one expert"


def _unnamed(layers: list[Entry]) -> Iterator[Finding]:
    for entry in layers:
        if entry["vllm"] is None:
            yield refusal("layer-apart", "the folder knows no module of vLLM for it", layer=entry["name"])
