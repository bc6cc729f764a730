"""What `--sarif` and `--annotations` write, however the run ends: also a refusal, and an error that is no finding."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from humming_convert.cli import exits
from humming_convert.cli.asides import write_aside
from humming_convert.cli.guard import findings_of, known, usage_words, words
from humming_convert.findings import Finding, Refused

ANSWERS = (exits.DONE, exits.REFUSED, exits.CHECK_FAILED)


class Heard:
    """What a verb found. `code`: its exit code; a run that ends before it says one has a fault."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.code = exits.BUG

    def add(self, findings: Iterable[Finding], code: int = exits.DONE) -> None:
        self.findings = list(dict.fromkeys((*self.findings, *findings)))
        self.code = code


@contextmanager
def told_to_ci(verb: str, base: str, sarif: Path | None, annotations: bool) -> Iterator[Heard]:
    """base: the model or folder that the findings' files are of. Exceptions go on. `sarif`: asides.check_places has looked at it."""
    heard = Heard()
    why = None
    try:
        yield heard
    except Refused as error:
        heard.add(error.findings, exits.code_of(error.findings, exits.REFUSED))
        raise
    except (KeyboardInterrupt, exits.Terminated) as error:
        heard.code = exits.TERMINATED if isinstance(error, exits.Terminated) else exits.INTERRUPTED
        why = "interrupted before it came to an answer"
        raise
    except Exception as error:
        code, why = (exits.USAGE, usage_words(error)) if isinstance(error, typer.BadParameter) else told(error)
        found = findings_of(error)
        heard.add(found, exits.code_of(found, code) if code == exits.CHECK_FAILED else code)
        why = None if found else why
        raise
    finally:
        if sarif is not None or annotations:
            _write(verb, base, heard, why, sarif, annotations)


def told(error: Exception) -> tuple[int, str]:
    """(exit code, words) of an error that is no finding."""
    code, finding = known(error)
    return code, words(finding)


def _write(verb: str, base: str, heard: Heard, why: str | None, to: Path | None, annotate: bool) -> None:
    from humming_convert.ci.annotations import error_command, workflow_commands
    from humming_convert.ci.places import Place
    from humming_convert.ci.sarif import Ended, sarif, sarif_text

    place = Place(base, Path.cwd())
    if annotate:
        for line in (*workflow_commands(heard.findings, place), *([error_command(why)] if why else [])):
            print(line, file=sys.stderr)
    if to is not None:
        ended = Ended(exit_code=heard.code, ran=heard.code in ANSWERS, why=why)
        write_aside(to, sarif_text(sarif(verb, heard.findings, place, ended)))
