"""The edge: every way a run can end becomes an exit code and one clear message, and with --json one document.

Facts: architecture.md 9.3, 9.7.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

import typer

from humming_convert.cli import exits
from humming_convert.cli.say import print_findings, print_json
from humming_convert.findings import Finding, Refused, counted

STATUS = {exits.USAGE: "usage", exits.REFUSED: "refused", exits.CHECK_FAILED: "failed", exits.ENVIRONMENT: "environment"}
ISSUES = "please report this with the lines above, the command and the output of `humming-convert --version`"
# typer carries click inside since 0.2x; its own exceptions lead to the base class in every version
ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]


SWALLOWS = frozenset({"cb", "__del__", "remove", "_remove"})  # callbacks of the collector and of import locks: what they raise is dropped
LATER = 0.02  # seconds


class Signals:
    """SIGINT and SIGTERM as exceptions, and which came: code in C that was importing can turn the exception into one of its own."""

    def __init__(self) -> None:
        self.came: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self._raise)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            self.came = number
        if frame is not None and frame.f_code.co_name in SWALLOWS:
            signal.setitimer(signal.ITIMER_REAL, LATER)
            return
        raise KeyboardInterrupt if self.came == signal.SIGINT else exits.Terminated


class Spoken:
    """stdout or stderr that may fail. A reader that goes away ends nothing: what can no longer be said is dropped, and the run ends with its own
    exit code. Any other error is raised once, and what comes after it is dropped; of `silent` streams none is: nothing is left to say it on.
    A character that the stream's encoding lacks is spelled out."""

    def __init__(self, stream: Any, *, silent: bool = False) -> None:
        self._stream = stream if stream is not None else open(os.devnull, "w")  # noqa: SIM115 None: it was closed before the start
        self._silent = silent
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._said(lambda: int(self._stream.write(text))) if text != "" else 0  # click tries a stream with nothing

    def flush(self) -> None:
        self._said(lambda: self._stream.flush() or 0)

    def _said(self, say: Callable[[], int]) -> int:
        try:
            return say()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            if self._silent or isinstance(error, BrokenPipeError):
                return 0
            raise OSError(error.errno, error.strerror or str(error), "standard output") from None


def guarded(app: Callable[..., Any], arguments: list[str]) -> int:
    """Runs the app; the exit code of architecture.md 9.3. Never a traceback for anything but a bug."""
    as_json, verbose = "--json" in arguments, "--verbose" in arguments or "-v" in arguments
    signals = Signals()
    sys.stdout, sys.stderr = Spoken(sys.stdout), Spoken(sys.stderr, silent=True)
    gc.set_threshold(200_000, 50, 1000)  # a plan is hundreds of thousands of objects that stay, and nothing in them is a cycle
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread a core that waits by spinning; no matrix is multiplied here

    def told(code: int, findings: Iterable[Finding]) -> bool:
        """The one document, with --json. False: there is none, or stdout fails; the code stays what it is, and what is wrong is said on stderr."""
        if not as_json:
            return False
        with suppress(OSError):
            print_json({"status": STATUS.get(code, "error"), "exit_code": code, "findings": [f.as_dict() for f in findings]})
            return True
        return False

    def end(code: int, findings: Iterable[Finding], line: str = "") -> int:
        """line: for stderr, after the findings."""
        found = tuple(findings)
        in_document = told(code, found)
        print_findings(found, verbose=verbose)
        if line and not in_document:
            print(line, file=sys.stderr)
        return code

    def alone(code: int, finding: Finding, line: str) -> int:
        """What no finding was made for: one in the document, and a line of its own on stderr."""
        told(code, [finding])
        if line:
            print(line, file=sys.stderr)
        return code

    def stopped(number: int | None) -> int:
        code, word = (exits.TERMINATED, "terminated") if number == signal.SIGTERM else (exits.INTERRUPTED, "interrupted")
        message = f"{word}; the same command goes on where it stopped"
        return alone(code, Finding(severity="error", code=word, message=message), message)

    try:
        result = app(arguments, standalone_mode=False)
        if signals.came is not None:  # typer makes a result of a KeyboardInterrupt
            return stopped(signals.came)
        sys.stdout.flush()
        return result if isinstance(result, int) else exits.DONE
    except ClickUsageError as error:
        error.show()  # type: ignore[attr-defined]
        return alone(exits.USAGE, Finding(severity="error", code="usage", message=usage_words(error)), "")
    except Refused as error:
        count, code = sum(f.severity == "error" for f in error.findings), exits.code_of(error.findings, exits.REFUSED)
        word = "refused" if code == exits.REFUSED else "not read"
        return end(code, error.findings, f"{word}: {counted(count, 'error')}, nothing was written")
    except (KeyboardInterrupt, typer.Abort, exits.Terminated):
        return stopped(signals.came)
    except MemoryError:
        message = "out of memory; a lower --max-memory or fewer --jobs need less"
        return alone(exits.ENVIRONMENT, Finding(severity="error", code="out-of-memory", message=message), message)
    except Exception as error:  # noqa: BLE001 the edge of the program: known kinds by table, anything else is a bug and says so
        if signals.came is not None:
            return stopped(signals.came)
        code, finding = known(error)
        if code == exits.BUG:
            traceback.print_exc()
            return alone(code, finding, finding.message)
        found = findings_of(error)
        code = exits.code_of(found, code) if code == exits.CHECK_FAILED else code
        return end(code, found) if found else alone(code, finding, f"error: {words(finding)}")


