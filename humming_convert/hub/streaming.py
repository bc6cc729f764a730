"""The cache of a streaming run: the user's own cache is never emptied, and what the user has in it is used.

In: a Listing.  Out: a folder, locked while a run lasts.  What a killed run left in it is used by the next one.
Facts: architecture.md 9.1 (--stream).
"""

from __future__ import annotations

import os
import shutil

from humming_convert.checkpoint.rules import broken
from humming_convert.hub import rules
from humming_convert.hub.failures import HubError
from humming_convert.hub.listing import Listing, assets, snapshot_of
from humming_convert.hub.locks import lock


class StreamCache:
    """`folder`: as a cache of the library.  `snapshot`: where files of the commit are."""

    def __init__(self, listing: Listing) -> None:
        self._of, self._lock = listing.at, -1
        self._home = assets("stream") / f"{listing.name.repo.replace('/', '--')}-{listing.commit}"
        self.folder = self._home / "cache"
        self.snapshot = snapshot_of(self.folder, listing.name.repo, listing.commit)

    def lock(self) -> None:
        """HubError if another run has it."""
        self._home.mkdir(parents=True, exist_ok=True)
        fd = lock(self._home)
        if fd is None:
            why = f"another run streams {self._of}"
            raise HubError(broken(rules.IN_USE, why, advice="wait for it, or run without --stream"))
        self._lock = fd

    def unlock(self, *, clear: bool) -> None:
        """clear: all is done with."""
        if self._lock < 0:
            return
        if clear:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1
