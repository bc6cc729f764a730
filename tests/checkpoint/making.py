"""Small checkpoint folders, good and broken, for the tests of this room."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from humming_convert.checkpoint import Checkpoint, open_checkpoint
from humming_convert.checkpoint.header import WIDTHS
from humming_convert.findings import Finding, Findings

CONFIG = {"model_type": "llama", "dtype": "float16"}


def entry(dtype: str = "F16", shape: Any = (2,), begin: Any = 0, end: Any = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


def framed(header: bytes | str | Any, data: bytes = b"") -> bytes:
    """A file of the format, whatever the header is."""
    raw = header if isinstance(header, bytes) else header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def weights(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """A good file of the named tensors, filled with running bytes."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, shape) in tensors.items():
        nbytes = WIDTHS[dtype]
        for d in shape:
            nbytes *= d
        header[name] = entry(dtype, shape, at, at + nbytes)
        at += nbytes
    return framed(header, bytes(i % 251 for i in range(at)))


ONE = weights({"a.weight": ("F16", (2,))})


def folder(
    path: Path, files: Mapping[str, bytes | str | None] | None = None, *, config: Any = CONFIG, index: Any = None, model: bytes | None = ONE
) -> Path:
    """A folder at `path`. files: name -> content; model: model.safetensors; index: a weight_map; None leaves a file out."""
    path.mkdir(parents=True, exist_ok=True)
    every: dict[str, bytes | str | None] = {
        "config.json": None if config is None else config if isinstance(config, str) else json.dumps(config),
        "model.safetensors": None if index is not None else model,
        "model.safetensors.index.json": None if index is None else index if isinstance(index, str) else json.dumps({"weight_map": index}),
        **(files or {}),
    }
    for name, content in every.items():
        if content is not None:
            (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def opened(path: Path) -> tuple[Checkpoint | None, Findings]:
    findings = Findings()
    return open_checkpoint(path, findings), findings


def refused(path: Path, code: str) -> Finding:
    """The one finding of that code; the folder must not open for an error and must for less."""
    checkpoint, findings = opened(path)
    found = [f for f in findings if f.code == code]
    assert found, f"{code} is not among {[str(f) for f in findings]}"
    assert (checkpoint is None) == bool(findings.errors)
    assert found[0].advice
    return found[0]


def only(path: Path, code: str) -> Finding:
    """As `refused`, and nothing else is said."""
    finding = refused(path, code)
    _, findings = opened(path)
    assert [f.code for f in findings] == [code]
    return finding
