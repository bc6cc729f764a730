"""How a run is carried out: what shapes speed, memory and place, never the bytes. Facts: architecture.md 9.1."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct


class Part(Struct, frozen=True):
    """`number` (from 1) of `of` parts of a split run."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """`2/16`. ValueError otherwise."""
        m = re.fullmatch(r"(\d+)/(\d+)", text)
        if m is None or not 1 <= int(m[1]) <= int(m[2]):
            raise ValueError(f"{text} is not i/n with i from 1 to n, such as 2/16")
        return cls(int(m[1]), int(m[2]))

    @property
    def label(self) -> str:
        return f"{self.number}of{self.of}"


def gpu_of(device: str) -> int | None:
    """The number of `cuda:1`; None of `cuda` (the current one) and of `cpu`. ValueError otherwise."""
    m = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if m is None:
        raise ValueError(f"{device} is not cpu, cuda or a GPU by its number, such as cuda:1")
    return int(m[1]) if m[1] else None


class How(Struct, frozen=True, kw_only=True):
    """jobs: workers, None: all cores.  max_memory: private bytes of all workers.  io: how source files are read by the workers.

    overwrite: replace a finished or foreign folder.  fresh: discard what an interrupted run left.
    link_common: files that several targets share are hard links, where they cannot be shared by blocks.
    part: of a split run, None: all of it.  address: of a Ray cluster, None: one on this machine.
    device: what packs, `cpu`, `cuda` or `cuda:1`.
    """

    jobs: int | None = None
    max_memory: int | None = None
    io: Literal["mmap", "read"] = "read"
    overwrite: bool = False
    fresh: bool = False
    link_common: bool = False
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    part: Part | None = None
    device: str = "cpu"
