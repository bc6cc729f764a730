"""inspect: what is in a folder, what contradicts what with the evidence, what each target could do with it and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.demo.samples import all_samples
from humming_convert.plan.evidence import ZeroPoints
from humming_convert.plan.inspect import Inspection
from humming_convert.report.types import Cell
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
Q = "model.layers.0.self_attn.q_proj"
BROKEN: dict[str, tuple[str, list[tuple[str, list[Any]]]]] = {
    "act-order": ("gptq-4bit-v1-sym", [("act_order", [f"{Q}.g_idx", 64, 3])]),
    "a part that is not quantized": (
        "ct-int4-sym",
        [
            *(("drop", [f"{Q}.{leaf}"]) for leaf in ("weight_packed", "weight_scale", "weight_shape")),
            ("add", [f"{Q}.weight", "BF16", [192, 192], "803f"]),
        ],
    ),
    "a scale that is not finite": ("gptq-4bit-v1-sym", [("poke", [f"{Q}.scales", 0.5, "007e"])]),
    "layers that are not there": ("ct-int8", [("set_value", ["config.json", ["num_hidden_layers"], 3])]),
    "a part that is missing": ("awq-4bit-gemm", [("drop", [f"{Q}.qweight"])]),
    "groups that differ": ("gptq-4bit-v2-asym", [("set_value", ["config.json", [QUANTIZATION, "group_size"], 64])]),
}
"""What a checkpoint can have against it: an error of a layer, of the fused layer, of the data, of none."""


def any_folder(tmp_path: Path, name: str) -> Inspection:
    base, steps = BROKEN.get(name, (name, []))
    return inspected(tmp_path, base, *steps)


@pytest.mark.parametrize("name", [*sorted(SAMPLES), *BROKEN])
def test_a_target_is_refused_exactly_where_a_plan_is(tmp_path: Path, name: str) -> None:
    cells = any_folder(tmp_path, name).verdicts().cells
    assert list(cells) == [t.name for t in TARGETS] and all(list(c) == list(SHOWN) for c in cells.values())
    assert all(bool(c.reasons) == (c.mark == "refused") for each in cells.values() for c in each.values())
    for target, act in (("sm75", "fp16"), ("sm90", "bf16"), ("sm90", "fp8"), ("sm90", "int8"), ("sm120", "nvfp4")):
        dtype = {"bf16": "bf16", "fp16": "fp16"}.get(act)
        try:
            api.plan(tmp_path / "in", target=target, act=act, dtype=dtype)
            refused = ""
        except api.Refused as error:
            refused = str(error)
        cell = cells[target][act]
        assert bool(refused) == (cell.mark == "refused"), (target, act)
        if name in SAMPLES:  # a plan of a broken one ends before it asks what the target can do
            assert all(r.text in refused for r in cell.reasons), refused


@pytest.mark.parametrize("name", BROKEN)
def test_what_no_target_can_do_is_an_error(tmp_path: Path, name: str) -> None:
    found = any_folder(tmp_path, name)
    nothing = all(c.mark == "refused" for each in found.verdicts().cells.values() for c in each.values())
    assert nothing == bool(found.errors)


@pytest.mark.parametrize("name", [*sorted(SAMPLES), *BROKEN])
def test_text_json_and_page_say_the_same(tmp_path: Path, name: str) -> None:
    """Each is read back into: target, activation -> mark and reasons."""
    from humming_convert.report.inspection import report_inspection

    found = any_folder(tmp_path, name)
    page = next(t for t in report_inspection(found).tables if t.title.startswith("What each target"))
    whys = dict(line.split(": ", 1) for line in page.below)
    on_page = {
        (target, act): (cell.mark, [whys[sign] for sign in cell.text.split()])
        for row in page.rows
        for target in str(row[0]).split()
        for act, cell in zip(page.head[1:], row[1:], strict=True)
        if isinstance(cell, Cell)
    }
    head, *lines = found.text(verbose=False).split("what each target could run all layers with, and why not:\n")[1].splitlines()
    acts = head.split()
    rows = [line.split() for line in lines if line.split()[0] in {t.name for t in TARGETS}]
    signs = dict(line.strip().split("  ", 1) for line in lines[len(rows) :])
    words = {"yes": "packs", "lossy": "lossy", "plain": "plain"}
    in_text = {
        (target, act): (words.get(cell, "refused"), [] if cell in words else [signs[sign] for sign in cell.split(",")])
        for row in rows
        for target in row[: -len(acts)]
        for act, cell in zip(acts, row[-len(acts) :], strict=True)
    }
    assert in_text == on_page and len(on_page) == len(TARGETS) * len(SHOWN)
    document = found.document()
    for (target, act), (mark, reasons) in on_page.items():
        assert (act in document["targets"][target]) == (mark != "refused")
        assert (act in document["targets_lossy"][target]) == (mark == "lossy")
        told = document["targets_refused"][target].get(act, [])
        assert len(told) == len(reasons) and all(text.startswith(r["reason"]) for r, text in zip(told, reasons, strict=True))
    assert document["findings"] == [f.as_dict() for f in report_inspection(found).findings[0][1]]
    assert {*found.contradictions, *found.others} == set(found.findings)


def test_targets_that_can_do_the_same_share_a_row(tmp_path: Path) -> None:
    lines = inspected(tmp_path, "ct-int4-sym").verdicts().lines()
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
