"""`humming-convert plan MODEL …`: what `convert` would write; its exit code, nothing written."""

from __future__ import annotations

from typing import Any

from humming_convert.cli import options as o
from humming_convert.cli.request import with_request
from humming_convert.cli.say import print_findings, print_json, size, table

HELP = "Say what convert would write, and with which exit code; nothing is written."


def _plan(
    model: o.Model,
    *,
    request: dict[str, Any],
    out: o.Out = None,
    headers_only: o.HeadersOnly = False,
    io: o.IoOption = o.Io.mmap,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_progress: o.NoProgress = False,
) -> None:
    from humming_convert import api
    from humming_convert.plan.document import layer_rows, plan_document

    plan = api.plan(model, io=o.io_of(io), headers_only=headers_only, **request)
    if json:
        print_json(plan_document(plan))
        return
    print_findings(plan.findings, verbose=verbose, least="error" if quiet else "note")
    if quiet:
        return
    head, rows = layer_rows(plan, verbose=verbose)
    print(table(head, rows))
    totals = plan.totals
    print(
        f"{totals['layers']} layers, {len(plan.plain)} other tensors, {size(totals['bytes_in'])} -> {size(totals['bytes_out'])} in {len(plan.files)} files"
    )
    print(f"would write {out or api.default_name(plan)}; fingerprint {plan.fingerprint}")


command = with_request(_plan)
