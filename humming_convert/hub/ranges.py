"""Parts of a file at a commit, without the rest of it.

In: a Listing, a file of it, places.  Out: bytes; HubError if anything else than the part that was asked for came.
Facts: RFC 9110 14 (206, Content-Range); huggingface_hub 1.0 to 2.4: a HEAD of the file gives its commit, size and where it really lies, which
is asked once a file, since the Hub counts requests and the store behind it does not.
"""

from __future__ import annotations

import threading
import time
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from humming_convert.checkpoint.reading import SourceChanged
from humming_convert.checkpoint.rules import broken
from humming_convert.findings import Finding
from humming_convert.hub import rules
from humming_convert.hub.failures import HubError, network_error, told
from humming_convert.hub.listing import LIBRARY, Listing

TRIES = 5
EXPIRED = (401, 403)  # a signed address is good for about an hour


class _Place(Struct, frozen=True):
    url: str
    headers: dict[str, str]


class Ranges:
    """Reads parts of the files of one commit. Safe to share among threads."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._places: dict[str, _Place] = {}
        self._lock = threading.Lock()

    def read(self, file: str, start: int, stop: int) -> bytes:
        """Bytes start..stop."""
        from huggingface_hub.errors import HfHubHTTPError

        assert 0 <= start < stop
        transport = network_error()
        with told(self._listing.at, file):
            for left in reversed(range(TRIES)):
                try:
                    return self._once(file, start, stop)
                except HfHubHTTPError as error:
                    status = error.response.status_code
                    with self._lock:
                        known = self._places.pop(file, None)
                    expired = status in EXPIRED and known is not None  # else it is the Hub that denies it
                    if not left or not (expired or status == 429 or status >= 500):
                        raise
                except transport:
                    if not left:
                        raise
                time.sleep(2.0 ** (TRIES - 1 - left) / 4)
        raise AssertionError("the last try returns or raises")

    def _once(self, file: str, start: int, stop: int) -> bytes:
        from huggingface_hub import constants
        from huggingface_hub.utils import get_session, hf_raise_for_status

        place, size = self._place(file), self._listing.files[file].nbytes
        headers = {**place.headers, "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with get_session().stream("GET", place.url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            said = response.headers.get("content-range", "")
            if response.status_code != 206 or said != f"bytes {start}-{stop - 1}/{size}":
                why = f"asked for bytes {start} to {stop - 1} of {size} of {file}, the Hub answered {response.status_code} {said}"
                raise HubError(broken(rules.RANGES, why, file=file, advice="`hf download` the model and convert the folder"))
            raw = bytes(response.read())
        if len(raw) != stop - start:
            why = f"asked for {stop - start} bytes of {file}, {len(raw)} came"
            raise HubError(broken(rules.RANGES, why, file=file, advice="run the same command again"))
        return raw

    def _place(self, file: str) -> _Place:
        with self._lock:
            found = self._places.get(file)
        if found is None:
            found = self._find(file)
            with self._lock:
                self._places[file] = found
        return found

    def _find(self, file: str) -> _Place:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        listing = self._listing
        url = hf_hub_url(listing.name.repo, file, revision=listing.commit)
        said: Any = get_hf_file_metadata(url, library_name=LIBRARY)
        listed = listing.files[file]
        if (said.commit_hash or listing.commit) != listing.commit or said.size != listed.nbytes:
            raise changed(
                file, f"the Hub gives {file} of commit {said.commit_hash}, {said.size} bytes; planned: {listing.commit}, {listed.nbytes}"
            )
        headers: dict[str, str] = dict(build_hf_headers(library_name=LIBRARY))
        if urlsplit(said.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the token is the Hub's, not the store's
        return _Place(said.location, headers)


def changed(file: str, why: str) -> SourceChanged:
    """The model is not the one that was planned."""
    return SourceChanged(
        Finding(severity="error", code="source-changed", message=why, file=file, advice="plan again; a commit that changes is no commit")
    )
