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

from humming_convert.checkpoint.rules import broken
from humming_convert.hub import rules
from humming_convert.hub.failures import HubError, network_error, told
from humming_convert.hub.listing import LIBRARY, HubFile, Listing
from humming_convert.hub.ranges import changed

AT_ONCE = 8
TRIES = 4
BLOCK = 1 << 20


def fetch_file(listing: Listing, file: str, cache: Path | None = None) -> Path:
    """One file, from the cache or the Hub. cache: another than the user's."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    if cache is None and (there := listing.cached(file)) is not None:
        return there
    with told(listing.at, file):
        for left in reversed(range(TRIES)):
            try:
                path = Path(hf_hub_download(listing.name.repo, file, revision=listing.commit, cache_dir=cache, library_name=LIBRARY))
                break
            except HfHubHTTPError:  # an answer; the library has tried again where that makes sense
                raise
            except network_error():  # a cut: versions before 1.20 or so do not go on by themselves
                if not left:
                    raise
    if (wrong := difference(path, listing.files[file])) is None:
        return path
    remove(path)
    told_now = _etag(listing, file)
    listed = listing.files[file].sha256 or listing.files[file].blob
    if listed is not None and told_now != listed:
        raise changed(file, f"the Hub now has {file} with the checksum {told_now}, when it was planned {listed}")
    advice = "run the same command again; if it happens again, something between here and the Hub changes files"
    raise HubError(broken(rules.DAMAGED, f"{file} came with {wrong}, which the Hub lists", file=file, advice=advice))


def fetch_files(listing: Listing, files: Iterable[str]) -> None:
    """Several files into the user's cache. The first error is raised."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        for _ in pool.map(lambda f: fetch_file(listing, f), list(files)):
            pass


def difference(path: Path, listed: HubFile) -> str | None:
    """What a fetched file has that the list has not; None if it is the listed one."""
    size = path.stat().st_size
    if listed.nbytes is not None and size != listed.nbytes:
        return f"{size:,} bytes, not {listed.nbytes:,}"
    if listed.sha256 is not None and (got := checksum(path, hashlib.sha256())) != listed.sha256:
        return f"the SHA-256 {got}, not {listed.sha256}"
    if listed.blob is not None and (got := blob_id(path)) != listed.blob:
        return f"git's id {got}, not {listed.blob}"
    return None


def _etag(listing: Listing, file: str) -> str | None:
    """What the Hub says of the file now."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    with told(listing.at, file):
        return get_hf_file_metadata(hf_hub_url(listing.name.repo, file, revision=listing.commit), library_name=LIBRARY).etag


def remove(path: Path, *, cut: bool = False) -> None:
    """A file of a cache and what it links to. cut: a reader that still has it open shall not keep it on the disk; the cache is ours alone."""
    real = Path(os.path.realpath(path))
    if cut and real.is_file():
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
