"""Checkpoint folders in memory, so that they can be changed piece by piece and written again.

`bases()`: small samples of every family, and the shared set where it lies beside the checkout.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.slow_bits import Tensor, tensors_of_file

SHARED = Path(os.environ.get("HUMMING_CONVERT_SHARED") or Path(__file__).resolve().parents[2].parent / "shared") / "checkpoints"


@dataclass
class Folder:
    """json: name -> parsed; weights: file -> tensor name -> Tensor; raw: other files; late: changes of written bytes, in order."""

    json: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)
    late: list[tuple[str, list[Any]]] = field(default_factory=list)

    def copy(self) -> Folder:
        return Folder(copy.deepcopy(self.json), {f: dict(t) for f, t in self.weights.items()}, dict(self.raw), list(self.late))

    def place(self, tensor: str) -> str:
        """The file of a tensor. KeyError if it is nowhere."""
        return next((f for f, t in self.weights.items() if tensor in t), "") or _nowhere(tensor)

    def tensors(self) -> list[str]:
        return [name for t in self.weights.values() for name in t]


def _nowhere(tensor: str) -> str:
    raise KeyError(tensor)


def load(path: Path) -> Folder:
    out = Folder()
    for p in sorted(path.iterdir()):
        if p.suffix == ".safetensors":
            out.weights[p.name] = tensors_of_file(p)
        elif p.suffix == ".json":
            out.json[p.name] = json.loads(p.read_text())
        elif p.is_file():
            out.raw[p.name] = p.read_bytes()
    return out


def header_of(tensors: dict[str, Tensor]) -> bytes:
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, t in tensors.items():
        head[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, at + len(t.raw)]}
        at += len(t.raw)
    text = json.dumps(head).encode()
    return text + b" " * (-len(text) % 8)


def write(folder: Folder, path: Path) -> None:
    path.mkdir(parents=True)
    files = dict(folder.raw)
    for name, body in folder.json.items():
        files[name] = json.dumps(body).encode()
    for name, tensors in folder.weights.items():
        head = header_of(tensors)
        files[name] = struct.pack("<Q", len(head)) + head + b"".join(t.raw for t in tensors.values())
    for what, args in folder.late:
        LATE[what](files, path, *args)
    for name, data in files.items():
        if not (path / name).is_symlink() and not (path / name).exists():
            (path / name).write_bytes(data)


# ------------------------------------------------------------------ changes of written bytes
Files = dict[str, bytes]


def _cut(files: Files, path: Path, name: str, length: int) -> None:
    files[name] = files[name][:length]


def _append(files: Files, path: Path, name: str, data: str) -> None:
    files[name] += bytes.fromhex(data)


def _poke(files: Files, path: Path, name: str, at: int, data: str) -> None:
    new = bytes.fromhex(data)
    files[name] = files[name][:at] + new + files[name][at + len(new) :]


def _insert(files: Files, path: Path, name: str, at: int, data: str) -> None:
    files[name] = files[name][:at] + bytes.fromhex(data) + files[name][at:]


def _replace(files: Files, path: Path, name: str, old: str, new: str) -> None:
    """In a header the length bytes follow."""
    data = files[name]
    if name.endswith(".safetensors"):
        (length,) = struct.unpack("<Q", data[:8])
        head = data[8 : 8 + length].replace(old.encode(), new.encode(), 1)
        files[name] = struct.pack("<Q", len(head)) + head + data[8 + length :]
    else:
        files[name] = data.replace(old.encode(), new.encode(), 1)


def _remove(files: Files, path: Path, name: str) -> None:
    files.pop(name, None)


def _link(files: Files, path: Path, name: str, target: str) -> None:
    files.pop(name, None)
    (path / name).symlink_to(target)


def _folder(files: Files, path: Path, name: str) -> None:
    files.pop(name, None)
    (path / name).mkdir()


def _pipe(files: Files, path: Path, name: str) -> None:
    files.pop(name, None)
    os.mkfifo(path / name)


LATE: dict[str, Callable[..., None]] = {"cut": _cut, "append": _append, "poke": _poke, "insert": _insert, "replace": _replace, "remove": _remove, "link": _link, "folder": _folder, "pipe": _pipe}  # fmt: skip


# ------------------------------------------------------------------ bases
@cache
def bases() -> dict[str, Folder]:
    """`demo:NAME` and `shared:NAME`. Large samples are left out: nothing is different in them but time."""
    from humming_convert.demo.samples import all_samples

    out: dict[str, Folder] = {}
    with tempfile.TemporaryDirectory() as top:
        for sample in all_samples():
            if sample.nbytes < 1 << 20:
                out[f"demo:{sample.name}"] = load(sample.write(Path(top)))
    if SHARED.is_dir():
        for path in sorted(SHARED.iterdir()):
            if path.is_dir() and (path / "config.json").exists():
                out[f"shared:{path.name}"] = load(path)
    return out
