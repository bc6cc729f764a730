"""The fingerprint of a plan: a digest of everything that shapes the output's bytes.

Same source, options and version: same fingerprint. It is the key of resume and of caches (architecture.md 6, 9.1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict
from xxhash import xxh3_128

from humming_convert import __version__
from humming_convert.checkpoint.reading import source_digest
from humming_convert.formats.source import ReadOptions
from humming_convert.plan.types import Plan, Request
from humming_convert.targets.table import find_target


def options_of(request: Request) -> dict[str, Any]:
    """Every option that shapes bytes, plain values, as the manifest's `options` holds them."""
    out = asdict(request)
    out["target"] = request.target.name if request.target else None
    out |= asdict(out.pop("read"))
    return dict(sorted(out.items()))


def request_of(options: Mapping[str, Any]) -> Request:
    """The Request that `options_of` wrote down. KeyError or TypeError if it was none."""
    o = dict(options)
    target = o.pop("target")
    found = find_target(target) if target is not None else None
    if target is not None and found is None:
        raise KeyError(target)
    read = ReadOptions(**{k: o.pop(k) for k in ReadOptions.__struct_fields__})
    return Request(target=found, read=read, **o)


def identity(plan: Plan) -> dict[str, Any]:
    """What the fingerprint is taken over, by name: so that two plans that differ can say in what."""
    return {
        "tool": __version__,
        "options": options_of(plan.request),
        "source": {f.name: [f.nbytes, source_digest(f)] for f in plan.source.weights},
        "config": plan.source.config,
        "sections": {s.place: s.body for s in plan.source.sections},
        "files": {f.name: [f.nbytes, xxh3_128(f.header).hexdigest()] for f in plan.files},
        "layers": {p.key: [p.vllm, p.recipe.config.as_dict() if p.recipe else None, p.layer.parts] for p in plan.layers},
    }


def fingerprint(plan: Plan) -> str:
    """`xxh3:` and 32 hex digits."""
    text = json.dumps(identity(plan), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "xxh3:" + xxh3_128(text.encode()).hexdigest()
