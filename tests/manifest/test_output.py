"""What a conversion writes beside the weights: manifest, config.json, model card; all against the schemas."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from humming_convert.demo.models import Sample
from humming_convert.demo.samples import all_samples
from humming_convert.manifest.card import split_head
from humming_convert.manifest.config_json import output_config
from humming_convert.manifest.digests import manifest_digest
from humming_convert.manifest.schema import NAMES, load_schema
from humming_convert.manifest.section import resolve

api = pytest.importorskip("humming_convert.api")
SAMPLES = {s.name: s for s in all_samples()}
FEW = [n for n in SAMPLES if re.search(r"gptq|moe|nvfp4|fp8|gpt-oss", n)][:8]


@cache
def schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(load_schema(name))


def written(sample: Sample, folder: Path) -> Path:
    return sample.write(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema(name))


def test_an_unknown_schema_is_named() -> None:
    with pytest.raises(ValueError, match="manifest, plan, findings"):
        load_schema("recipe")


@pytest.fixture(scope="module", params=FEW)
def standard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """(plan, source folder, output folder) of a sample in the standard form."""
    folder = tmp_path_factory.mktemp("standard")
    source = written(SAMPLES[request.param], folder)
    (source / "README.md").write_text("---\nlicense: mit\ntags:\n- chat\n---\n\n# Mine\n\ntext\n")
    plan = api.plan(source, standard=True)
    api.convert(plan, out=folder / "out")
    return plan, source, folder / "out"


def test_the_manifest_keeps_to_its_schema_and_digest(standard: tuple[Any, Path, Path]) -> None:
    manifest = json.loads((standard[2] / "humming_manifest.json").read_text())
    schema("manifest").validate(manifest)
    schema("findings").validate(manifest["findings"])
    assert manifest["manifest_digest"] == manifest_digest(manifest)
    assert not {"target", "act"} & set(manifest) and not {"config", "flags", "input"} & set(manifest["layers"][0])


def test_the_manifest_holds_no_path(standard: tuple[Any, Path, Path]) -> None:
    assert str(standard[1].parent) not in (standard[2] / "humming_manifest.json").read_text()


def test_the_section_says_the_same_as_the_manifest(standard: tuple[Any, Path, Path]) -> None:
    manifest = json.loads((standard[2] / "humming_manifest.json").read_text())
    section = json.loads((standard[2] / "config.json").read_text())["quantization_config"]
    for layer in manifest["layers"]:
        keys = resolve(section, layer["vllm"] or layer["name"])
        assert keys is not None and keys["b_dtype"] == layer["weight"]["dtype"] and keys["weight_scale_type"] == layer["weight"]["scale"]


def test_nothing_else_of_the_config_changes(standard: tuple[Any, Path, Path]) -> None:
    before, after = (json.loads((folder / "config.json").read_text()) for folder in standard[1:])
    assert {k: v for k, v in after.items() if k != "quantization_config"} == {k: v for k, v in before.items() if k != "quantization_config"}


def test_the_card_has_our_head_and_keeps_the_text(standard: tuple[Any, Path, Path]) -> None:
    head, body = split_head((standard[2] / "README.md").read_text())
    assert "license: mit" in head and "base_model_relation: quantized" in head and "- humming\n" in head and "- chat\n" in head
    assert body.rstrip().endswith("# Mine\n\ntext")


def test_a_plan_document_keeps_to_its_schema(standard: tuple[Any, Path, Path]) -> None:
    from humming_convert.plan.document import plan_document

    schema("plan").validate(json.loads(json.dumps(plan_document(standard[0]))))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("packed")
    plan = api.plan(written(SAMPLES[FEW[0]], folder), target="sm90", act="bf16")
    api.convert(plan, out=folder / "out")
    return plan, folder / "out"


def test_a_packed_manifest_has_configuration_flags_and_input_of_every_layer(packed: tuple[Any, Path]) -> None:
    manifest = json.loads((packed[1] / "humming_manifest.json").read_text())
    schema("manifest").validate(manifest)
    assert manifest["target"] == {"name": "sm90", "sm": 90, "ppu": False}
    for layer in manifest["layers"]:
        assert layer["input"]["dtype"] == layer["config"]["a_dtype"] and layer["shape"]["pad_n"] == layer["config"]["pad_shape_n"]


def test_the_packed_section_names_the_manifest_and_the_target(packed: tuple[Any, Path]) -> None:
    section = output_config(packed[0])["quantization_config"]
    assert (section["quant_method"], section["manifest"], section["sm"], section["tp_size"]) == (
        "humming_packed",
        "humming_manifest.json",
        90,
        1,
    )


def test_a_packed_plan_document_keeps_to_its_schema(packed: tuple[Any, Path]) -> None:
    from humming_convert.plan.document import plan_document

    schema("plan").validate(json.loads(json.dumps(plan_document(packed[0]))))
