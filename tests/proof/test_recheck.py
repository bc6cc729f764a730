"""Folders against another version of the library: what is read otherwise fails, what would only be other bytes is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from humming_convert import api
from humming_convert.demo.families import ct_pack, humming
from humming_convert.demo.models import Sample, Shape, decoder, gpt_oss
from humming_convert.demo.samples import DECODERS
from humming_convert.manifest.digests import manifest_digest
from humming_convert.proof.recheck import Recheck

ROWS = {row["name"]: row for row in DECODERS}


def converted(made: Sample, tmp_path: Path, version: str, **options: Any) -> Path:
    plan = api.plan(made.write(tmp_path), **{"target": "sm90", "act": "bf16", "humming_version": version, **options})
    api.convert(plan, out=tmp_path / "out")
    return tmp_path / "out"


def forget(out: Path) -> None:
    """Takes the other version out of `same_bytes`, so that the folder alone has to say it."""
    path = out / "humming_manifest.json"
    manifest = json.loads(path.read_text())
    manifest["humming"]["same_bytes"] = [manifest["humming"]["version"]]
    manifest["manifest_digest"] = manifest_digest(manifest)
    path.write_text(json.dumps(manifest))


def grouped(group: int) -> Sample:
    """A Humming standard checkpoint of uint4 with zero points in groups of `group`, of which K is a multiple."""
    row = ROWS["humming-uint4"]
    section = {**row["quantization"], "weight_scale_group_size": group}
    return decoder(**{**row, "packer": humming(4, group), "quantization": section, "shape": Shape(intermediate=384)})


def differing(found: Recheck) -> set[str]:
    return {x.layer.rpartition(".")[2] for x in found.layers if x.bytes}


@pytest.mark.parametrize("made_for", ["0.1.19", "0.1.20"])
def test_the_version_that_it_was_made_for_reads_it(made_for: str, tmp_path: Path) -> None:
    found = api.recheck(converted(grouped(96), tmp_path, made_for), humming_version=made_for)
    assert found.accepted and found.same_bytes is True and len(found.layers) == 4


def test_groups_that_were_split_are_read_by_the_older_which_makes_other_bytes(tmp_path: Path) -> None:
    found = api.recheck(converted(grouped(96), tmp_path, "0.1.20"), humming_version="0.1.19")
    assert found.accepted and found.same_bytes is False
    assert differing(found) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert {(f.severity, f.code) for f in found.findings} == {("note", "version-makes-other-bytes")}


def test_groups_that_were_not_split_are_not_read_by_the_newer(tmp_path: Path) -> None:
    found = api.recheck(converted(grouped(96), tmp_path, "0.1.19"), humming_version="0.1.20")
    assert not found.accepted
    assert all("weight_scale_group_size: stored 96, read 32" in x.reading for x in found.layers)
    assert {f.code for f in found.findings.errors} == {"version-reads-otherwise"}


@pytest.mark.parametrize(
    "name", ["gptq-4bit-v1-sym", "gptq-4bit-v2-asym", "fp8-modelopt", "nvfp4-modelopt", "ct-fp8-block", "humming-uint4"]
)
def test_the_folder_alone_says_that_the_bytes_are_the_same(name: str, tmp_path: Path) -> None:
    out = converted(decoder(**ROWS[name]), tmp_path, "0.1.20", dtype="bf16")
    forget(out)
    found = api.recheck(out, humming_version="0.1.19")
    assert found.accepted and found.same_bytes is True


@pytest.mark.parametrize("act", ["fp8", "bf16"])
def test_the_folder_alone_says_what_the_manifest_says(act: str, tmp_path: Path) -> None:
    """gpt-oss: the last expert's scales are further apart than E4M3 holds, and rows are padded."""
    out = converted(gpt_oss("mxfp4-gpt-oss"), tmp_path, "0.1.20", act=act)
    same = "0.1.19" in json.loads((out / "humming_manifest.json").read_text())["humming"]["same_bytes"]
    forget(out)
    found = api.recheck(out, humming_version="0.1.19")
    assert found.accepted and found.same_bytes is same is (act == "bf16")


def test_what_was_moved_into_range_may_have_been_decided_otherwise(tmp_path: Path) -> None:
    """0.1.19 moved groups into one range: that 0.1.20 had kept rows apart is known from what was lost, and is not where nothing was."""
    out = converted(gpt_oss("mxfp4-gpt-oss"), tmp_path, "0.1.19", act="fp8")
    found = api.recheck(out, humming_version="0.1.20")
    lossy = {
        e["name"].rpartition(".")[2]
        for e in json.loads((out / "humming_manifest.json").read_text())["layers"]
        if any(x["step"] == "e8m0-range" for x in e["lossy"])
    }
    assert found.accepted and lossy and differing(found) == lossy
    assert all(x.bytes is None for x in found.layers if x.layer.rpartition(".")[2] not in lossy)


def test_a_folder_of_several_ranks_is_checked_rank_by_rank(tmp_path: Path) -> None:
    row = ROWS["ct-int4-sym"]
    made = decoder(
        **{**row, "packer": ct_pack(4, 0, symmetric=True), "shape": Shape(hidden=256, intermediate=256, heads=2, kv_heads=2, head_dim=128)}
    )
    found = api.recheck(converted(made, tmp_path, "0.1.20", tp=2), humming_version="0.1.19")
    assert found.accepted and found.same_bytes is True
    assert {x.rank for x in found.layers} == {"tp0 ep0", "tp1 ep0"} and len(found.layers) == 8


def test_the_standard_form_is_read_by_every_version(tmp_path: Path) -> None:
    found = api.recheck(converted(grouped(96), tmp_path, "0.1.20", target=None, standard=True, act="auto"), humming_version="0.1.19")
    assert found.accepted and [f.code for f in found.findings] == ["standard-form"]


def test_a_changed_configuration_is_damage(tmp_path: Path) -> None:
    out = converted(grouped(64), tmp_path, "0.1.20")
    path = out / "humming_manifest.json"
    path.write_text(path.read_text().replace('"use_packed_k_layout": false', '"use_packed_k_layout": true'))
    found = api.recheck(out, humming_version="0.1.19")
    assert not found.accepted and [f.code for f in found.findings] == ["manifest-damaged"]


def test_a_version_whose_rules_are_not_known_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(api.UsageError, match=r"0\.1\.19, 0\.1\.20"):
        api.recheck(tmp_path, humming_version="0.1.21")
