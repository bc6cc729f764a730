"""MODEL as a user gives it: which of two meanings was taken, and a library that is quiet while this program speaks."""

from __future__ import annotations

from pathlib import Path

from humming_convert.cli.say import print_findings
from humming_convert.hub.names import hub_name


def say_model(model: str | None, *, quiet: bool) -> None:
    """A note where a folder has the name of a Hub id. quiet: only JSON goes to the terminal, or nothing but errors."""
    name = hub_name(model) if model is not None else None
    if name is None:
        return
    folder = Path(str(model))
    if not folder.exists():
        from humming_convert.hub.failures import silence

        silence(quiet=quiet)
    elif folder.is_dir() and not quiet:
        from humming_convert.checkpoint.rules import broken
        from humming_convert.hub.rules import FOLDER_TAKEN

        why = f"{model} is a folder here, and could be the name of a model of the Hub; the folder is read"
        advice = f"{name.repo}@main names the model" if name.revision is None else "give the folder another name to read the model"
        print_findings([broken(FOLDER_TAKEN, why, advice=advice)], verbose=False)
