"""`humming-convert push OUT REPO`: publishes a finished folder on the Hub, in one commit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.say import print_findings, print_json, table
from humming_convert.findings import counted
from humming_convert.plan.size import size

if TYPE_CHECKING:
    from humming_convert.hub.push import Pushed

HELP = "Publish a finished folder on the Hub: verified first, in one commit, checked afterwards."


def command(
    out: Annotated[Path, typer.Argument(parser=o.place, help="An output folder.", metavar="OUT", show_default=False)],
    repo: Annotated[str, typer.Argument(help="The repository, org/name; it is made if there is none.", metavar="REPO", show_default=False)],
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="B", help="[default: main for the standard form, else one for target and ranks]")
    ] = None,
    subfolder: Annotated[str | None, typer.Option("--subfolder", metavar="S", help="A folder of main, in place of a branch.")] = None,
    pr: Annotated[bool, typer.Option("--pr", help="Open a pull request.")] = False,
    private: Annotated[bool, typer.Option("--private", help="A repository that is made is private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be published; nothing is written.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Publish also where no licence, or a restrictive one, is named.")] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> int:
    from humming_convert import api
    from humming_convert.hub.failures import silence

    silence(quiet=json or quiet)

    def said(text: str) -> None:
        if not (json or quiet):
            print(text, file=sys.stderr)

    done = api.push(out, repo, branch=branch, subfolder=subfolder, pull_request=pr, private=private, dry_run=dry_run, yes=yes, said=said)
    code = exits.REFUSED if done.refused else exits.DONE
    if json:
        print_json({**done.document(), **({"exit_code": code} if code else {})})
    elif not quiet:
        _say(done)
    print_findings(done.findings, verbose=True)
    if done.refused and not json:
        count = sum(f.severity == "error" for f in done.findings)
        print(f"push would be refused: {counted(count, 'error')}; this dry run wrote nothing", file=sys.stderr)
    return code


def _say(done: Pushed) -> None:
    p = done.publication
    if done.commit is not None:
        print(f"{done.url}: {counted(done.checked, 'file')}, {size(sum(p.paths.values()))}, sizes and checksums as here")
        return
    print(table(("file", "bytes"), [(path, f"{nbytes:,}") for path, nbytes in p.paths.items()], right=frozenset({1})))
    print(f"{counted(len(p.paths), 'file')}, {size(sum(p.paths.values()))}, to {p.to}{f', on top of {p.parent}' if p.parent else ''}")
    for what in p.new:
        print(f"would make: {what}")
    for path in p.deleted:
        print(f"would delete: {path}")
    print(f"licence: {p.licence or 'none named'}")
    print("head of the card:\n" + "\n".join(f"    {line}" for line in p.local.head.splitlines()))
    if not done.refused:
        print("dry run: nothing was written")
