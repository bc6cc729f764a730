"""What the pages say is what plan, conversion and verification say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.findings import Refused
from humming_convert.plan.size import size
from humming_convert.plan.survey import possible_steps
from humming_convert.report.page import page
from humming_convert.report.types import Layer, Report, View
from humming_convert.targets.report import SHOWN
from tests.report.samples import even, inspected, on_gpu, planned, verified
from tests.samples import NAMES, sample

SOME = ("sm75", "sm80", "sm90", "sm120")


def by_name(report: Report) -> dict[str, Layer]:
    return {x.name: x for x in report.layers.layers}


def facts(report: Report) -> dict[str, str]:
    return dict(report.facts)


def headers_plan(model: Path, target: str, act: str) -> tuple[Any, set[str | None]]:
    """(the plan, layers that are refused): one of them is empty."""
    dtype = "fp16" if act == "fp16" or target == "sm75" else "bf16" if act == "bf16" else None
    try:
        return api.plan(model, target=target, act=act, dtype=dtype, headers_only=True), set()
    except Refused as error:
        return None, {f.layer for f in error.findings if f.severity == "error"}


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_of_inspect_are_those_of_plan(name: str, tmp_path: Path) -> None:
    """A layer is refused exactly where a plan refuses it; pads, bytes and steps are the plan's."""
    model = sample(name).write(tmp_path)
    report = inspected(model)
    layers = by_name(report)
    for target in SOME:
        for act in SHOWN:
            view = report.layers.views.index(View(target, act))
            shown = {x.name: x.verdicts[view] for x in report.layers.layers if x.verdicts[view].mark != "plain"}
            refused = {n for n, v in shown.items() if v.mark == "refused"}
            if (target, act) == ("sm75", "bf16"):
                assert refused == set(shown)
                continue
            plan, because = headers_plan(model, target, act)
            if plan is None:
                assert refused == because, (target, act)
                continue
            assert not refused, (target, act)
            assert {p.layer.name for p in plan.layers} == set(shown)
            for p in plan.layers:
                v, c = shown[p.layer.name], p.recipe.config
                assert (v.pad_n, v.pad_k) == (c.pad_shape_n, c.pad_shape_k)
                assert v.nbytes == sum(t.nbytes for t in p.outputs.values())
                assert (v.mark == "lossy") == bool(possible_steps(p))
    assert all(x.nbytes for x in layers.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("act", ["bf16", "int8", "fp8"])
def test_a_layer_that_loses_was_never_said_to_pack_exactly(name: str, act: str, tmp_path: Path) -> None:
    model = sample(name).write(tmp_path)
    try:
        plan = api.plan(model, target="sm90", act=act)
    except Refused:
        pytest.skip(f"{act} is not legal here")
    api.convert(plan, out=tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "humming_manifest.json").read_text())
    promised = {p.layer.name: possible_steps(p) for p in plan.layers}
    for entry in manifest["layers"]:
        assert {x["step"] for x in entry["lossy"]} <= set(promised[entry["name"]]), entry["name"]


def test_totals_of_the_plan_are_the_plans_own(tmp_path: Path) -> None:
    model = sample("gptq-4bit-v2-asym").write(tmp_path)
    plans = api.plans(model, ["sm90", "sm120"], act="fp8")
    report = planned(model, "sm90", "sm120", act="fp8")
    totals = plans[0].totals
    assert facts(report)["layers"] == str(totals["layers"]) == str(len(report.layers.layers))
    assert facts(report)["read"] == size(totals["bytes_in"])
    for view, plan in enumerate(plans):
        packed = sum(v.nbytes or 0 for x in report.layers.layers for v in (x.verdicts[view],))
        assert packed == sum(t.nbytes for p in plan.layers for t in p.outputs.values())


def test_a_plan_for_ranks_shows_every_rank(tmp_path: Path) -> None:
    report = planned(even(tmp_path), "sm90", tp=2)
    assert {x.rank for x in report.layers.layers} == {"rank 0", "rank 1"}
    assert len({(x.name, x.rank) for x in report.layers.layers}) == len(report.layers.layers)


def test_a_folder_that_is_no_checkpoint_has_a_page_with_its_findings(tmp_path: Path) -> None:
    report = inspected(tmp_path)
    assert report.state.mark == "refused" and any(found for _, found in report.findings)
    assert "refused as it is" in page(report)


