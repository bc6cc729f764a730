"""Whole files of a commit, into the cache, checked when they come.

In: a Listing, names.  Out: paths. The library downloads, goes on after cuts and puts a file in its place only when it is whole; here its size
and checksum are compared with what the Hub lists.
Facts: huggingface_hub 1.0 to 2.4; git's blob ids (sha1 of `blob <size>\\0` and the content).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from humming_convert.hub import rules
from humming_convert.hub.failures import HubError, told
from humming_convert.hub.listing import LIBRARY, HubFile, Listing
from humming_convert.hub.rules import broken

AT_ONCE = 8
BLOCK = 1 << 20


def fetch_file(listing: Listing, file: str, cache: Path | None = None) -> Path:
    """One file, from the cache or the Hub. cache: another than the user's."""
    from huggingface_hub import hf_hub_download

    if cache is None and (there := listing.cached(file)) is not None:
        return there
    with told(listing.at, file):
        path = Path(hf_hub_download(listing.name.repo, file, revision=listing.commit, cache_dir=cache, library_name=LIBRARY))
    check(path, listing.files[file])
    return path


def fetch_files(listing: Listing, files: Iterable[str]) -> None:
    """Several files into the user's cache. The first error is raised."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        for _ in pool.map(lambda f: fetch_file(listing, f), list(files)):
            pass


def check(path: Path, listed: HubFile) -> None:
    """Compares a fetched file with the list; takes it out of the cache and raises HubError if it is another one."""
    size = path.stat().st_size
    if listed.nbytes is not None and size != listed.nbytes:
        wrong = f"{size:,} bytes, not {listed.nbytes:,}"
    elif listed.sha256 is not None and (got := checksum(path, hashlib.sha256())) != listed.sha256:
        wrong = f"the SHA-256 {got}, not {listed.sha256}"
    elif listed.blob is not None and (got := blob_id(path)) != listed.blob:
        wrong = f"git's id {got}, not {listed.blob}"
    else:
        return
    remove(path)
    advice = "run the same command again; if it happens again, a proxy or HF_ENDPOINT gives other files than the Hub"
    raise HubError(broken(rules.DAMAGED, f"{path.name} came with {wrong}, which the Hub lists", file=path.name, advice=advice))


def remove(path: Path) -> None:
    """A file of the cache and what it links to. Cut first: a reader that still has it open shall not keep it on the disk."""
    real = Path(os.path.realpath(path))
    if real.is_file():
        os.truncate(real, 0)
    for each in {path, real}:
        each.unlink(missing_ok=True)


def blob_id(path: Path) -> str:
    start = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    return checksum(path, start)


def checksum(path: Path, into: hashlib._Hash) -> str:
    """Of a file's content, in hexadecimal."""
    with open(path, "rb") as f:
        while block := f.read(BLOCK):
            into.update(block)
    return into.hexdigest()
