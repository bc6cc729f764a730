"""`humming-convert plan MODEL …`: what `convert` would write; its exit code, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from humming_convert.cli import options as o
from humming_convert.cli.asides import check_places, write_page
from humming_convert.cli.ci import told_to_ci
from humming_convert.cli.request import with_request
from humming_convert.cli.say import joined, print_findings, print_json, table
from humming_convert.findings import counted
from humming_convert.plan.size import size

if TYPE_CHECKING:
    from humming_convert.plan.types import Plan

HELP = "Say what convert would write, and with which exit code; nothing is written."


def _plan(
    model: o.Model,
    *,
    request: dict[str, Any],
    out: o.Out = None,
    headers_only: o.HeadersOnly = False,
    fingerprint: o.Fingerprint = False,
    cache_key: o.CacheKey = False,
    sarif: o.Sarif = None,
    annotations: o.Annotations = False,
    io: o.IoOption = None,
    html: o.HtmlFile = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_progress: o.NoProgress = False,
) -> None:
    from humming_convert import api
    from humming_convert.cli.model import say_model
    from humming_convert.plan.document import plan_document

    if fingerprint + cache_key + json > 1:
        raise typer.BadParameter("--fingerprint, --cache-key and --json each print one thing alone; take one")
    if headers_only and (fingerprint or cache_key):
        raise typer.BadParameter("--headers-only leaves questions open whose answers the fingerprint is taken of; leave it out")
    check_places({"--html": html, "--sarif": sarif}, [model])
    say_model(model, quiet=json or quiet)
    targets = request.pop("target") or [None]
    if out is not None and len(targets) == 1:
        api.check_out(model, out)
    with told_to_ci("plan", model, sarif, annotations) as heard:
        plans = api.plans(model, targets, io=o.io_of(io, "mmap"), headers_only=headers_only, **request)
        heard.add(f for plan in plans for f in plan.findings)
        places = [out / api.default_name(p) if out is not None and len(plans) > 1 else out or Path(api.default_name(p)) for p in plans]
        for where in places if out is not None else ():
            api.check_out(model, where)
        if html is not None:
            from humming_convert.report.planned import report_plans

            write_page(html, report_plans(plans, headers_only=headers_only))
        if json:
            documents = [plan_document(p) for p in plans]
            print_json(documents[0] if len(documents) == 1 else {"plans": documents, "findings": joined(d["findings"] for d in documents)})
            return
        for plan, where in zip(plans, places, strict=True):
            if fingerprint or cache_key:
                print_findings(plan.findings, verbose=verbose, least="error" if quiet else "note")
                print(plan.fingerprint if fingerprint else api.cache_key(plan))
                continue
            _say(plan, where, quiet=quiet, verbose=verbose)


def _say(plan: Plan, where: Path, *, quiet: bool, verbose: bool) -> None:
    from humming_convert.plan.document import layer_rows

    print_findings(plan.findings, verbose=verbose, least="error" if quiet else "note")
    if quiet:
        return
    head, rows = layer_rows(plan, verbose=verbose)
    print(table(head, rows))
    totals = plan.totals
    print(
        f"{counted(totals['layers'], 'layer')}, {counted(len(plan.plain), 'other tensor')}, {size(totals['bytes_in'])} -> {size(totals['bytes_out'])} in {counted(len(plan.files), 'file')}"
    )
    if questions := totals["open_questions"]:
        print(f"open until the data are read (--headers-only): {', '.join(questions)}")
    print(f"would write {where}; fingerprint {plan.fingerprint}")


command = with_request(_plan)
