"""Workflow commands: one a finding, escaped as a runner reads them."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from humming_convert.ci.annotations import error_command, workflow_commands
from humming_convert.ci.places import Place
from humming_convert.findings import Finding
from tests.ci.made import damaged

COMMAND = re.compile(r"::(error|warning|notice) (.*?)::(.*)", re.S)


def as_a_runner_reads(line: str) -> tuple[str, dict[str, str], str]:
    """(command, properties, message). Written from GitHub's description of workflow commands."""
    found = COMMAND.fullmatch(line)
    assert found is not None, line
    message = found[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
    properties = {}
    for pair in found[2].split(","):
        key, _, value = pair.partition("=")
        for escape, plain in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            value = value.replace(escape, plain)
        properties[key] = value
    return found[1], properties, message


def test_a_finding_names_its_file_its_code_and_the_way_out(place: Place) -> None:
    (line,) = workflow_commands([damaged()], place)
    title = "scale-nonfinite%3A model.layers.3.mlp.down_proj"
    assert line == f"::error file=models/m/model-00002.safetensors,title={title}::2 NaN in weight_scale; re-export the layer"


def test_a_note_is_a_notice_and_has_no_file_where_none_is_known(place: Place) -> None:
    assert list(workflow_commands([Finding(severity="note", code="c", message="m")], place)) == ["::notice title=c::m"]


def test_many_of_one_code_are_one_annotation(place: Place) -> None:
    found = [damaged(layer=f"layers.{i}") for i in range(70)]
    (line,) = workflow_commands(found, place)
    assert as_a_runner_reads(line)[2].startswith("70 times, first layers.0, layers.1, layers.2: ")


def test_errors_come_first_since_a_runner_shows_few(place: Place) -> None:
    found = [Finding(severity="warning", code="w", message="m"), damaged()]
    assert [line.split()[0] for line in workflow_commands(found, place)] == ["::error", "::warning"]


@given(name=st.text(min_size=1), message=st.text(min_size=1))
def test_no_name_or_message_ends_its_command_or_begins_another(name: str, message: str) -> None:
    found = Finding(severity="error", code="c", message=message, layer=name, advice="do: this, that")
    for line in (*workflow_commands([found], Place("m", Path("/w"))), error_command(message)):
        assert len(line.splitlines()) == 1
        command, properties, _ = as_a_runner_reads(line)
        assert command == "error" and set(properties) == {"title"}


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "Zs"), include_characters="%\r\n"), min_size=1))
def test_a_runner_reads_the_message_that_was_meant(text: str) -> None:
    printable = "".join(c for c in text if c.isprintable() or c in "\r\n")
    (line,) = workflow_commands([Finding(severity="warning", code="c", message=printable)], Place("m", Path("/w")))
    assert as_a_runner_reads(line)[2] == printable
