"""`humming-convert MODEL …`: plan, write, prove, publish."""

from __future__ import annotations

import sys
from typing import Any

from humming_convert.cli import options as o
from humming_convert.cli.request import with_request
from humming_convert.cli.say import print_findings, print_json, size

HELP = "Convert a checkpoint (the default verb)."


def _convert(
    model: o.Model,
    *,
    request: dict[str, Any],
    out: o.Out = None,
    jobs: o.Jobs = None,
    io: o.IoOption = o.Io.mmap,
    overwrite: o.Overwrite = False,
    fresh: o.Fresh = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_progress: o.NoProgress = False,
) -> None:
    from humming_convert import api
    from humming_convert.cli.progress import display

    plan = api.plan(model, io=o.io_of(io), **request)
    with display(plan.totals["bytes_out"], as_json=json, quiet=quiet or no_progress) as progress:
        result = api.convert(plan, out=out, progress=progress, jobs=jobs, overwrite=overwrite, fresh=fresh)
    if json:
        print_json(result.document())
        return
    print_findings(plan.findings, verbose=verbose, least="error" if quiet else "note")
    if quiet:
        return
    totals = plan.totals
    if result.already_done:
        print(f"{result.out}: done already, nothing to do")
        return
    lossy = ", ".join(result.lossy_steps) or "none"
    print(
        f"{result.out}: {totals['layers']} layers, {size(totals['bytes_in'])} -> {size(totals['bytes_out'])}, proof {result.proof}, lossy steps: {lossy}"
    )
    print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in result.seconds.items()), file=sys.stderr)


command = with_request(_convert)
