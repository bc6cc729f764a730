"""The journal of an unfinished run: which files are whole, with what results. One JSON line a finished file.

A line is written after its file's bytes are on disk. The first line says what the run makes, field by field, so that another request
can be told in what it differs. Facts: architecture.md 6.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from humming_convert.plan.fingerprint import identity
from humming_convert.plan.types import Plan

NAME = ".humming-convert.journal"


def fields(plan: Plan) -> dict[str, Any]:
    """The plan's identity in few words: options as they are, everything else as a digest a field."""
    whole = identity(plan)
    out = {k: xxh3_128(json.dumps(v, sort_keys=True).encode()).hexdigest() for k, v in whole.items() if k not in ("options", "tool")}
    return {"fingerprint": plan.fingerprint, "tool": whole["tool"], **{f"options.{k}": v for k, v in whole["options"].items()}, **out}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`options.act: "bf16", now "fp8"`: the fields in which two runs differ, the fingerprint left out."""
    out = []
    for key in sorted(set(old) | set(new)):
        if key != "fingerprint" and old.get(key) != new.get(key):
            plain = key.startswith("options.") or key == "tool"
            out.append(f"{key}: {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}" if plain else key)
    return out


class Journal:
    """`done`: file name -> its line, of an earlier run with the same fields. `others`: how an earlier run differs, [] if it does not."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.path = folder / NAME
        self.head = fields(plan)
        self.done: dict[str, dict[str, Any]] = {}
        self.others: list[str] = []
        lines = self._lines()
        if lines:
            self.others = differences(lines[0], self.head)
            if not self.others:
                self.done = {line["file"]: line for line in lines[1:]}

    def _lines(self) -> list[dict[str, Any]]:
        """The whole lines; a torn last one (its writer died) is dropped."""
        if not self.path.exists():
            return []
        out = []
        for raw in self.path.read_bytes().split(b"\n")[:-1]:
            try:
                out.append(json.loads(raw))
            except ValueError:
                break
        return out

    def begin(self) -> None:
        """Starts anew, or goes on after the lines that are whole."""
        lines = [self.head, *self.done.values()]
        fresh = self.path.with_name(NAME + ".new")
        with open(fresh, "wb") as f:
            f.write(b"".join(json.dumps(x).encode() + b"\n" for x in lines))
            f.flush()
            os.fsync(f.fileno())
        os.rename(fresh, self.path)

    def finished(self, line: dict[str, Any]) -> None:
        """Appends a line; it is on disk afterwards."""
        with open(self.path, "ab") as f:
            f.write(json.dumps(line).encode() + b"\n")
            f.flush()
            os.fsync(f.fileno())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
