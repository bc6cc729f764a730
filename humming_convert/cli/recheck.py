"""`humming-convert recheck OUT --humming-version V`: would another version of the library still read this folder?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.guard import plain
from humming_convert.cli.say import print_findings, print_json

HELP = "Say whether another humming-kernels version reads a packed folder the same way."


def command(
    out: Annotated[Path, typer.Argument(parser=o.place, help="An output folder.", metavar="OUT", show_default=False)],
    humming_version: Annotated[o.HummingVersion, typer.Option("--humming-version", help="The version to check.", show_default=False)],
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    from humming_convert import api

    found = api.recheck(out, humming_version=str(plain(humming_version)))
    code = exits.DONE if found.accepted else exits.code_of(found.findings, exits.CHECK_FAILED)
    if json:
        print_json(found.document())
        return code
    print_findings(found.findings, verbose=verbose, least="error" if quiet else "note")
    if not quiet:
        print(found.summary())
    return code
