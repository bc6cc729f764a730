"""A model in 32 or 64 bits runs in 16; that is said, whatever the config calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import humming_convert as hc
from tests.samples import sample


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("float32", "dtype-float32"),
        ("torch.float32", "dtype-float32"),
        ("float", "dtype-float32"),
        ("float64", "dtype-float64"),
        ("double", "dtype-float64"),
        ("bfloat16", None),
    ],
)
def test_a_wide_model_dtype_is_noted(tmp_path: Path, written: str, code: str | None) -> None:
    folder = sample("gptq-4bit-v1-sym").write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "torch_dtype"} | {"dtype": written}))
    notes = [f.code for f in hc.plan(folder, standard=True).findings if f.code.startswith("dtype-")]
    assert notes == [code] * (code is not None)
