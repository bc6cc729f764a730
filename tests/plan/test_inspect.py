"""inspect: what is in a folder, what contradicts what with the evidence, what each target could do with it and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.demo.samples import all_samples
from humming_convert.plan.evidence import ZeroPoints, target_lines
from humming_convert.plan.inspect import Inspection
from humming_convert.targets.report import SHOWN
from humming_convert.targets.table import TARGETS
from tests.fuzz.folders import bases, write
from tests.fuzz.mutations import apply

SAMPLES = {s.name: s for s in all_samples() if s.nbytes < 1 << 20}
QUANTIZATION = "quantization_config"


def inspected(tmp_path: Path, base: str, *steps: tuple[str, list[Any]]) -> Inspection:
    folder = bases()[f"demo:{base}"].copy()
    for step in steps:
        apply(folder, step)
    write(folder, tmp_path / "in")
    return api.inspect(tmp_path / "in")


# ------------------------------------------------------------------ zero points
def test_a_symmetric_file_stores_one_value(tmp_path: Path) -> None:
    (census,) = inspected(tmp_path, "gptq-4bit-v1-sym").zero_points
    assert [v for v, n in enumerate(census.counts) if n] == [7]
    assert census.kinds == {"v1": 7} and census.distance is None


def test_an_asymmetric_file_stores_many_and_its_codes_tell_v2(tmp_path: Path) -> None:
    (census,) = inspected(tmp_path, "gptq-4bit-v2-asym").zero_points
    assert all(census.counts) and census.kinds == {"varies": 7}
    assert census.distance is not None and abs(census.distance) < 0.3
    bars = [line for line in census.lines() if "#" in line]
    assert len(bars) == 16 and all(line.endswith("%") for line in bars)


def test_one_census_a_width() -> None:
    one = ZeroPoints(bits=3, counts=(0, 0, 0, 5, 0, 0, 0, 0), kinds={"v1": 1}, distance=None)
    assert [line.split()[0] for line in one.lines()[1:]] == ["3"]


def test_many_values_are_put_together() -> None:
    wide = ZeroPoints(bits=8, counts=(1,) * 256, kinds={"varies": 2}, distance=None)
    assert [line.split()[0] for line in wide.lines()[1:3]] == ["0-15", "16-31"]
    few = ZeroPoints(bits=8, counts=tuple(100 if v in (120, 130) else 0 for v in range(256)), kinds={"varies": 2}, distance=None)
    assert [line.split()[0] for line in few.lines()[1:]] == ["120", "130"]


def test_other_formats_have_no_census(tmp_path: Path) -> None:
    assert inspected(tmp_path, "awq-4bit-gemm").zero_points == ()


# ------------------------------------------------------------------ contradictions
@pytest.mark.parametrize(
    ("base", "path", "value", "code", "evidence"),
    [
        ("gptq-4bit-v2-asym", ["checkpoint_format"], "gptq", "zeros-label", "mean code minus mean stored zero point"),
        ("gptq-4bit-v1-sym", ["bits"], 8, "bits-lie", "the shapes say 4"),
        ("gptq-4bit-v2-asym", ["group_size"], 64, "group-size-lies", "the shape of scales says 32"),
        ("gptq-4bit-v2-asym", ["sym"], True, "sym-lies", "the zero points vary"),
        ("ct-int4-asym", ["ignore"], ["re:.*up_proj"], "ignored-quantized", "up_proj"),
        ("awq-4bit-gemm", ["version"], "gemv", "awq-version-lies", "the shapes of 7 modules are awq"),
        ("ct-int8", ["quant_method"], "fp8", "method-lies", "7 modules hold int8 tensors"),
    ],
)
def test_a_contradiction_stands_with_its_evidence(tmp_path: Path, base: str, path: list[str], value: Any, code: str, evidence: str) -> None:
    found = inspected(tmp_path, base, ("set_value", ["config.json", [QUANTIZATION, *path], value]))
    mine = [f for f in found.contradictions if f.code == code]
    assert mine and evidence in mine[0].message
    text = found.text(verbose=False)
    assert "what contradicts what" in text and evidence in text
    assert code in {f["code"] for f in found.document()["contradictions"]}
    assert not set(found.contradictions) & set(found.others)


def test_many_of_one_kind_are_one_line_unless_asked(tmp_path: Path) -> None:
    found = inspected(tmp_path, "gptq-4bit-v1-sym", ("set_value", ["config.json", [QUANTIZATION, "bits"], 8]))
    assert found.text(verbose=False).count("bits-lie") == 2 and "and 6 more" in found.text(verbose=False)
    assert found.text(verbose=True).count("bits-lie") == 7


def test_a_folder_without_contradictions_says_nothing_of_them(tmp_path: Path) -> None:
    assert "contradicts" not in inspected(tmp_path, "ct-int4-sym").text(verbose=False)


# ------------------------------------------------------------------ targets
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_target_has_a_verdict_for_every_usual_activation_and_a_reason_for_each_no(tmp_path: Path, name: str) -> None:
    found = inspected(tmp_path, name).verdicts()
    assert list(found) == [t.name for t in TARGETS]
    for each in found.values():
        assert [v.act for v in each] == list(SHOWN)
        assert all(v.legal or v.reason for v in each)


@pytest.mark.parametrize(
    ("name", "target", "act"), [("gptq-4bit-v2-asym", "sm90", "fp8"), ("ct-nvfp4", "sm90", "fp8"), ("fp8-modelopt", "sm90", "int8")]
)
def test_a_verdict_is_what_a_plan_would_say(tmp_path: Path, name: str, target: str, act: str) -> None:
    found = inspected(tmp_path, name)
    verdict = next(v for v in found.verdicts()[target] if v.act == act)
    if verdict.legal:
        api.plan(tmp_path / "in", target=target, act=act)
        return
    with pytest.raises(api.Refused) as refused:
        api.plan(tmp_path / "in", target=target, act=act)
    assert verdict.layers and verdict.reason in str(refused.value)


def test_targets_that_can_do_the_same_share_a_row(tmp_path: Path) -> None:
    found = inspected(tmp_path, "ct-int4-sym").verdicts()
    lines = target_lines(found)
    assert any("sm86" in line and "sm80" in line for line in lines)
    letters = {line.split()[0] for line in lines if len(line.split()[0]) == 1}
    used = {cell for line in lines if line.split()[0].startswith(("sm", "ppu")) for cell in line.split() if len(cell) == 1}
    assert used == letters


# ------------------------------------------------------------------ whole with JSON
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_document_holds_everything_and_is_json(tmp_path: Path, name: str) -> None:
    found = inspected(tmp_path, name)
    document = json.loads(json.dumps(found.document()))
    parts = {p for x in document["layers"] for p in x["parts"]}
    assert parts == set(SAMPLES[name].meaning)
    assert sum(x["bytes"] for x in document["layers"]) + document["plain"]["bytes"] >= SAMPLES[name].nbytes
    for target, acts in document["targets"].items():
        assert set(acts) | set(document["targets_refused"][target]) == set(SHOWN)


def test_a_folder_that_cannot_be_opened_is_said_to_be(tmp_path: Path) -> None:
    found = inspected(tmp_path, "ct-int4-sym", ("late", ["cut", ["model.safetensors", 100]]))
    assert found.errors and "not a readable checkpoint" in found.text(verbose=False)
    assert found.document()["layers"] == [] and found.document()["targets"] == {}
