"""Makes the small choice of golden vectors that is carried in tests/data/golden.

    python tests/golden/carry.py SHARED/golden

The smallest cases that together show every facet of the packer (place, maps, scale order, merge, width, pads) and every reason to
refuse, and some lines of the legality grid.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import adapter
import golden_vectors as vectors

from humming_convert import Refused
from humming_convert.checkpoint.tensors import NAMES

GRID_LINES = {"0.1.20": 71, "0.1.19": 149}  # every so-manieth line is carried
DIFFERS = ("refused", "groups", "pads")  # facets in which 0.1.19 differs (layouts.md 9)


def facets(case: dict[str, Any], inputs: dict[str, np.ndarray]) -> set[tuple[Any, ...]]:
    """What a case shows of the packer; a case is carried if it shows something that no smaller one does."""
    try:
        packed = adapter.pack(case, inputs)
    except Refused:
        return {("refused", case["refused"]["reason"])}
    r = packed.recipe
    w, s = r.weight, r.small
    place = (w.place, w.interleave, w.swapped)
    return {
        (*place, w.act_bits, w.bits),
        (*place, w.act_bits, w.ppu),
        ("maps", w.maps, w.place),
        ("scale", s.place, r.outputs["weight_scale"][0], w.ppu),
        ("steps", s.merge, s.fp16_range, s.rebias, s.fused, r.form.scale_2, r.experts is None),
        ("zero", s.zero_width, s.zero_groups, r.form.zero_point, w.ppu),
        ("pads", bool(s.fused), r.form.scale.kind, w.pad_n > 0, w.pad_k > 0),
        ("groups", r.source.scale.k, r.form.scale.k, w.group),
        ("target", case["sm"], case["ppu"], case["entry"]),
    }


def main() -> None:
    source = Path(sys.argv[1])
    for version in vectors.VERSIONS:
        folder, out = source / version, vectors.CARRIED / version
        blobs, cases, shown = vectors.Blobs(folder / "blobs.safetensors"), [], set()
        for _, case in sorted(((cost(c, blobs), c) for c in vectors.cases(folder)), key=lambda x: (x[0], x[1]["id"])):
            new = facets(case, {name: blobs.array(k) for name, k in case["inputs"].items()}) - shown
            if version == "0.1.19":
                new = {facet for facet in new if facet[0] in DIFFERS}
            if new:
                shown |= new
                cases.append(case)
        write(out, cases, blobs)
        with gzip.open(folder / "flags.jsonl.gz", "rt") as lines:
            kept = [line for i, line in enumerate(lines) if i == 0 or i % GRID_LINES[version] == 5]
        (out / "flags.jsonl.gz").write_bytes(gzip.compress("".join(kept).encode(), 9, mtime=0))
        print(version, len(cases), Counter(c.get("refused", {}).get("reason") for c in cases), sum(f.stat().st_size for f in out.iterdir()))


def cost(case: dict[str, Any], blobs: vectors.Blobs) -> int:
    return sum(blobs.array(k).nbytes for k in {*case["inputs"].values(), *case.get("outputs", {}).values()})


def write(out: Path, cases: list[dict[str, Any]], blobs: vectors.Blobs) -> None:
    out.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({k: v for k, v in c.items() if k != "version"}) + "\n" for c in cases)
    (out / "cases.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    keys = sorted({k for c in cases for group in ("inputs", "outputs") for k in c.get(group, {}).values()})
    head: dict[str, Any] = {}
    body = bytearray()
    for key in keys:
        x = blobs.array(key)
        assert hashlib.sha256(f"{NAMES[x.dtype]}|{'x'.join(map(str, x.shape))}|".encode() + x.tobytes()).hexdigest()[:16] == key
        head[key] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [len(body), len(body) + x.nbytes]}
        body += x.tobytes()
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (out / "blobs.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)


if __name__ == "__main__":
    main()
