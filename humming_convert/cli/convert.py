"""`humming-convert MODEL …`: plan, write, prove, publish."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from humming_convert.cli import options as o
from humming_convert.cli.request import with_request
from humming_convert.cli.say import joined, print_findings, print_json, print_result
from humming_convert.plan.size import size

HELP = "Convert a checkpoint (the default verb)."


def _convert(
    model: o.Model,
    *,
    request: dict[str, Any],
    out: o.Out = None,
    jobs: o.Jobs = None,
    max_memory: o.MaxMemory = None,
    io: o.IoOption = None,
    device: o.DeviceOption = "cpu",
    engine: o.EngineOption = o.Engine.local,
    address: o.Address = None,
    split: o.Split = None,
    link_common: o.LinkCommon = False,
    stream: o.Stream = False,
    overwrite: o.Overwrite = False,
    fresh: o.Fresh = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_progress: o.NoProgress = False,
) -> None:
    from humming_convert import api
    from humming_convert.cli.model import say_model
    from humming_convert.cli.progress import display, since_start
    from humming_convert.engine.memory import keep_freed_memory

    if max_memory is None:
        keep_freed_memory()
    say_model(model, quiet=json or quiet)
    how = {
        "jobs": jobs,
        "max_memory": max_memory,
        "io": o.io_of(io, "read"),
        "device": device,
        "engine": engine.value,
        "address": address,
        "split": split,
        "link_common": link_common,
        "overwrite": overwrite,
        "fresh": fresh,
    }
    made = api.make_how(how)
    packers = api.open_device(made)  # what is wrong with it is said before the source is read
    started = since_start()
    targets = request.pop("target") or [None]
    if out is not None and len(targets) == 1:
        api.check_out(model, out)
    plans = api.plans(model, targets, io=o.io_of(io, "mmap"), stream=stream, **request)
    api.check_memory(plans, made, packers)
    planned = since_start()
    parent = out if len(plans) > 1 else None
    wanted = [(p, (parent or Path()) / api.default_name(p) if out is None or parent else out) for p in plans]
    with display(as_json=json, quiet=quiet or no_progress) as progress:
        results = api.convert_all(wanted, progress=progress, **how)
    for result in results:
        if not result.already_done:
            result.seconds = {"start": started, "plan": planned - started, **result.seconds}
    if json:
        documents = [r.document() for r in results]
        print_json(
            documents[0]
            if len(documents) == 1
            else {"status": "done", "results": documents, "findings": joined(d["findings"] for d in documents)}
        )
        return
    for number, result in enumerate(results):
        if number == 0 or result.plan.findings != results[0].plan.findings:
            print_findings(result.plan.findings, verbose=verbose, least="error" if quiet else "note")
        if not quiet:
            print_result(result)
    if not quiet and not all(r.already_done for r in results):
        print(seconds_line(results[0].seconds), file=sys.stderr)
        written = sum(r.totals["bytes_out"] for r in results if not r.already_done)
        print(f"{size(written)} written, {size(written / max(since_start() - planned, 1e-9))}/s", file=sys.stderr)


def seconds_line(seconds: dict[str, float]) -> str:
    """`start 0.3 s  plan …`; of read, pack, prove and write: all workers together."""
    return "  ".join(f"{name} {value:.2f} s" for name, value in seconds.items())


command = with_request(_convert)
