"""Every finding that is printed in JSON is one of `schema findings`, however the run ends; stderr says the same once."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from humming_convert.api import UsageError
from humming_convert.bench import plot
from humming_convert.checkpoint.reading import SourceChanged, SourceUnreadable
from humming_convert.ci.codes import about
from humming_convert.cli.exits import Terminated
from humming_convert.cli.guard import guarded
from humming_convert.engine import on_ray
from humming_convert.engine.finish import CheckFailed
from humming_convert.engine.folder import LockHeld, Occupied
from humming_convert.engine.merge import PartsMissing
from humming_convert.engine.prepare import NoSpace
from humming_convert.findings import Finding, Refused
from humming_convert.gemm.device import NoDevice
from humming_convert.gemm.nvrtc import INSTALL, CompileError
from humming_convert.hub.failures import HubError, HubNotFound
from humming_convert.manifest.schema import load_schema
from tests.conftest import ROOT
from tests.samples import sample

SCHEMA = jsonschema.Draft202012Validator(load_schema("findings"))
NO_NVRTC = "import humming_convert.gemm.nvrtc as n; n.folders = lambda: []; "
NO_CUPY = "import sys; sys.modules['cupy'] = None; "


def call(*arguments: object, before: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{before}from humming_convert.cli.main import run; run()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env={**os.environ, "NO_COLOR": "1"})


def findings_in(text: str) -> list[dict[str, Any]]:
    """Of the one document, each as the schema asks, of a code that has a row, without what belongs to a terminal."""
    found: list[dict[str, Any]] = json.loads(text)["findings"]
    SCHEMA.validate(found)
    for f in found:
        assert about(f["code"]), f
        assert not f["message"].startswith(("error", "refused:")) and "\nmissing:" not in f["message"], f
    return found


def said_once(text: str, finding: dict[str, Any]) -> None:
    first = finding["message"].splitlines()[0]
    assert text.count(first) == 1, text


def test_findings_are_made_in_one_place_alone() -> None:
    """A dict with a severity and a message would be one that lacks what the schema asks for."""
    for path in sorted((ROOT / "humming_convert").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                keys = {k.value for k in node.keys if isinstance(k, ast.Constant)}
                assert not {"severity", "message"} <= keys, f"{path.relative_to(ROOT)}:{node.lineno} makes a finding by hand"


# ------------------------------------------------------------------ every exception
ONE = Finding(severity="error", code="source-changed", message="it changed", file="model.safetensors", advice="leave it alone")
ENDS: list[tuple[Callable[[], BaseException], int, str]] = [
    (lambda: typer.BadParameter("no such thing"), 2, "usage"),
    (lambda: UsageError("no such thing"), 2, "usage"),
    (lambda: Occupied("out holds something else"), 2, "out-exists"),
    (lambda: HubNotFound(Finding(severity="error", code="hub-not-found", message="there is none")), 2, "hub-not-found"),
    (lambda: Refused([ONE]), 3, "source-changed"),
    (lambda: Refused("why"), 3, "refused"),
    (lambda: CheckFailed("it does not verify", (ONE,)), 4, "source-changed"),
    (lambda: CheckFailed("it is not whole"), 4, "check-failed"),
    (lambda: HubError(ONE, Finding(severity="error", code="hub-failed", message="it failed")), 5, "source-changed"),
    (lambda: SourceChanged(ONE), 5, "source-changed"),
    (lambda: SourceUnreadable(ONE), 5, "source-changed"),
    (lambda: LockHeld("another run writes it"), 5, "lock-held"),
    (lambda: NoSpace("it does not fit"), 5, "no-space"),
    (lambda: PartsMissing("2/3"), 5, "parts-missing"),
    (lambda: on_ray.MissingExtra("pip install ray"), 5, "missing-extra"),
    (lambda: plot.MissingExtra("pip install matplotlib"), 5, "missing-extra"),
    (lambda: NoDevice("no GPU is seen", "look at the driver"), 5, "no-gpu"),
    (lambda: CompileError("NVRTC is not installed", missing=INSTALL), 5, "kernel-compile"),
    (lambda: CompileError("k does not compile", source="a\nb", options=("-x",), log="1\n2", missing="headers"), 5, "kernel-compile"),
    (lambda: CompileError("k does not compile", log="1\n2"), 5, "kernel-compile"),
    (lambda: OSError(errno.ENOSPC, "No space left on device", "/out"), 5, "environment"),
    (lambda: OSError(), 5, "environment"),
    (lambda: RuntimeError("can't start new thread"), 5, "environment"),
    (lambda: MemoryError(), 5, "out-of-memory"),
    (lambda: ValueError("a bug"), 1, "internal-error"),
    (lambda: ValueError(), 1, "internal-error"),
    (lambda: Terminated(), 130, "interrupted"),
]


@pytest.fixture
def handlers() -> Iterator[None]:
    kept = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    out, err = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = out, err
    for number, handler in kept.items():
        signal.signal(number, handler)


def ended(error: BaseException, *arguments: str) -> int:
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def command(json: bool = False) -> None:
        raise error

    return guarded(app, list(arguments))


@pytest.mark.parametrize(("make", "code", "kind"), ENDS)
def test_every_exception(
    make: Callable[[], BaseException], code: int, kind: str, handlers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(make(), "--json") == code
    told = capsys.readouterr()
    found = findings_in(told.out)
    assert found[0]["code"] == kind
    if code != 1:  # whose traceback has its words too
        said_once(told.err, found[0])
    assert ended(make()) == code
    plain = capsys.readouterr()
    assert not plain.out
    assert plain.err == told.err or plain.err.startswith(told.err) or code == 1


def test_what_is_missing_is_advice(handlers: None, capsys: pytest.CaptureFixture[str]) -> None:
    for error, message, advice in (
        (CompileError("NVRTC is not installed", missing=INSTALL), "NVRTC is not installed", INSTALL),
        (CompileError("k does not compile", log="1\n2", missing="headers"), "k does not compile\nlog:\n1\n2", "headers"),
        (NoDevice("no GPU is seen", "look at the driver"), "no GPU is seen", "look at the driver"),
    ):
        ended(error, "--json")
        told = capsys.readouterr()
        (finding,) = findings_in(told.out)
        assert (finding["message"], finding["advice"]) == (message, advice)
        assert message in told.err and advice in told.err


# ------------------------------------------------------------------ every verb
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder: a model, its packed output, one that is damaged, and folders of something else."""
    place = tmp_path_factory.mktemp("place")
    sample("gptq-4bit-v2-asym").write(place).rename(place / "model")
    assert call("model", "--target", "sm90", "--act", "bf16", "--out", "out", cwd=place).returncode == 0
    for name in ("damaged", "unread"):
        shutil.copytree(place / "out", place / name)
    (place / "damaged" / "stranger").write_text("")
    path = next((place / "unread").glob("model-packed-*"))
    path.write_bytes(path.read_bytes()[:-1000])
    (place / "empty").mkdir()
    (place / "bench.json").write_text("{}")
    return place


