"""A model of the Hub as a Checkpoint: planned from its headers, converted while its files arrive.

In: a HubName.  Out: a Checkpoint, or None and all that is wrong with it; HubError where the Hub is in the way.
Facts: architecture.md 1, 9.1.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from humming_convert.checkpoint import Use, open_checkpoint
from humming_convert.checkpoint.folder import Checkpoint, Known
from humming_convert.checkpoint.reading import snapshot, source_digest
from humming_convert.findings import Findings
from humming_convert.hub.arrivals import HubArrivals
from humming_convert.hub.downloads import Fetched
from humming_convert.hub.heads import Heads
from humming_convert.hub.listing import resolve
from humming_convert.hub.names import HubName
from humming_convert.hub.streaming import StreamCache

CARD = "README.md"


def open_hub(name: HubName, findings: Findings, *, stream: bool = False) -> Checkpoint | None:
    """The checkpoint at a revision, which is a commit from here on. No weight file of more than 64 MB is fetched.

    stream: such files go to a cache of their own and are removed when they are done; those that the user's cache has stay where they are.
    """
    listing = resolve(name, findings)
    heads = Heads(listing)
    found = open_checkpoint(heads.folder, findings)
    if found is None:
        return None
    cache = StreamCache(listing) if stream else None
    far = cache.snapshot if cache is not None else listing.snapshot

    def place(file: str) -> Path:
        return (far if file in heads.large else listing.snapshot) / file

    states = snapshot(found.weights)
    weights = tuple(
        replace(f, path=place(f.name), known=Known(digest=source_digest(f), header=state.header))
        for f, state in zip(found.weights, states, strict=True)
    )
    tensors = {n: replace(v, file=place(v.file.name)) for n, v in found.tensors.items()}
    heads.know(tensors.values())
    rest = (*found.others, *([CARD] if CARD in listing.files else []))
    return replace(
        found,
        folder=listing.snapshot,
        name=name.repo,
        revision=listing.commit,
        tensors=tensors,
        weights=weights,
        arrivals=HubArrivals(heads, weights, rest, cache),
    )


def fetch_model(name: HubName, findings: Findings, fetched: Fetched | None = None) -> Path | None:
    """The folder in the cache with all that a conversion reads. None as `open_hub`. fetched: told how far the weight files have come."""
    checkpoint = open_hub(name, findings)
    if checkpoint is None:
        return None
    assert checkpoint.arrivals is not None
    everything = Use(frozenset(f.path for f in checkpoint.weights))
    checkpoint.arrivals.begin([everything], fetched)
    try:
        checkpoint.arrivals.wait(everything, lambda: None)
    finally:
        checkpoint.arrivals.end()
    return checkpoint.folder
