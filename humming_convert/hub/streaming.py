"""The cache of a streaming run: the user's own cache is never emptied, and what the user has in it is used.

In: a Listing.  Out: a folder, locked as long as the object lives.  What a killed run left in it is used by the next one.
Facts: architecture.md 9.1 (--stream).
"""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from humming_convert.hub import rules
from humming_convert.hub.failures import HubError
from humming_convert.hub.listing import Listing, assets, snapshot_of
from humming_convert.hub.rules import broken


class StreamCache:
    """`folder`: as a cache of the library.  `snapshot`: where files of the commit are."""

    def __init__(self, listing: Listing) -> None:
        home = assets("stream") / f"{listing.name.repo.replace('/', '--')}-{listing.commit}"
        home.mkdir(parents=True, exist_ok=True)
        self.folder: Path = home / "cache"
        self.snapshot = snapshot_of(self.folder, listing.name.repo, listing.commit)
        self._lock = open(home / "lock", "w")  # noqa: SIM115 it is held until the object goes
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            why = f"another run streams {listing.at}"
            raise HubError(broken(rules.IN_USE, why, advice="wait for it, or run without --stream")) from None

    def clear(self) -> None:
        """All is done with."""
        shutil.rmtree(self.folder, ignore_errors=True)
