"""The command line: verbs to functions. One file a verb; the default verb is `convert`.

Facts: architecture.md 9.1 to 9.3.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Annotated

import typer

from humming_convert.cli.guard import ClickUsageError, guarded

VERBS = (
    *("convert", "inspect", "plan", "verify", "merge", "recheck", "targets", "formats", "demo", "doctor", "schema"),
    *("kernels", "tune", "bench", "push"),
)
"""Modules of this room, in the order of --help."""
ROOT_OPTIONS = frozenset({"--help", "-h", "--version"})


def application(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """The command line with these verbs. What a verb needs is imported, and its options are read, only where it is among them."""
    app = typer.Typer(
        name="humming-convert",
        help="Quantized checkpoints to the exact bytes that the Humming GEMM kernels want, on a machine without a GPU, with a proof.\n\n"
        "humming-convert MODEL --target sm90 --act fp8",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for verb in verbs:
        module = import_module(f"humming_convert.cli.{verb}")
        if hasattr(module, "app"):  # a verb with verbs of its own
            app.add_typer(module.app, name=verb)
        else:
            app.command(name=verb, help=module.HELP)(module.command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from humming_convert import __version__

        print(f"humming-convert {__version__}")
        raise typer.Exit


def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


def misspelt(arguments: Sequence[str]) -> str | None:
    """Why the first word is no MODEL for the default verb but a verb that there is not; None where it can be one, or is an option."""
    word, more = arguments[0], arguments[1:]
    if not word or word.startswith("-") or "/" in word or os.path.lexists(word):
        return None
    near = get_close_matches(word.lower(), VERBS, 1)
    if near:
        return f"{word}: no such verb, and no such folder; did you mean `humming-convert {' '.join([near[0], *more[:1]])}`?"
    if more and not more[0].startswith("-"):
        return f"{word}: no such verb, and no such folder; the verbs are {', '.join(VERBS)}"
    return None


def _misspelt(why: str, _arguments: list[str], **_how: bool) -> None:
    raise ClickUsageError(why)


def run() -> None:
    """Console script. Inserts the default verb where none is given."""
    arguments, app = sys.argv[1:], None
    if arguments and arguments[0] not in ROOT_OPTIONS.union(VERBS):
        if (why := misspelt(arguments)) is not None:
            app = partial(_misspelt, why)
        arguments = ["convert", *arguments]
    asked = arguments[:1] if arguments and arguments[0] in VERBS else VERBS
    code = guarded(app or application(asked), arguments)
    gc.freeze()  # the process ends: all that is left need not be looked through for cycles, several times, before it does
    sys.exit(code)
