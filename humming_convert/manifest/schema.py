"""JSON Schemas of the documents that this tool writes, from `schemas/` (in a checkout) or from inside the wheel.

Facts: architecture.md 2, 9.6.
"""

from __future__ import annotations

import json
from typing import Any

from humming_convert.resources import schemas

NAMES = ("manifest", "plan", "findings", "tuning", "bench")


def load_schema(name: str) -> dict[str, Any]:
    """The schema of NAMES. ValueError if there is none of that name."""
    if name not in NAMES:
        raise ValueError(f"no schema {name!r}; there are {', '.join(NAMES)}")
    schema: dict[str, Any] = json.loads((schemas() / f"{name}.schema.json").read_text(encoding="utf-8"))
    return schema
