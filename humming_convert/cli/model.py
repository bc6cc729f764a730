"""MODEL as a user gives it: which of two meanings was taken, and a library that is quiet while this program speaks."""

from __future__ import annotations

from pathlib import Path

from humming_convert.cli.say import print_findings
from humming_convert.hub.names import hub_name


def say_model(model: str | None, *, quiet: bool) -> None:
    """A note where a folder has the name of a Hub id and is no checkpoint: then the model of the Hub may be meant.

    quiet: only JSON goes to the terminal, or nothing but errors."""
    name = hub_name(model) if model is not None else None
    if name is None:
        return
    folder = Path(str(model))
    if not folder.exists():
        from humming_convert.hub.failures import silence

        silence(quiet=quiet)
    elif not quiet and is_no_checkpoint(folder):
        from humming_convert.checkpoint.rules import broken
        from humming_convert.hub.rules import FOLDER_TAKEN

        why = f"{model} is there and holds no config.json, and could be the name of a model of the Hub; what is there is read"
        advice = f"{name.repo}@main names the model" if name.revision is None else "give the folder another name to read the model"
        print_findings([broken(FOLDER_TAKEN, why, advice=advice)], verbose=False)


def is_no_checkpoint(folder: Path) -> bool:
    """A folder without config.json. One that the system does not let us look into may be one: what reads it says so."""
    try:
        return folder.is_dir() and not (folder / "config.json").exists()
    except OSError:
        return False