RUNS: list[tuple[str, tuple[int, ...], str]] = [
    ("convert model --target sm90 --out out", (0, 2), ""),
    ("convert model --target sm90 --out empty", (2,), ""),
    ("convert model --target sm91", (2,), ""),
    ("convert model --nosuch", (2,), ""),
    ("convert", (2,), ""),
    ("convert empty --target sm90", (3,), ""),
    ("convert nowhere --target sm90", (2,), ""),
    ("convert model --target sm90 --act fp8 --out gpu --device cuda", (5,), NO_CUPY),
    ("inspect model", (0,), ""),
    ("inspect empty", (3,), ""),
    ("plan model --target sm90", (0,), ""),
    ("plan model --target sm90 --target sm80 --act nvfp4", (3,), ""),
    ("plan model --target sm90 --target sm80", (0,), ""),
    ("verify out --source model", (0,), ""),
    ("verify damaged", (4,), ""),
    ("verify unread", (4,), ""),
    ("verify unread --gpu", (4,), NO_CUPY),
    ("verify empty", (4,), ""),
    ("verify out --gpu", (5,), NO_CUPY),
    ("verify damaged --gpu", (5,), NO_CUPY),
    ("merge out", (2,), ""),
    ("recheck out --humming-version 0.1.19", (0, 4), ""),
    ("recheck empty --humming-version 0.1.19", (3, 4), ""),
    ("targets", (0,), ""),
    ("targets --check uint4 fp8 sm90", (0,), ""),
    ("targets --check uint4 fp8 nosuch", (2,), ""),
    ("formats", (0,), ""),
    ("doctor", (0, 5), ""),
    ("doctor out", (0, 5), ""),
    ("doctor empty", (3,), ""),
    ("kernels build out", (5,), NO_NVRTC),
    ("kernels build empty", (3,), ""),
    ("kernels build out --target nosuch", (2,), ""),
    ("kernels list out", (0,), ""),
    ("kernels list empty", (3,), ""),
    ("kernels clean out", (0,), ""),
    ("kernels clean model", (3,), ""),
    ("tune out", (5,), NO_CUPY),
    ("bench out", (5,), NO_CUPY),
    ("bench --from bench.json", (2,), ""),
    ("bench", (2,), ""),
    ("push damaged org/name --dry-run", (4,), ""),
    ("push out nosuch --dry-run", (2,), ""),
]


@pytest.mark.parametrize(("words", "codes", "before"), RUNS, ids=[f"{w}{' (hidden)' * bool(b)}" for w, _, b in RUNS])
def test_every_verb(words: str, codes: tuple[int, ...], before: str, place: Path) -> None:
    done = call(*words.split(), "--json", before=before, cwd=place)
    assert done.returncode in codes, done.stderr
    found = findings_in(done.stdout)
    if done.returncode:
        errors = [f for f in found if f["severity"] == "error"]
        assert errors or words.startswith("doctor")
        told = done.stderr if words.split()[0] not in ("verify", "inspect", "recheck", "doctor") or done.returncode == 5 else None
        if told is not None and len(errors) == 1:
            said_once(told, errors[0])


@pytest.mark.parametrize("verb", ["kernels build", "kernels list", "kernels clean", "tune", "bench", "doctor"])
@pytest.mark.parametrize("folder", ["model", "empty"])
def test_a_folder_that_is_no_output_is_refused_by_whatever_needs_its_layers(verb: str, folder: str, place: Path) -> None:
    done = call(*verb.split(), folder, cwd=place)
    assert done.returncode == 3 and "no-manifest" in done.stderr and "finished" in done.stderr, (done.stdout, done.stderr)
