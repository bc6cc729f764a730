"""`humming-convert bench OUT`: the folder's layers timed on this GPU, beside cuBLAS, `_scaled_mm`, humming-kernels and the read floor."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.asides import check_places, write_aside, write_bytes_aside
from humming_convert.cli.say import print_findings, print_json, table
from humming_convert.findings import Finding, counted

if TYPE_CHECKING:
    from humming_convert.bench.document import Document

HELP = "Time a packed folder's layers on this GPU, beside cuBLAS, _scaled_mm, humming-kernels and the time of reading their bytes."
ROWS = "1,4,16,64,256,1024,4096,8192"


def command(
    out: Annotated[
        Path | None,
        typer.Argument(parser=o.place, help="An output folder of packed layers; none with --from.", metavar="OUT", show_default=False),
    ] = None,
    layer: Annotated[
        str | None, typer.Option("--layer", metavar="GLOB", help="Layers by name, such as '*down_proj'; default: all.")
    ] = None,
    m: Annotated[str | None, typer.Option("--m", metavar="LIST", help=f"Numbers of rows; default: {ROWS}.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="R", min=0, help="Which rank's layers; default: 0.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Compilers at a time; default: one a core.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", parser=o.place, metavar="FILE", help="A picture of the speed-up over rows: .svg or .png.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", parser=o.place, metavar="FILE", help="The JSON document.")] = None,
    again: Annotated[
        Path | None,
        typer.Option("--from", parser=o.place, metavar="FILE", help="Measure nothing: table and picture of a document that --out wrote."),
    ] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> int:
    from humming_convert import api
    from humming_convert.bench import plot as plotting

    rows = rows_of(ROWS if m is None else m)
    if again is not None:
        measures = {"OUT": out, "--layer": layer, "--m": m, "--rank": rank, "--jobs": jobs}
        if given := [name for name, value in measures.items() if value is not None]:
            raise typer.BadParameter(f"--from measures nothing: {', '.join(given)} would say what to measure; leave out one or the other")
    elif out is None:
        raise typer.BadParameter("OUT is missing: a folder of packed layers to measure, or --from FILE for a document that --out wrote")
    else:
        api.finished(out)
    check_places({"--plot": plot, "--out": file}, [out])
    if plot is not None:
        if plot.suffix not in plotting.FORMATS:
            raise typer.BadParameter(f"--plot {plot}: the name ends in {' or '.join(plotting.FORMATS)}")
        plotting.library()  # MissingExtra before any work
    document = recorded(again) if out is None else measured(out, rows, "*" if layer is None else layer, rank or 0, jobs, json or quiet)
    if file is not None:
        write_aside(file, json_text.dumps(document.as_dict(), indent=1, ensure_ascii=False) + "\n")
    if plot is not None:
        write_bytes_aside(plot, plotting.picture(document, plot.suffix))
    findings = wrong_products(document)
    code = exits.CHECK_FAILED if findings else exits.DONE
    if json:
        print_json({**document.as_dict(), "findings": [f.as_dict() for f in findings]})
        return code
    print_findings(findings, verbose=False)
    if not quiet:
        say(document)
    return code


def rows_of(text: str) -> tuple[int, ...]:
    """`1,16` -> (1, 16)."""
    try:
        rows = tuple(dict.fromkeys(int(x) for x in text.split(",")))
    except ValueError:
        raise typer.BadParameter(f"--m {text}: numbers of rows with commas between them, such as 1,16,256") from None
    if min(rows) < 1:
        raise typer.BadParameter(f"--m {text}: a product has at least one row")
    return rows


def recorded(file: Path | None) -> Document:
    from humming_convert.bench.document import read

    assert file is not None  # where there is no OUT
    try:
        return read(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise typer.BadParameter(f"--from {file}: there is no such file") from None
    except IsADirectoryError:
        raise typer.BadParameter(f"--from {file} is a folder; give the file that --out wrote") from None
    except ValueError as error:
        raise typer.BadParameter(f"--from {file}: {error}") from None


def measured(out: Path, rows: tuple[int, ...], layer: str, rank: int, jobs: int | None, silent: bool) -> Document:
    from humming_convert.bench.run import run

    def told(text: str) -> None:
        if not silent:
            print(text, file=sys.stderr)

    return run(out, rows, layer, rank=rank, jobs=jobs, told=told)


def wrong_products(document: Document) -> list[Finding]:
    from humming_convert.bench.document import NAMES

    advice = "humming-convert verify OUT --gpu checks every weight; if that passes, report it"
    return [
        Finding(
            severity="error",
            code="bench-wrong-result",
            layer=layer.name,
            message=f"{counted(point.rows, 'row')} by {NAMES[name]}: {off(point.contenders[name].error)}",
            advice=advice,
        )
        for layer, point, name in document.wrong
    ]


def off(error: float | None) -> str:
    return "results that are no numbers" if error is None else f"{error:.1e} of the sum of magnitudes off"


def say(document: Document) -> None:
    from humming_convert.bench import table as of_bench

    for line in of_bench.notes(document):
        print(line)
    for layer in document.layers:
        print(f"\n{of_bench.title(layer)}\n{table(of_bench.HEAD, of_bench.rows(layer), of_bench.RIGHT)}")
