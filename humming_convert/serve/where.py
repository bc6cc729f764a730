"""Where a model lies: a folder, or the snapshot of a Hub id in the cache.

In: what vLLM was given.  Out: a folder with the manifests and the index of the common files; weights are vLLM's to fetch, into the same snapshot.
Facts: runtimes.md 3.3; huggingface_hub (`snapshot_download`).
"""

from __future__ import annotations

from pathlib import Path

INDEX = "model.safetensors.index.json"
SMALL = ("humming_manifest*.json", INDEX)


def folder_of(model: str, revision: str | None, cache: str | None) -> Path:
    """cache: None for the Hub's own.  What huggingface_hub raises for an id that is not there goes up."""
    folder = Path(model)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, cache_dir=cache, allow_patterns=list(SMALL)))
