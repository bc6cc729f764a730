"""What would be published: the files of a finished folder, where they go, and whether they may.

In: an output folder, and what is on the Hub.  Out: a Publication; findings that refuse it.  Nothing is written anywhere.
Facts: runtimes.md 4.1 to 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert.checkpoint.rules import broken
from humming_convert.findings import Findings, counted
from humming_convert.hub import rules
from humming_convert.hub.licence import named, objection
from humming_convert.hub.names import HubName
from humming_convert.hub.remote import Remote
from humming_convert.manifest.build import NAME as MANIFEST
from humming_convert.manifest.card import split_head
from humming_convert.manifest.read import read_manifest

CARD = "README.md"
KEPT = frozenset((".gitattributes",))  # of the repository, not of the output
MOST_FILES, LARGEST = 9_000, 200 * 10**9  # runtimes.md 4.4: entries of a folder, bytes of a file


class Local(Struct, frozen=True, kw_only=True):
    """A finished folder. `files`: name -> bytes, the manifest last.  `head`: of its card."""

    folder: Path
    manifest: Mapping[str, Any]
    files: Mapping[str, int]
    head: str

    @property
    def title(self) -> str:
        return identity_text(identity(self.manifest))


class Publication(Struct, frozen=True, kw_only=True):
    """`to`: repository and branch.  `prefix`: "" or `folder/`.  `deleted`: paths that the commit takes away.  `new`: what is made first.

    `parent`: the commit that it is written on top of; None where the repository or the branch has to be made.  `main`: where a branch would
    begin; None for a repository that has to be made."""

    local: Local
    to: HubName
    prefix: str
    deleted: tuple[str, ...]
    parent: str | None
    main: str | None
    new: tuple[str, ...]
    makes_repo: bool
    licence: str | None

    @property
    def paths(self) -> dict[str, int]:
        """Path in the repository -> bytes."""
        return {f"{self.prefix}{name}": nbytes for name, nbytes in self.local.files.items()}

    def document(self) -> dict[str, Any]:
        return {
            "repo": self.to.repo,
            "branch": self.to.revision,
            "subfolder": self.prefix.rstrip("/") or None,
            "parent": self.parent,
            "new": list(self.new),
            "license": self.licence,
            "files": [{"path": p, "bytes": n} for p, n in self.paths.items()],
            "bytes": sum(self.paths.values()),
            "deleted": list(self.deleted),
        }


def read_local(folder: Path) -> Local:
    """The folder as its manifest lists it. It has been verified."""
    manifest = read_manifest(folder)
    files = {f["name"]: int(f["bytes"]) for f in manifest["files"]}
    files[MANIFEST] = (folder / MANIFEST).stat().st_size
    text = (folder / CARD).read_text(encoding="utf-8", errors="replace") if CARD in files else ""
    return Local(folder=folder, manifest=manifest, files=files, head=split_head(text)[0])


def identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two manifests states of one output: the source's name, the form, the target, the activation, the ranks, the library."""
    parallel, target = manifest.get("parallel") or {}, manifest.get("target") or {}
    return {
        "source": (manifest.get("source") or {}).get("name"),
        "format": manifest.get("format"),
        "target": target.get("name"),
        "act": manifest.get("act"),
        "tp": parallel.get("tp_size"),
        "ep": parallel.get("ep_size"),
        "humming": (manifest.get("humming") or {}).get("version"),
    }


def identity_text(found: Mapping[str, Any]) -> str:
    """`org/name for sm90, act fp8, tp 1, ep 1, humming-kernels 0.1.20`"""
    if found["target"] is None:
        return f"{found['source']} in the standard form, humming-kernels {found['humming']}"
    ranks = f"tp {found['tp']}, ep {found['ep']}"
    return f"{found['source']} for {found['target']}, act {found['act']}, {ranks}, humming-kernels {found['humming']}"


def default_branch(manifest: Mapping[str, Any]) -> str:
    """`main` for the standard form, which every loader reads; a branch of its own for each target, as runtimes.md 4.2 proposes."""
    i = identity(manifest)
    if i["target"] is None:
        return "main"
    experts = f"-ep{i['ep']}" if i["ep"] != 1 else ""
    return f"packed-{i['target']}-{str(i['act']).replace(':', '-')}-tp{i['tp']}{experts}-hk{i['humming']}"


# ------------------------------------------------------------------ may it be published
def check_licence(local: Local, yes: bool, findings: Findings) -> None:
    why = objection(local.head)
    if why is not None and not yes:
        advice = "read the source's licence; with --yes you answer for publishing it"
        findings.add(broken(rules.LICENCE, why, file=CARD, advice=advice))


def check_limits(local: Local, findings: Findings) -> None:
    if len(local.files) > MOST_FILES:
        why = f"{len(local.files):,} files; the Hub takes about {MOST_FILES:,} in a folder"
        findings.add(broken(rules.LIMITS, why, advice="convert again with a larger --shard-size"))
    for name, nbytes in local.files.items():
        if nbytes > LARGEST:
            why = f"{nbytes:,} bytes; the Hub takes {LARGEST:,} a file"
            findings.add(broken(rules.LIMITS, why, file=name, advice="convert again with a smaller --shard-size"))


def check_place(local: Local, there: Mapping[str, Any], remote: Remote, prefix: str, findings: Findings) -> None:
    """there: the manifest at the place, {} if there is none."""
    mine = [p for p in remote.files if p.startswith(prefix) and (prefix or p not in KEPT | {CARD})]
    where = f"{remote.name}{f', folder {prefix}' if prefix else ''}"
    advice = "give another --branch or --subfolder"
    if there:
        old, new = identity(there), identity(local.manifest)
        if old != new:
            why = f"{where} holds {identity_text(old)}; this is {identity_text(new)}"
            findings.add(broken(rules.TARGET, why, file=MANIFEST, advice=f"{advice}; another output is never overwritten"))
    elif mine:
        more = f" and {counted(len(mine) - 1, 'more file')}" if len(mine) > 1 else ""
        why = f"{where} holds {mine[0]}{more}, which no output of this tool is"
        findings.add(broken(rules.TARGET, why, file=mine[0], advice=f"{advice}, or an empty repository"))


def licence_of(local: Local) -> str | None:
    return named(local.head)
