"""The command line: verbs to functions. One file a verb; the default verb is `convert`.

Facts: architecture.md 9.1 to 9.3.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from humming_convert.cli import convert, demo, doctor, formats, inspect, kernels, merge, plan, recheck, schema, targets, verify
from humming_convert.cli.guard import guarded

app = typer.Typer(
    name="humming-convert",
    help="Quantized checkpoints to the exact bytes that the Humming GEMM kernels want, on a machine without a GPU, with a proof.\n\n"
    "humming-convert MODEL --target sm90 --act fp8",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for verb in (convert, inspect, plan, verify, merge, recheck, targets, formats, demo, doctor, schema):
    app.command(name=verb.__name__.rpartition(".")[2], help=verb.HELP)(verb.command)
app.add_typer(kernels.app, name="kernels")


def _version(wanted: bool) -> None:
    if wanted:
        from humming_convert import __version__

        print(f"humming-convert {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


VERBS = frozenset([*(c.name for c in app.registered_commands), *(g.name for g in app.registered_groups)])
ROOT_OPTIONS = frozenset({"--help", "-h", "--version"})


def run() -> None:
    """Console script. Inserts the default verb where none is given."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] not in VERBS | ROOT_OPTIONS:
        arguments = ["convert", *arguments]
    sys.exit(guarded(app, arguments))
