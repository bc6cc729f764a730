"""A model of several layers in one weight file each, as large models are; small files may count as large."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from humming_convert.checkpoint import reading
from humming_convert.checkpoint.weights import natural
from humming_convert.demo.pack import write_safetensors
from humming_convert.hub import heads
from tests.samples import sample

LAYERS = 6


def deep(folder: Path, layers: int = LAYERS, name: str = "gptq-4bit-v1-sym") -> Path:
    """The layers of a sample again and again; what is of no layer stands in the first file. README and licence as on the Hub."""
    one = sample(name)
    made: dict[str, np.ndarray] = {}
    for key, value in one.tensors.items():
        for n in range(layers) if re.match(r"model\.layers\.0\.", key) else ():
            made[key.replace("layers.0.", f"layers.{n}.", 1)] = value
        if not key.startswith("model.layers."):
            made[key] = value
    out = folder / "deep"
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps({**one.config, "num_hidden_layers": layers}))
    for side, body in one.side.items():
        (out / side).write_text(json.dumps(body))
    (out / "README.md").write_text("---\nlicense: apache-2.0\ntags: [gptq]\n---\n# Deep\n\nA model for tests.\n")
    (out / "tokenizer.json").write_text("{}")
    (out / "LICENSE").write_text("Apache License, version 2.0\n")
    index = {}
    for n in range(layers):
        file = f"model-{n + 1:05}-of-{layers:05}.safetensors"
        mine = [k for k in made if k.startswith(f"model.layers.{n}.") or (n == 0 and not k.startswith("model.layers."))]
        write_safetensors(out / file, {k: made[k] for k in sorted(mine, key=natural)})
        index |= dict.fromkeys(mine, file)
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return out


def with_large_file(model: Path) -> None:
    """Adds a weight file of more than 64 MB: an output head of zeros."""
    index = json.loads((model / "model.safetensors.index.json").read_text())
    write_safetensors(model / "large.safetensors", {"lm_head.weight": np.zeros((1000, 40_000), ml_dtypes.bfloat16)})
    index["weight_map"]["lm_head.weight"] = "large.safetensors"
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight files count as large from 1000 bytes on, not from 64 MB, also for the digests of the manifest."""
    monkeypatch.setattr(reading, "WHOLE", 1000)
    monkeypatch.setattr(heads, "WHOLE", 1000)
    monkeypatch.setattr(heads, "FIRST", 512)
