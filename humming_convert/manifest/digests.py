"""Digests and canonical JSON of the manifest.

Digest: `xxh3:` and the 32 hex digits of XXH3-128, seed 0; it guards against accidents, not attackers.
Canonical JSON: UTF-8, keys sorted, no spaces.  Facts: architecture.md 9.6.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from xxhash import xxh3_128


def digest(data: bytes | bytearray | memoryview) -> str:
    """Of some bytes."""
    return f"xxh3:{xxh3_128(data).hexdigest()}"


def digest_stream(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """Of bytes that come piece by piece."""
    running = xxh3_128()
    for piece in pieces:
        running.update(piece)
    return f"xxh3:{running.hexdigest()}"


def canonical(document: Any) -> bytes:
    """The one spelling of a JSON document. NaN and infinity are no JSON: ValueError."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Over the manifest's canonical JSON without the key `manifest_digest` itself."""
    return digest(canonical({k: v for k, v in manifest.items() if k != "manifest_digest"}))