def usage_words(error: Exception) -> str:
    """What typer says of a usage error, without its `Usage:` lines: the option or the argument that it is about stands in it."""
    return str(error.format_message()) if isinstance(error, ClickUsageError) else str(error)  # type: ignore[attr-defined]


def words(finding: Finding) -> str:
    """For a terminal: a compiler's log has many lines, and is not what the advice goes on from."""
    if not finding.advice:
        return finding.message
    return f"{finding.message}\nmissing: {finding.advice}" if "\n" in finding.message else f"{finding.message}; {finding.advice}"


def known(error: Exception) -> tuple[int, Finding]:
    """(exit code, the finding that it is where it carries none) of an exception. Imports only what was imported already."""
    names: dict[str, tuple[int, str]] = {
        "UsageError": (exits.USAGE, "usage"),
        "Occupied": (exits.USAGE, "out-exists"),
        "Overlaps": (exits.USAGE, "out-overlaps"),
        "TooLittleMemory": (exits.USAGE, "usage"),
        "LockHeld": (exits.ENVIRONMENT, "lock-held"),
        "CheckFailed": (exits.CHECK_FAILED, "check-failed"),
        "HubNotFound": (exits.USAGE, "hub-not-found"),
        "HubError": (exits.ENVIRONMENT, "hub"),
        "SourceUnreadable": (exits.ENVIRONMENT, "source-unreadable"),
        "SourceChanged": (exits.ENVIRONMENT, "source-changed"),
        "ProofFailed": (exits.CHECK_FAILED, "proof-failed"),
        "NoSpace": (exits.ENVIRONMENT, "no-space"),
        "PartsMissing": (exits.ENVIRONMENT, "parts-missing"),
        "MissingExtra": (exits.ENVIRONMENT, "missing-extra"),
        "NoDevice": (exits.ENVIRONMENT, "no-gpu"),
        "CompileError": (exits.ENVIRONMENT, "kernel-compile"),
    }
    for cls in type(error).__mro__:
        if cls.__name__ in names and cls.__module__.startswith("humming_convert."):
            code, kind = names[cls.__name__]
            advice = getattr(error, "missing", None) or getattr(error, "advice", None)  # CompileError, NoDevice: their words end with it
            message = str(error).removesuffix(f"\nmissing: {advice}").removesuffix(f"; {advice}")
            return code, Finding(severity="error", code=kind, message=message or cls.__name__, advice=advice)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # no memory, or a limit of processes
        message = "the system allows no more threads; fewer --jobs, or raise the limit (ulimit -u, -v)"
        return exits.ENVIRONMENT, Finding(severity="error", code="environment", message=message)
    if isinstance(error, OSError):
        remedy = exits.REMEDIES.get(error.errno or 0, "")
        where = f" ({error.filename})" if error.filename else ""
        message = f"{error.strerror or str(error) or type(error).__name__}{where}{'; ' + remedy if remedy else ''}"
        return exits.ENVIRONMENT, Finding(severity="error", code="environment", message=message)
    message = f"internal error: {type(error).__name__}: {error}; {ISSUES}"
    return exits.BUG, Finding(severity="error", code="internal-error", message=message)


def findings_of(error: Exception) -> tuple[Finding, ...]:
    """The findings that an exception carries, one or many."""
    many: tuple[Finding, ...] = tuple(getattr(error, "findings", ()))
    one = getattr(error, "finding", None)
    return many or ((one,) if isinstance(one, Finding) else ())


def plain(value: Any) -> Any:
    """Enum members as their values, for the API."""
    return getattr(value, "value", value)
