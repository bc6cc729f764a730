"""Trials of the command line under faults: a warm server, a sweep over calls, and what must hold after every trial."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OPTIONS = ("--target", "sm90", "--act", "bf16", "--quiet", "--shard-size", "100KB")


def build_shim(folder: Path) -> Path:
    """The compiled shim. CalledProcessError with the compiler's words if it does not compile."""
    shim = folder / "shim.so"
    subprocess.run(["gcc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(shim), str(HERE / "shim.c"), "-ldl"], check=True)
    return shim


@dataclass
class Ended:
    """How a trial ended. code: exit code, negative a signal. calls: that the fault could have met."""

    code: int
    calls: int
    said: str


class Server:
    """A process that runs trials one after another."""

    def __init__(self, shim: Path) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def send(self, trial: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(trial), file=self._process.stdin, flush=True)

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def run(self, arguments: list[str], **more: Any) -> Ended:
        self.send({"arguments": arguments, **more})
        return Ended(**self.receive())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@dataclass
class Bench:
    """A small model, its undisturbed output, and a server."""

    server: Server
    model: Path
    work: Path
    options: tuple[str, ...] = OPTIONS
    lists: bool = False
    want: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server.send({"warm": [str(self.model), str(self.work / "warm"), self.lists]})
        self.server.receive()
        shutil.rmtree(self.work / "warm")
        assert self.convert().code == 0
        self.want = content(self.out)

    @property
    def out(self) -> Path:
        return self.work / "out"

    def convert(self, **more: Any) -> Ended:
        return self.server.run(["convert", str(self.model), "--out", str(self.out), *self.options], **more)

    def clear(self) -> None:
        for path in self.work.iterdir():
            shutil.rmtree(path)

    def fault(self, kinds: list[str], at: int, action: str, *, error: int = 0, for_good: bool = False) -> dict[str, Any]:
        return {"folder": str(self.work), "kinds": kinds, "at": at, "action": action, "errno": error, "for_good": for_good}

    def calls(self, kinds: list[str]) -> int:
        """How many calls of these kinds an undisturbed conversion makes."""
        self.clear()
        ended = self.convert(fault=self.fault(kinds, 0, "fail"))
        assert ended.code == 0, ended.said
        return ended.calls

    def trial(self, kinds: list[str], at: int, action: str, *, error: int = 0, for_good: bool = False) -> Ended:
        """A conversion with a fault, then one without; asserts what must hold in between and after."""
        self.clear()
        where = f"{action} {errno.errorcode.get(error, '')} at call {at} of {kinds}{' and all later ones' if for_good else ''}"
        ended = self.convert(fault=self.fault(kinds, at, action, error=error, for_good=for_good))
        self.assert_safe(where, ended)
        if action == "fail":
            assert ended.code in (0, 5), (where, ended)
            if ended.code:
                assert os.strerror(error) in ended.said, (where, ended.said)
        elif action == "short":
            assert ended.code == 0 or "ends at byte" in ended.said, (where, ended)
        else:
            assert ended.code in (-9, 0), (where, ended)
        self.assert_resumes(where)
        return ended

    def assert_safe(self, where: str, ended: Ended) -> None:
        """No `<out>`, or a whole one; success only with a whole one; no traceback."""
        assert "Traceback" not in ended.said, (where, ended.said)
        if self.out.exists():
            assert content(self.out) == self.want, where
        else:
            assert ended.code != 0, where

    def assert_resumes(self, where: str) -> None:
        """The same command ends in the undisturbed bytes, with nothing left beside them."""
        again = self.convert()
        assert again.code == 0, (where, again.said)
        assert content(self.out) == self.want, where
        assert [p.name for p in self.work.iterdir()] == ["out"], (where, sorted(p.name for p in self.work.iterdir()))


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def some(calls: int, most: int) -> Iterator[int]:
    """Numbers from 1 to calls: all, or `most` spread over them with both ends."""
    if calls <= most:
        yield from range(1, calls + 1)
    else:
        yield from sorted({1 + round(i * (calls - 1) / (most - 1)) for i in range(most)})
