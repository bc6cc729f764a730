"""`humming-convert tune OUT`: the quickest tunings of a folder's layers on this GPU, stored in the folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.say import print_findings, print_json
from humming_convert.findings import counted

HELP = "Measure tunings of a packed folder's kernels on this GPU and store the winners in the folder."


def command(
    out: Annotated[Path, typer.Argument(parser=o.place, help="An output folder of packed layers.", metavar="OUT", show_default=False)],
    layer: Annotated[str, typer.Option("--layer", metavar="GLOB", help="Layers by name, such as '*down_proj'.")] = "*",
    rank: Annotated[int, typer.Option("--rank", metavar="R", min=0, help="Which rank's layers, from 0.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Compilers at a time; default: one a core.")] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> int:
    from humming_convert import api
    from humming_convert.gemm.timing import CupyGraphs
    from humming_convert.gemm.tune import tune

    def told(text: str) -> None:
        if not (json or quiet):
            print(text, file=sys.stderr)

    result = tune(api.finished(out), CupyGraphs, pattern=layer, rank=rank, jobs=jobs, told=told)
    code = exits.CHECK_FAILED if result.findings.errors else exits.DONE
    ranges = [r for x in result.layers for r in x.ranges]
    changed = sum(r.changed for r in ranges)
    if json:
        print_json({"status": "failed" if code else "done", **result.as_dict(), "findings": [f.as_dict() for f in result.findings]})
        return code
    print_findings(result.findings, verbose=False)
    if not quiet:
        kinds = counted(len(result.layers), "kind of layers", "kinds of layers")
        print(
            f"{result.path}: {result.device}, {kinds}, {changed} of {counted(len(ranges), 'range')} of rows quicker than by the heuristics"
        )
    return code
