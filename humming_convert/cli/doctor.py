"""`humming-convert doctor`: what running kernels needs, what is there, and how to mend what is not."""

from __future__ import annotations

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.say import print_json

HELP = "Say what kernels need on this machine, what is there, and the command that mends what is not."


def command(json: o.Json = False) -> int:
    from humming_convert.gemm.doctor import rows

    found = rows()
    bad = [r for r in found if r.ok is False]
    if json:
        print_json({"status": "failed" if bad else "ok", "rows": [r.as_dict() for r in found], "findings": []})
    else:
        for r in found:
            state = {True: "ok", False: "MISSING", None: "-"}[r.ok]
            print(f"{r.what:16} {state:8} {r.found}" + (f"\n{'':25} {r.advice}" if r.advice else ""))
    return exits.ENVIRONMENT if bad else exits.DONE
