"""`humming-convert targets`: GPUs and legal combinations, printed from the tables that the code decides by."""

from __future__ import annotations

from typing import Annotated

import typer

from humming_convert.cli import options as o
from humming_convert.cli.say import print_json, table

HELP = "List the GPUs, and which weights run with which activations on each."


def command(
    check: Annotated[
        tuple[str, str, str] | None,
        typer.Option("--check", metavar="WEIGHT ACT SM", help="Explain one verdict, e.g. --check uint4 fp8 sm90.", show_default=False),
    ] = None,
    json: o.Json = False,
) -> None:
    from humming_convert.targets.report import explain, explanation, target_rows

    if check is not None:
        try:
            answer = explain(*check)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--check") from None
        if json:
            print_json(answer | {"findings": []})
        else:
            print("\n".join(explanation(answer)))
        return
    head, rows = target_rows()
    if json:
        print_json({"targets": [dict(zip(head, row, strict=True)) for row in rows], "findings": []})
        return
    print(table(head, rows))
