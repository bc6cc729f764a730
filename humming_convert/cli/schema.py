"""`humming-convert schema NAME`: the JSON Schema of a document that this tool writes."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from humming_convert.cli.say import print_json

HELP = "Print the JSON Schema of a document that this tool writes."


class Name(str, Enum):
    manifest = "manifest"
    plan = "plan"
    findings = "findings"
    tuning = "tuning"
    bench = "bench"


def command(
    name: Annotated[Name, typer.Argument(help="Which one.", metavar="manifest|plan|findings|tuning|bench", show_default=False)],
) -> None:
    from humming_convert.manifest.schema import load_schema

    print_json(load_schema(name.value))
