"""`humming-convert merge OUT`: joins the parts of a split run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from humming_convert.cli import options as o
from humming_convert.cli.say import print_findings, print_json, print_result

HELP = "Join the parts that --split wrote."


def command(
    out: Annotated[
        Path, typer.Argument(parser=o.place, help="The output folder (its parts lie in OUT.partial).", metavar="OUT", show_default=False)
    ],
    source: Annotated[
        str | None, typer.Option("--source", metavar="MODEL", help="The model, if it is no longer where the parts read it.")
    ] = None,
    overwrite: o.Overwrite = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    from humming_convert import api

    result = api.merge(out, source=source, overwrite=overwrite)
    if json:
        print_json(result.document())
        return
    print_findings(result.plan.findings, verbose=verbose, least="error" if quiet else "note")
    if not quiet:
        print_result(result)
