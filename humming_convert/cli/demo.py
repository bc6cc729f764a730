"""`humming-convert demo`: a sample of every family, converted and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.say import print_json

HELP = "Convert and verify a small sample checkpoint of every family."


def command(
    out: Annotated[
        Path | None, typer.Option("--out", parser=o.place, metavar="DIR", help="Keep samples and results here.", show_default=False)
    ] = None,
    json: o.Json = False,
) -> int:
    from humming_convert.demo.run import Row, head, line, run_demo

    rows: list[Row] = []
    for row in run_demo(out):
        if not json:
            print(line(row.cells()) if rows else f"{head()}\n{line(row.cells())}", flush=True)
        rows.append(row)
    failed = [r for r in rows if not r.ok]
    if json:
        print_json({"rows": [r.as_dict() for r in rows], "failed": len(failed), "findings": []})
    else:
        print()
        for row in failed:
            print(f"{row.sample}, {row.activation}: {row.problem}")
        print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return exits.CHECK_FAILED if failed else exits.DONE
