"""`humming-convert verify OUT [--source MODEL] [--gpu]`: integrity and round trip of a finished folder; its layers multiplied on a GPU."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.asides import check_places, write_page
from humming_convert.cli.ci import Heard, told_to_ci
from humming_convert.cli.guard import known, words
from humming_convert.cli.say import print_findings, print_json
from humming_convert.findings import Finding

if TYPE_CHECKING:
    from humming_convert.gemm.verify import GpuVerification
    from humming_convert.proof.verify import Verification
    from humming_convert.report.verification import GpuResults

HELP = "Check a finished folder: digests, headers, shapes; with --source the round trip; with --gpu every layer multiplied."
# findings after which no kernel can run; after those of `Verification.unread` none can either
UNREADABLE = frozenset(
    {"file-unreadable", "no-manifest", "manifest-damaged", "manifest-newer", "name-outside", "tensor-missing", "tensor-differs"}
)


class Kernels(Enum):
    plain = "plain"
    chosen = "chosen"


def command(
    out: Annotated[Path, typer.Argument(parser=o.place, help="An output folder.", metavar="OUT", show_default=False)],
    source: Annotated[
        str | None, typer.Option("--source", metavar="MODEL", help="The checkpoint it was made from: proves every code.")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Multiply every layer on this GPU and compare with float64.")] = False,
    sample: Annotated[
        float | None, typer.Option("--sample", metavar="P", min=0, max=1, help="With --gpu: this share of the layers, such as 0.1.")
    ] = None,
    kernels: Annotated[
        Kernels,
        typer.Option("--kernels", help="With --gpu: the referee's kernels, or the fastest that take each layer, which loading would use."),
    ] = Kernels.plain,
    record: Annotated[bool, typer.Option("--record/--no-record", help="With --gpu: write the results into the manifest.")] = True,
    sarif: o.Sarif = None,
    annotations: o.Annotations = False,
    html: o.HtmlFile = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    check_places({"--html": html, "--sarif": sarif}, [out, source])
    with told_to_ci("verify", str(out), sarif, annotations) as heard:
        return _verify(out, source, gpu, sample, kernels, record, heard, html, json, quiet, verbose)


def _verify(
    out: Path,
    source: str | None,
    gpu: bool,
    sample: float | None,
    kernels: Kernels,
    record: bool,
    heard: Heard,
    html: Path | None,
    json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    from humming_convert import api
    from humming_convert.cli.model import say_model
    from humming_convert.cli.progress import display

    if sample is not None and not gpu:
        raise typer.BadParameter("--sample chooses layers for --gpu")
    say_model(source, quiet=json or quiet)
    with display(as_json=json, quiet=quiet) as progress:
        model = api.fetched(source, out, progress) if source is not None else None
    found = api.verify(out, source=model)
    findings = list(found.every)
    results: GpuResults = {}
    document, failed, summary = found.document(), found.failed, found.summary()
    if gpu and not found.unread and not UNREADABLE & {f.code for f in findings}:
        on_gpu = _on_gpu(out, model, sample, kernels, record and not found.findings.errors, json or quiet)
        if isinstance(on_gpu, Finding):
            heard.add([*findings, on_gpu], exits.ENVIRONMENT)
            return _no_gpu(on_gpu, findings, json, verbose)
        results = on_gpu.results
        found.multiplied(results)
        findings = [*found.every, *on_gpu.findings]
        failed = found.failed or on_gpu.failed
        document = {
            **found.document(),
            "status": "failed" if failed else "ok",
            "gpu": on_gpu.document(),
            "findings": [f.as_dict() for f in findings],
        }
        summary = f"{found.summary()}\n{on_gpu.summary()}"
    code = exits.code_of(findings, exits.CHECK_FAILED) if failed else exits.DONE
    heard.add(findings, code)
    if html is not None:
        try:
            _write(html, found, findings, results)
        except OSError as error:
            if not failed:
                raise
            print(f"--html {html}: {error.strerror or error}; the page was not written", file=sys.stderr)  # a failed check says more
    if json:
        print_json(document)
        return code
    print_findings(findings, verbose=verbose, least="error" if quiet else "note")
    if not quiet:
        print(summary)
    return code


def _write(file: Path, found: Verification, findings: list[Finding], gpu: GpuResults) -> None:
    from humming_convert.report.verification import Checked, report_verification

    checked = Checked(findings=tuple(findings), counts=found.checked, gpu=gpu, unread=frozenset(found.unread))
    write_page(file, report_verification(found.folder, found.manifests, checked))


def _on_gpu(
    out: Path, source: Path | None, sample: float | None, kernels: Kernels, record: bool, silent: bool
) -> GpuVerification | Finding:
    """The verification, or why there can be none on this machine."""
    from humming_convert.gemm.cache import KernelCache
    from humming_convert.gemm.device import NoDevice, open_device
    from humming_convert.gemm.nvrtc import CompileError
    from humming_convert.gemm.verify import verify_gpu

    try:
        device = open_device(KernelCache())
        told = (lambda _: None) if silent else _say
        return verify_gpu(out, device, source=source, sample=sample, kernels=kernels.value, record=record, told=told)
    except (NoDevice, CompileError) as error:
        return known(error)[1]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _no_gpu(why: Finding, found: list[Finding], as_json: bool, verbose: bool) -> int:
    """found: what the check without a GPU has found."""
    if as_json:
        said = [f.as_dict() for f in (*found, why)]
        print_json({"status": "environment", "exit_code": exits.ENVIRONMENT, "findings": said})
    print_findings(found, verbose=verbose)
    print(f"error[{why.code}]: {words(why)}; `humming-convert doctor` says what is missing", file=sys.stderr)
    return exits.ENVIRONMENT
