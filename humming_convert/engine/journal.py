"""The journal of an unfinished run: how far each file is whole, with what results. One JSON line a piece of a file.

A line is written after its bytes are on disk. The first line says what the run makes, field by field, so that another request
can be told in what it differs. Parts of a split run have a journal each. Facts: architecture.md 6.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

from msgspec import Struct, field
from xxhash import xxh3_128

from humming_convert.engine.folder import OURS
from humming_convert.manifest.types import LayerResult
from humming_convert.plan.fingerprint import identity
from humming_convert.plan.types import Plan

NAME = OURS + "journal"
WAITING = 8  # pieces that may wait for the disk before workers wait too


class FileDone(Struct):
    """What is known of the first `upto` bytes of a file: their digest and the results of the layers in them."""

    upto: int
    digest: str
    layers: dict[str, LayerResult] = field(default_factory=dict)
    plain: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def line(self, name: str, start: int = 0) -> dict[str, Any]:
        """The journal's line of the bytes from `start` on; the digest is of all bytes up to `upto`."""
        layers = {k: v.as_dict() for k, v in self.layers.items()}
        return {"file": name, "from": start, "upto": self.upto, "digest": self.digest, "layers": layers, "plain": self.plain}


def _joined(lines: Sequence[Mapping[str, Any]], into: dict[str, FileDone]) -> None:
    """Adds lines in their order. A line that does not go on where the file's last one ended begins it anew, or says nothing."""
    for line in lines:
        layers = {k: LayerResult.from_dict(v) for k, v in line["layers"].items()}
        known = into.get(line["file"])
        if line["from"] == 0:
            into[line["file"]] = FileDone(line["upto"], line["digest"], layers, dict(line["plain"]))
        elif known is not None and known.upto == line["from"]:
            known.upto, known.digest = line["upto"], line["digest"]
            known.layers |= layers
            known.plain |= line["plain"]


def fields(plan: Plan) -> dict[str, Any]:
    """The plan's identity in few words: options as they are, everything else as a digest a field."""
    whole = identity(plan)
    out = {k: xxh3_128(json.dumps(v, sort_keys=True).encode()).hexdigest() for k, v in whole.items() if k not in ("options", "tool")}
    return {"fingerprint": plan.fingerprint, "tool": whole["tool"], **{f"options.{k}": v for k, v in whole["options"].items()}, **out}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`options.act: "bf16", now "fp8"`: the fields in which two runs differ; the fingerprint and the files' times are left out."""
    out = []
    for key in sorted(set(old) | set(new)):
        if key not in ("fingerprint", "state") and old.get(key) != new.get(key):
            plain = key.startswith("options.") or key == "tool"
            out.append(f"{key}: {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}" if plain else key)
    return out


class Journal:
    """`done`: file name -> how far earlier runs with the same fields came. `others`: how an earlier run differs, [] if it does not.

    part: `2of4`, or "" for the run that has the folder for itself and takes over what parts have done.
    state: sizes and times of the source's files; None: any. Of a source that was touched since, nothing that this journal says is
    believed; parts may have read copies with other times, and each has seen to it that its own did not change.
    """

    def __init__(self, folder: Path, plan: Plan, part: str = "", state: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.path = folder / (f"{NAME}-{part}" if part else NAME)
        self.head = {**fields(plan), "state": None if state is None else dict(state)}
        self.done: dict[str, FileDone] = {}
        self.others: list[str] = []
        self.merged = [] if part else sorted(p for p in folder.glob(NAME + "-*") if p.suffix != ".new")
        for path in [folder / NAME, self.path] if part else [*self.merged, self.path]:
            lines = _lines(path)
            if not lines:
                continue
            self.others = differences(lines[0], self.head)
            if self.others:
                break
            if path != self.path or state is None or lines[0].get("state") == self.head["state"]:
                _joined(lines[1:], self.done)

    @property
    def found(self) -> bool:
        """Whether an earlier run left a journal."""
        return self.path.exists() or bool(self.merged) or (self.folder / NAME).exists()

    def begin(self) -> None:
        """Starts anew, or goes on after what is whole: one line a file, the parts' included."""
        lines = [self.head, *(done.line(name) for name, done in self.done.items())]
        fresh = self.path.with_name(self.path.name + ".new")
        with open(fresh, "wb") as f:
            f.write(b"".join(json.dumps(x).encode() + b"\n" for x in lines))
            f.flush()
            os.fsync(f.fileno())
        os.rename(fresh, self.path)
        for path in self.merged:
            path.unlink(missing_ok=True)

    def add(self, line: Mapping[str, Any]) -> None:
        """Appends a line; it is on disk afterwards."""
        with open(self.path, "ab") as f:
            f.write(json.dumps(line).encode() + b"\n")
            f.flush()
            os.fsync(f.fileno())

    def forget(self) -> None:
        """Nothing is believed to be done; the folder stays known as ours."""
        self.done = {}
        self.begin()

    def remove(self) -> None:
        for path in (self.path, *self.merged):
            path.unlink(missing_ok=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines; a torn last one (its writer died) is dropped."""
    if not path.exists():
        return []
    out: list[dict[str, Any]] = []
    for raw in path.read_bytes().split(b"\n")[:-1]:
        try:
            out.append(json.loads(raw))
        except ValueError:
            break
    return out


class Keeper:
    """Brings finished pieces of files to the disk and then into their journal, beside the workers, so that packing goes on meanwhile.

    An error of the disk is raised in the worker that comes next, and by `finish`.
    """

    def __init__(self) -> None:
        self._queue: Queue[tuple[int, Callable[[], None]] | None] = Queue(WAITING)
        self._error: BaseException | None = None
        self._abandoned = Event()
        self._thread = Thread(target=self._work, name="keeper", daemon=True)
        self._thread.start()

    def keep(self, fd: int, then: Callable[[], None]) -> None:
        """Later, in order: what was written to fd goes to the disk, then `then` is called. fd may be closed at once."""
        own = os.dup(fd)
        while True:
            if self._error is not None or self._abandoned.is_set():
                os.close(own)
                if self._error is not None:
                    raise self._error
                return
            try:
                self._queue.put((own, then), timeout=0.2)
                return
            except Full:
                continue

    def finish(self) -> None:
        """Everything is on disk afterwards."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """What is not on disk yet is not journalled."""
        self._abandoned.set()
        self._thread.join(5.0)

    def _work(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=0.2)
            except Empty:
                if self._abandoned.is_set():
                    return
                continue
            if item is None:
                return
            fd, then = item
            try:
                if self._error is None and not self._abandoned.is_set():
                    os.fdatasync(fd)
                    if not self._abandoned.is_set():
                        then()
            except (OSError, MemoryError) as error:
                self._error = error
            finally:
                os.close(fd)
