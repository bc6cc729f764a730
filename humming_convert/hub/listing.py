"""Which commit a revision is, and which files the model has there. Everything else is read at that commit.

In: a HubName.  Out: a Listing; HubError where the Hub cannot say.  A list is kept beside the cache: a commit never changes, and offline it
tells what is missing.
Facts: runtimes.md 4.3; huggingface_hub 1.0 to 2.4 (model_info with files_metadata, the cache's layout).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from humming_convert.checkpoint.config import CONFIG
from humming_convert.checkpoint.rules import broken
from humming_convert.findings import Findings
from humming_convert.hub import rules
from humming_convert.hub.failures import HubError, told
from humming_convert.hub.names import COMMIT, HubName

LIBRARY = "humming-convert"
TIMEOUT = 20.0  # seconds until the Hub's first answer


class HubFile(Struct, frozen=True, kw_only=True):
    """A file as the Hub lists it. `sha256`: of the content, where it is stored apart from git; `blob`: git's id of any other."""

    name: str
    nbytes: int | None
    sha256: str | None = None
    blob: str | None = None


class Listing(Struct, frozen=True, kw_only=True):
    """A model at a commit. `files`: at the top, by name.  `folders`: at the top.  `complete`: False where only what is cached is known."""

    name: HubName
    commit: str
    files: Mapping[str, HubFile]
    folders: tuple[str, ...] = ()
    complete: bool = True

    @property
    def at(self) -> HubName:
        """The id with the commit."""
        return HubName(self.name.repo, self.commit)

    @property
    def snapshot(self) -> Path:
        """Where the cache has files of the commit."""
        return snapshot_of(cache_folder(), self.name.repo, self.commit)

    def cached(self, file: str) -> Path | None:
        """A file of the commit that the cache has, with the size that is listed."""
        path, listed = self.snapshot / file, self.files.get(file)
        if not path.is_file():
            return None
        size = path.stat().st_size
        if listed is not None and listed.nbytes is not None and listed.nbytes != size:
            why = f"{file} has {size:,} bytes in the cache and {listed.nbytes:,} on the Hub"
            raise HubError(broken(rules.DAMAGED, why, file=file, advice=f"remove {os.path.realpath(path)} and run again"))
        return path


def cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def snapshot_of(cache: Path, repo: str, commit: str) -> Path:
    """The cache's layout is documented and has been the same since huggingface_hub 0.8."""
    return cache / f"models--{repo.replace('/', '--')}" / "snapshots" / commit


def assets(kind: str) -> Path:
    """A folder of this program beside the cache, where the library wants programs to keep theirs."""
    from huggingface_hub import cached_assets_path, constants

    return cached_assets_path(LIBRARY, namespace="hub", subfolder=kind, assets_dir=constants.HF_ASSETS_CACHE)


def offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def resolve(name: HubName, findings: Findings) -> Listing:
    """The revision as a commit, and its files."""
    return _from_cache(name, findings) if offline() else _from_hub(name)


def _from_hub(name: HubName) -> Listing:
    from huggingface_hub import HfApi, hf_hub_download

    with told(name):
        info = HfApi(library_name=LIBRARY).model_info(name.repo, revision=name.revision, files_metadata=True, timeout=TIMEOUT)
    commit, found = str(info.sha), files_of(info)
    if strange := [path for path in found if not set(path.split("/")).isdisjoint(("", ".", "..")) or "\0" in path]:
        why = f"the Hub lists a file named {strange[0]!a}, which no repository can hold"
        raise HubError(broken(rules.FAILED, why, advice="see what HF_ENDPOINT leads to"))
    files = {path: f for path, f in found.items() if "/" not in path}
    folders = dict.fromkeys(path.partition("/")[0] for path in found if "/" in path)
    listing = Listing(name=name, commit=commit, files=files, folders=tuple(folders))
    _keep(listing)
    if CONFIG in files and name.revision != commit:
        with told(name, CONFIG):  # by its name and not by the commit: so the cache learns which commit the name stands for
            got = Path(hf_hub_download(name.repo, CONFIG, revision=name.revision, library_name=LIBRARY)).parent.name
        if got != commit:
            why = f"{name} moved from {commit} to {got} while it was looked at"
            raise HubError(broken(rules.REVISION, why, advice="run the same command again"))
    return listing


def files_of(info: Any) -> dict[str, HubFile]:
    """The files of a ModelInfo, by path."""
    out: dict[str, HubFile] = {}
    for s in info.siblings or ():
        sha256 = s.lfs.sha256 if s.lfs is not None else None
        out[s.rfilename] = HubFile(name=s.rfilename, nbytes=s.size, sha256=sha256, blob=s.blob_id if sha256 is None else None)
    return out


# ------------------------------------------------------------------ offline
def _from_cache(name: HubName, findings: Findings) -> Listing:
    from huggingface_hub import try_to_load_from_cache

    commit = name.revision if name.revision and COMMIT.fullmatch(name.revision) else None
    if commit is None:
        with told(name):
            found = try_to_load_from_cache(name.repo, CONFIG, revision=name.revision)
        if not isinstance(found, str):
            why = f"HF_HUB_OFFLINE is set, and the cache has no {CONFIG} of {name}"
            raise HubError(broken(rules.OFFLINE, why, file=CONFIG, advice="run once without HF_HUB_OFFLINE, or `hf download` it"))
        commit = Path(found).parent.name
    kept = _kept(name, commit)
    if kept is not None:
        return kept
    folder = snapshot_of(cache_folder(), name.repo, commit)
    if not folder.is_dir():
        why = f"HF_HUB_OFFLINE is set, and the cache has nothing of {name}"
        raise HubError(broken(rules.OFFLINE, why, advice="run once without HF_HUB_OFFLINE, or `hf download` it"))
    why = f"the list of {name}'s files is not known offline; what the cache has of commit {commit} is taken for all of it"
    findings.add(broken(rules.UNLISTED, why, advice="plan it once without HF_HUB_OFFLINE to be sure"))
    entries = sorted(os.scandir(folder), key=lambda e: e.name)
    files = {e.name: HubFile(name=e.name, nbytes=None) for e in entries if e.is_file()}
    return Listing(name=name, commit=commit, files=files, folders=tuple(e.name for e in entries if e.is_dir()), complete=False)


def _place(repo: str, commit: str) -> Path:
    return assets("listings") / f"{repo.replace('/', '--')}-{commit}.json"


def _keep(listing: Listing) -> None:
    document = {"files": [asdict(f) for f in listing.files.values()], "folders": listing.folders}
    place = _place(listing.name.repo, listing.commit)
    fresh = place.with_name(f"{place.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps(document))
    os.replace(fresh, place)


def _kept(name: HubName, commit: str) -> Listing | None:
    """None if there is none, or it cannot be read: it is a convenience, and what it would say is then said to be unknown."""
    try:
        document: dict[str, Any] = json.loads(_place(name.repo, commit).read_text())
        files = {f["name"]: HubFile(**f) for f in document["files"]}
        return Listing(name=name, commit=commit, files=files, folders=tuple(document["folders"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
