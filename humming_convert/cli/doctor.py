"""`humming-convert doctor [OUT]`: what running kernels needs, or what loading a folder needs; what is there, and how to mend what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.say import print_json

HELP = "Say what kernels need on this machine, or whether OUT will load here, and how to mend what is missing."


def command(
    out: Annotated[
        Path | None, typer.Argument(parser=o.place, help="A packed folder: will it load here?", metavar="OUT", show_default=False)
    ] = None,
    json: o.Json = False,
) -> int:
    from humming_convert import api

    found = api.doctor(out)
    bad = [r for r in found if r.ok is False]
    if json:
        about = {} if out is None else {"out": str(out)}
        print_json({"status": "failed" if bad else "ok", **about, "rows": [r.as_dict() for r in found], "findings": []})
    else:
        for r in found:
            state = {True: "ok", False: "MISSING" if out is None else "NO", None: "-"}[r.ok]
            print(f"{r.what:16} {state:8} {r.found}" + (f"\n{'':25} {r.advice}" if r.advice else ""))
        if out is not None:
            print(f"{out}: {'will not load here' if bad else 'will load here'}")
    return exits.ENVIRONMENT if bad else exits.DONE
