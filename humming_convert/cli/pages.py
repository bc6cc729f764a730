"""Pages for people: where `--html FILE` may write, and the writing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from humming_convert.report.types import Report


def check_place(file: Path | None, folder: str | Path) -> None:
    """Before any work: a page can be written there, and not among the files that are looked at, which would no longer be what they were."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise typer.BadParameter(f"--html {file}: there is no folder {file.parent}")
    if file.is_dir():
        raise typer.BadParameter(f"--html {file} is a folder; give the name of a file")
    looked_at = Path(folder)
    if looked_at.is_dir() and file.resolve().is_relative_to(looked_at.resolve()):
        raise typer.BadParameter(f"--html {file} is inside {folder}, whose files are looked at; write the page beside it")


def write_page(file: Path, report: Report) -> None:
    """By one rename: a page is whole or not there. OSError as the system gives it."""
    from humming_convert.report.page import page

    beside = file.with_name(f".{file.name}.new")
    try:
        beside.write_text(page(report), encoding="utf-8")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
