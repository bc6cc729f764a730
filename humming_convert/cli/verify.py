"""`humming-convert verify OUT [--source MODEL]`: integrity and round trip of a finished folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.say import print_findings, print_json

HELP = "Check a finished folder: digests, headers, shapes, and with --source the round trip."


def command(
    out: Annotated[Path, typer.Argument(help="An output folder.", metavar="OUT", show_default=False)],
    source: Annotated[
        Path | None, typer.Option("--source", metavar="MODEL", help="The checkpoint it was made from: proves every code.")
    ] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    from humming_convert import api

    found = api.verify(out, source=source)
    code = exits.CHECK_FAILED if found.failed else exits.DONE
    if json:
        print_json(found.document())
        return code
    print_findings(found.findings, verbose=verbose, least="error" if quiet else "note")
    if not quiet:
        print(found.summary())
    return code
