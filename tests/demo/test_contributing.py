"""The worked examples of CONTRIBUTING.md are code; here they run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from humming_convert.checkpoint import open_checkpoint
from humming_convert.checkpoint.tensors import read_mapped
from humming_convert.demo.pack import write_safetensors
from humming_convert.findings import Findings
from humming_convert.formats import registry
from humming_convert.formats.source import ReadOptions, Source
from humming_convert.standard.expr import Context
from humming_convert.standard.forms import ScaleForm, WeightForm
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import number
from humming_convert.targets import table
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import legal_activations

TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()


def example(place: str) -> str:
    """The code block under the comment that names its file."""
    found = re.search(rf"<!-- {re.escape(place)} -->\n```python\n(.*?)```", TEXT, re.S)
    assert found is not None, place
    return found[1]


@pytest.fixture
def rowwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's module and its rows, for one test."""
    module = ModuleType("humming_convert.formats.rowwise")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(example("formats/rowwise.py"), "rowwise.py", "exec"), module.__dict__)
    names: dict[str, Any] = {
        "KINDS": registry.KINDS,
        "READERS": dict(registry.READERS),
        "METHODS": dict(registry.METHODS),
        "Reader": registry.Reader,
        "_has": registry._has,
    }
    exec(example("formats/registry.py"), names)
    for table_name in ("KINDS", "READERS", "METHODS"):
        monkeypatch.setattr(registry, table_name, names[table_name])


def source_of(folder: Path, version: int) -> Source:
    findings = Findings()
    (folder / "config.json").write_text(
        f'{{"model_type": "llama", "dtype": "float16", "quantization_config": {{"quant_method": "rowwise", "version": {version}}}}}'
    )
    checkpoint = open_checkpoint(folder, findings)
    assert checkpoint is not None, list(findings)
    section = checkpoint.sections[0].body
    return Source(checkpoint=checkpoint, method="rowwise", config=section, options=ReadOptions(), read=read_mapped(), findings=findings)


def test_the_format_of_the_example_is_read(rowwise: None, tmp_path: Path) -> None:
    codes = np.arange(64 * 128).astype(np.uint8).reshape(64, 128)
    scales = np.linspace(0.01, 0.02, 64).astype(np.float16)
    write_safetensors(
        tmp_path / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": codes, "model.layers.0.mlp.up_proj.row_scale": scales}
    )
    source = source_of(tmp_path, version=1)
    (layer,) = registry.read_layers(source).layers
    assert not source.findings.errors
    context = Context(read_mapped(), Meter())
    assert np.array_equal(layer.tensors["weight"].evaluate(context).view(np.uint8), codes)
    assert np.array_equal(layer.tensors["weight_scale"].evaluate(context)[:, 0], scales)


def test_the_rule_of_the_example_is_checked(rowwise: None, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"model.layers.0.mlp.up_proj.row_scale": np.ones(64, np.float16)})
    source = source_of(tmp_path, version=2)
    registry.read_layers(source)
    assert [f.code for f in source.findings.errors] == ["rowwise-version"]


def test_the_target_of_the_example_allows_what_its_family_allows() -> None:
    target = eval(example("targets/table.py"), {"Target": table.Target})
    form = WeightForm(number=number("uint4"), scale=ScaleForm(kind="group", dtype="bfloat16", k=128))
    known = next(t for t in table.TARGETS if t.family == target.family)
    assert legal_activations(form, target, Environment(), "BF16") == legal_activations(form, known, Environment(), "BF16")
