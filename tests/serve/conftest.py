"""Small packed folders, converted once: a dense model, a model with experts, both for one rank and for several."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import humming_convert as hc
from humming_convert.demo.models import Shape, decoder
from humming_convert.demo.samples import DECODERS
from humming_convert.manifest.digests import manifest_digest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "gemm"):  # the emulated device is there
    sys.path.insert(0, str(folder))

ROWS = {row["name"]: row for row in DECODERS}
DENSE, EXPERTS = "gptq-4bit-v1-sym", "ct-int4-qwen3-moe"
Packed = Callable[..., Path]


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """packed(name, target=…, act=…, tp=…, ep=…): a folder that no test may change."""
    root = tmp_path_factory.mktemp("packed")
    made: dict[str, Path] = {}

    def folder(name: str = DENSE, **options: Any) -> Path:
        key = "-".join((name, *(f"{k}{v}" for k, v in options.items())))
        if key not in made:
            row = ROWS[name]
            shape = Shape(
                hidden=256, intermediate=512, heads=4, kv_heads=2, head_dim=64, experts=4 * (name == EXPERTS), expert_intermediate=128
            )
            source = root / "sources" / name
            if not source.is_dir():
                decoder(**{**row, "shape": shape}).write(root / "sources")
            hc.convert(hc.plan(source, **{"target": "sm90", "act": "bf16", **options}), out=root / key)
            made[key] = root / key
        return made[key]

    return folder


@pytest.fixture
def changed(packed: Packed, tmp_path: Path) -> Callable[..., Path]:
    """changed(how, name, …): a copy whose manifest went through `how`, with a digest that fits."""

    def folder(how: Callable[[dict[str, Any]], Any], name: str = DENSE, *, digest: bool = True, **options: Any) -> Path:
        out = tmp_path / "changed"
        shutil.copytree(packed(name, **options), out)
        path = out / "humming_manifest.json"
        manifest = json.loads(path.read_text())
        how(manifest)
        if digest:
            manifest["manifest_digest"] = manifest_digest(manifest)
        path.write_text(json.dumps(manifest))
        return out

    return folder
