"""The key under which an output may be cached: the fingerprint, and what else stands in the output's files.

Out: 32 hex digits. The fingerprint alone says whether weights, manifest and config are made from the same things; a copied tokenizer, the
card's text and the name under which the source is recorded are in the output as well.
Facts: manifest/build.py, manifest/card.py, engine/finish.py (what is written besides the weights).
"""

from __future__ import annotations

import json
from typing import Any

from xxhash import xxh3_128

from humming_convert.checkpoint.reading import content_digest
from humming_convert.plan.types import Plan

CARD = "README.md"


def cache_parts(plan: Plan) -> dict[str, Any]:
    """What the key is taken over, by name. A model of the Hub is fixed by its commit: files that are not fetched yet are not asked for."""
    source = plan.source
    out: dict[str, Any] = {"fingerprint": plan.fingerprint, "name": source.name, "revision": source.revision}
    if source.arrivals is None:
        card = [CARD] if (source.folder / CARD).is_file() else []
        out["copied"] = {name: content_digest(source.folder / name) for name in (*source.others, *card)}
    return out


def cache_key(plan: Plan) -> str:
    """Raises checkpoint.reading.SourceError where a file that will be copied cannot be read."""
    text = json.dumps(cache_parts(plan), sort_keys=True, separators=(",", ":"))
    return xxh3_128(text.encode()).hexdigest()
