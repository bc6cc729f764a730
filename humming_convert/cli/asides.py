"""Files beside a run's output that a user names, `--html FILE` and `--sarif FILE`: where they may be, and the writing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from humming_convert.report.types import Report

NAMED = 100  # letters of a name that the file beside it keeps: a name may have 255 bytes


def check_places(files: dict[str, Path | None], folders: Iterable[str | Path | None]) -> None:
    """Before any work: each can be written (PermissionError), none among the files of a folder that is looked at, which would no longer be what they were, and no two are one.

    files: by option.  folders: models and outputs; names of the Hub are no folders."""
    taken: dict[Path, str] = {}
    for option, file in files.items():
        if file is None:
            continue
        if not file.parent.is_dir():
            raise typer.BadParameter(f"{option} {file}: there is no folder {file.parent}")
        if file.is_dir():
            raise typer.BadParameter(f"{option} {file} is a folder; give the name of a file")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, f"{option}: {os.strerror(errno.EACCES)}", str(file))
        real = file.resolve()
        for folder in folders:
            if folder is not None and Path(folder).is_dir() and real.is_relative_to(Path(folder).resolve()):
                raise typer.BadParameter(f"{option} {file} is inside {folder}, whose files are looked at; write it beside that folder")
        if real in taken:
            raise typer.BadParameter(f"{option} and {taken[real]} name one file, {file}; give two")
        taken[real] = option


def write_aside(file: Path, text: str) -> None:
    write_bytes_aside(file, text.encode())


def write_bytes_aside(file: Path, data: bytes) -> None:
    """By one rename: a file is whole or as it was. A link stays one; what is no regular file (a pipe, a device) is written to. OSError as the system gives it."""
    real = file.resolve()
    if real.exists() and not real.is_file():
        with real.open("wb") as stream:
            stream.write(data)
        return
    beside = real.with_name(f".{real.name[:NAMED]}.{os.getpid()}.new")
    try:
        with open(beside, "xb") as stream:
            stream.write(data)
        os.replace(beside, real)
    except FileExistsError:  # somebody else's: left alone
        raise
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_page(file: Path, report: Report) -> None:
    from humming_convert.report.page import page

    write_aside(file, page(report))
