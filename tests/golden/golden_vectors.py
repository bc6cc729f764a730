"""Golden vectors as the library wrote them: cases, blobs and cells of the legality grid. Facts: golden/README.md."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from humming_convert.checkpoint.tensors import DTYPES

CARRIED = Path(__file__).resolve().parent.parent / "data" / "golden"
VERSIONS = ("0.1.20", "0.1.19")


class Blobs:
    def __init__(self, path: Path) -> None:
        self.data = np.memmap(path, np.uint8, "r")
        size = int.from_bytes(self.data[:8].tobytes(), "little")
        self.head, self.base = json.loads(self.data[8 : 8 + size].tobytes()), 8 + size

    def array(self, key: str) -> np.ndarray:
        entry = self.head[key]
        low, high = (x + self.base for x in entry["data_offsets"])
        return np.frombuffer(self.data[low:high].tobytes(), DTYPES[entry["dtype"]]).reshape(entry["shape"])


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / "cases.jsonl.gz", "rt") as lines:
        for line in lines:
            yield json.loads(line) | {"version": folder.name}


def cells(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(cell, expected columns) of every environment: the base, and where another differs from it."""
    with gzip.open(folder / "flags.jsonl.gz", "rt") as lines:
        head = json.loads(next(lines))
        columns = [c for c in head["columns"] if c != "reason"]
        for line in lines:
            row = json.loads(line)
            base = {c: [row["tables"][c][head["chars"].index(x)] for x in row["cols"][c]] for c in columns}
            for number, environment in enumerate(head["envs"]):
                if number == head["base_env"]:
                    wanted = range(len(head["scales"]) * len(head["acts"]))
                    changed: dict[int, dict[str, Any]] = {}
                else:
                    changed = {}
                    delta = row["delta"][number] if isinstance(row["delta"], list) else row["delta"].get(str(number), {})
                    for column, entries in delta.items():
                        for cell, index in entries:
                            changed.setdefault(cell, {})[column] = row["tables"][column][index]
                    wanted = changed
                for i in wanted:
                    scale, act = divmod(i, len(head["acts"]))
                    cell = {"sm": row["sm"], "ppu": row["ppu"], "weight": row["weight"], "param_dtype": row["param"]}
                    cell |= {"scale": head["scales"][scale], "act": head["acts"][act], **environment}
                    yield cell, {c: base[c][i] for c in columns} | changed.get(i, {})