def test_a_layer_with_an_error_in_its_data_is_refused_on_every_target(tmp_path: Path) -> None:
    made = sample("gptq-4bit-v1-sym")
    name = next(n for n in made.tensors if n.endswith("down_proj.scales"))
    made.tensors[name].reshape(-1)[3] = float("nan")
    report = inspected(made.write(tmp_path))
    wrong = next(x for x in report.layers.layers if "down_proj" in x.name)
    assert {v.mark for v in wrong.verdicts} == {"refused"}
    assert "scale-nonfinite" in wrong.verdicts[0].why
    assert report.state.mark == "refused"


# ------------------------------------------------------------------ verify
@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """(model, packed folder)."""
    model = sample("gptq-4bit-v2-asym").write(tmp_path)
    api.convert(api.plan(model, target="sm90", act="fp8"), out=tmp_path / "out")
    return model, tmp_path / "out"


def test_a_whole_folder_says_whether_the_proof_was_repeated(made: tuple[Path, Path]) -> None:
    model, out = made
    assert verified(out).state.mark == "whole"
    assert all("when it was converted" in x.verdicts[0].why for x in verified(out).layers.layers)
    again = verified(out, model)
    assert again.state.mark == "proven"
    assert not any("when it was converted" in x.verdicts[0].why for x in again.layers.layers)


def test_lossy_steps_are_those_of_the_manifest(made: tuple[Path, Path]) -> None:
    _, out = made
    manifest = json.loads((out / "humming_manifest.json").read_text())
    layers = by_name(verified(out))
    for entry in manifest["layers"]:
        assert (layers[entry["name"]].verdicts[0].mark == "lossy") == bool(entry["lossy"])
    table = next(t for t in verified(out).tables if t.title == "Lossy steps")
    counts = {row[0]: row[3] for row in table.rows}
    assert counts == {"scale-cast": f"{sum(x['count'] for entry in manifest['layers'] for x in entry['lossy']):,}"}


def test_a_damaged_tensor_fails_its_layer_and_no_other(made: tuple[Path, Path]) -> None:
    _, out = made
    manifest = json.loads((out / "humming_manifest.json").read_text())
    path = next(out.glob("model-packed-*"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    report = verified(out)
    failed = [x.name for x in report.layers.layers if x.verdicts[0].mark == "failed"]
    assert len(failed) == 1 < len(manifest["layers"])
    assert report.state.mark == "failed" and "digest-differs" in by_name(report)[failed[0]].verdicts[0].why


def test_a_damaged_manifest_is_not_repeated(made: tuple[Path, Path]) -> None:
    _, out = made
    path = out / "humming_manifest.json"
    path.write_text(path.read_text().replace('"down_proj', '"up_proj', 1).replace("sm90", "sm80"))
    report = verified(out)
    assert report.state.mark == "failed" and not report.layers.layers
    assert "sm80" not in page(report).partition("<script")[0]


def test_a_wrong_layer_on_a_gpu_fails_the_page(made: tuple[Path, Path]) -> None:
    _, out = made
    name = next(iter(by_name(verified(out))))
    report = verified(out, gpu=on_gpu(out, wrong=name))
    assert report.state.mark == "failed"
    assert {x.name: x.verdicts[1].mark for x in report.layers.layers if x.verdicts[1].mark == "failed"} == {name: "failed"}


def test_results_of_an_earlier_gpu_run_come_from_the_manifest(made: tuple[Path, Path]) -> None:
    from humming_convert.gemm.rewrite import rewrite

    _, out = made
    found = {name: r for (_, name), r in on_gpu(out).items()}
    rewrite(out, lambda manifest: [layer.update(gpu=found[layer["name"]]) for layer in manifest["layers"]] and None)
    report = verified(out)
    assert report.state.mark == "whole"
    assert {x.verdicts[1].mark for x in report.layers.layers} == {"proven"}
    assert "before, from the manifest" in page(report)


def test_ranks_are_told_apart(tmp_path: Path) -> None:
    out = tmp_path / "out"
    api.convert(api.plan(even(tmp_path), target="sm90", tp=2), out=out)
    path = next(out.glob("model-packed-tp2of2-*"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    report = verified(out)
    assert {x.rank for x in report.layers.layers} == {"rank 0", "rank 1"}
    assert {x.rank for x in report.layers.layers if x.verdicts[0].mark == "failed"} == {"rank 1"}
