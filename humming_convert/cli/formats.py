"""`humming-convert formats`: sources and variants that are read, and those refused, and why. Printed from the tables that the readers use."""

from __future__ import annotations

from humming_convert.cli import options as o
from humming_convert.cli.say import print_json, table

HELP = "List the source formats that are read, and those refused, and why."


def command(json: o.Json = False) -> None:
    from humming_convert.formats.catalogue import catalogue

    rows = catalogue()
    if json:
        print_json(
            {"formats": [{"format": r.format, "variant": r.variant, "status": r.status, "note": r.note} for r in rows], "findings": []}
        )
        return
    print(table(("format", "variant", "status", "note"), ((r.format, r.variant, r.status, r.note) for r in rows)))
