"""The cache key changes when the output's bytes can, and only then: a test for each part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.plan import fingerprint as fingerprint_module
from humming_convert.plan.cache_key import cache_parts
from tests.samples import sample

REQUEST: dict[str, Any] = {"target": "sm90", "act": "fp8"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = sample("gptq-4bit-v1-sym").write(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("of the source\n")
    return folder


def key(model: Path, **options: Any) -> str:
    return api.cache_key(api.plan(model, **(REQUEST | options)))


def flip_a_code(path: Path) -> None:
    """The lowest bit of the first quantized weight: a plan for fp8 reads scales and zero points, and not this."""
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    begin = next(entry["data_offsets"][0] for name, entry in header.items() if name.endswith("qweight"))
    raw[8 + length + begin] ^= 1
    path.write_bytes(raw)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a weight": lambda m: flip_a_code(next(m.glob("*.safetensors"))),
    "the config": lambda m: edit(m / "config.json", lambda c: c.update(rope_theta=5.0)),
    "the quantization config": lambda m: edit(m / "config.json", lambda c: c["quantization_config"].update(damp_percent=0.02)),
    "a file that is copied": lambda m: (m / "tokenizer.json").write_text('{"a": 1}'),
    "one more file that is copied": lambda m: (m / "generation_config.json").write_text("{}"),
    "the card's text": lambda m: (m / "README.md").write_text("another text\n"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_source_changes_it(model: Path, what: str) -> None:
    before = key(model)
    CHANGES[what](model)
    assert key(model) != before


OPTIONS: list[dict[str, Any]] = [
    {"target": "sm80", "act": "auto"},
    {"act": "bf16"},
    {"dtype": "bf16"},
    {"humming_version": "0.1.19"},
    {"entry": "humming-layer"},
    {"pad_n": 512},
    {"pad_k": 256},
    {"allow_lossy": True},
    {"fuse": "none"},
    {"e0m": "never"},
    {"exclude": "down_proj"},
    {"cuda_compiler_version": "12.8"},
    {"cubin_patch": False},
    {"scale_dtype": "source"},
    {"shard_size": "200KB"},
    {"target": None, "standard": True, "act": "auto"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items()))
def test_an_option_that_the_output_records_changes_it(model: Path, options: dict[str, Any]) -> None:
    assert key(model, **options) != key(model)


def test_every_option_of_a_plan_is_in_it(model: Path) -> None:
    """The options are taken from the request as a whole: a new one cannot be left out."""
    recorded = fingerprint_module.identity(api.plan(model, **REQUEST))["options"]
    assert set(api.DEFAULTS) - set(recorded) <= {"standard"}, "standard is the absence of a target"


def test_another_version_of_the_converter_changes_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layouts have no version apart: the converter's own stands for them."""
    before = key(model)
    monkeypatch.setattr(fingerprint_module, "__version__", "99.0")
    assert key(model) != before


def test_the_name_under_which_the_source_is_recorded_changes_it(model: Path, tmp_path: Path) -> None:
    renamed = shutil.copytree(model, tmp_path / "renamed")
    assert key(renamed) != key(model)


def test_the_same_files_elsewhere_and_later_have_the_same_one(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "elsewhere" / model.name, copy_function=shutil.copyfile)
    assert key(copy) == key(model)


def test_what_shapes_no_byte_does_not_change_it(model: Path, tmp_path: Path) -> None:
    before = key(model)
    assert key(model, io="read") == before
    plan = api.plan(model, **REQUEST)
    for number, how in enumerate(({"jobs": 1}, {"jobs": 2, "max_memory": "300MB"}, {"io": "read"})):
        api.convert(plan, out=tmp_path / f"out{number}", **how)
        assert api.cache_key(plan) == before
    (model / "pytorch_model.bin").write_bytes(b"which nothing reads")
    assert key(model) == before


def test_equal_keys_are_equal_bytes(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "elsewhere" / model.name, copy_function=shutil.copyfile)
    outs = []
    for number, source in enumerate((model, copy)):
        outs.append(api.convert(api.plan(source, **REQUEST), out=tmp_path / f"out{number}").out)
    first, second = ({p.name: p.read_bytes() for p in Path(out).iterdir()} for out in outs)
    assert first == second


def test_files_of_a_model_of_the_hub_are_fixed_by_its_commit(model: Path) -> None:
    """They are not fetched to make a key."""
    from msgspec.structs import replace

    plan = api.plan(model, **REQUEST)
    far = replace(plan, source=replace(plan.source, revision="c" * 40, arrivals=object()))
    parts = cache_parts(far)
    assert "copied" not in parts and parts["revision"] == "c" * 40
    assert api.cache_key(far) != api.cache_key(replace(far, source=replace(far.source, revision="d" * 40)))
