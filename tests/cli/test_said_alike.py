"""What a verb prints, its JSON, its page and its exit code are one answer."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from humming_convert.gemm.rewrite import rewrite
from tests.report.samples import reordered
from tests.samples import sample

CLI = [sys.executable, "-c", "from humming_convert.cli.main import run; run()"]


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample("gptq-4bit-v2-asym").write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def packed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    assert call(model, "--target", "sm90", "--act", "fp8", "--out", out).returncode == 0
    return out


def codes(text: str) -> dict[str, int]:
    """How often each code is printed; many of one code are one line with their number."""
    out: dict[str, int] = {}
    for severity, code, times in re.findall(r"^(error|warning|note)\[([\w-]+)\](?: (\d+) times)?", text, re.M):
        out[f"{severity} {code}"] = out.get(f"{severity} {code}", 0) + int(times or 1)
    return out


def on_page(text: str, title: str) -> dict[str, int]:
    """The same of a section of findings of a page."""
    section = text.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]
    found = re.findall(r'class="severity \w+">(\w+)</span> <code>([\w-]+)</code>(?: × (\d+))?', section)
    return {f"{severity} {code}": int(times or 1) for severity, code, times in found}


def in_json(text: str) -> dict[str, int]:
    out: dict[str, int] = {}
    for f in json.loads(text)["findings"]:
        key = f"{f['severity']} {f['code']}"
        out[key] = out.get(key, 0) + 1
    return out


def said(verb: list[object], tmp_path: Path, title: str) -> tuple[int, str, str, dict[str, Any]]:
    """(exit code, text, page, document) of one command in its three ways, whose findings are the same."""
    text, page = call(*verb), tmp_path / "page.html"
    document = call(*verb, "--json", "--html", page)
    assert text.returncode == document.returncode, text.stderr + document.stderr
    read = page.read_text()
    assert codes(text.stderr + text.stdout) == on_page(read, title) == in_json(document.stdout)
    return text.returncode, text.stdout, html.unescape(read), json.loads(document.stdout)


def right(out: Path) -> None:
    """As converted."""


def flipped(out: Path) -> None:
    path = next(out.glob("model-packed-*"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)


def stranger(out: Path) -> None:
    (out / "stranger").write_text("")


def gone(out: Path) -> None:
    next(out.glob("model-common-*")).unlink()


def changed_manifest(out: Path) -> None:
    path = out / "humming_manifest.json"
    path.write_text(path.read_text().replace("sm90", "sm80"))


def wrong_on_a_gpu(out: Path) -> None:
    """What an earlier `verify --gpu` recorded."""
    gpu = {"device": "NVIDIA H200", "sm": 90, "kernels": "mma_any", "rows": [1], "weights": 1, "max_error": 1.0}
    rewrite(out, lambda m: m["layers"][0].update(gpu={**gpu, "ok": False, "wrong": ["weight [3, 5]: 1.0, not 0.5"]}))


def right_on_a_gpu(out: Path) -> None:
    gpu = {"device": "NVIDIA H200", "sm": 90, "kernels": "mma_any", "rows": [1], "weights": 1, "max_error": 1e-8}
    rewrite(out, lambda m: m["layers"][0].update(gpu={**gpu, "ok": True, "wrong": []}))


@pytest.mark.parametrize("change", [right, right_on_a_gpu, flipped, stranger, gone, changed_manifest, wrong_on_a_gpu])
@pytest.mark.parametrize("source", [False, True])
def test_verify(change: Callable[[Path], None], source: bool, model: Path, packed: Path, tmp_path: Path) -> None:
    out = shutil.copytree(packed, tmp_path / "out")
    change(out)
    code, text, page, document = said(["verify", out, *(["--source", model] if source else [])], tmp_path, "Findings of this check")
    good = change in (right, right_on_a_gpu)
    assert code == (0 if good else 4)
    assert document["status"] == ("ok" if good else "failed")
    assert (": ok (" in text) == good == (": FAILED (" not in text)
    assert ("out: verified</h1>" in page) == good == ("verification failed" not in page)
    for what, count in document["checked"].items():
        assert f"{count} {what}" in text and f"<dd>{count}</dd>" in page
    # what a GPU was recorded to find wrong is no reason to leave out the round trip that was asked for
    assert ("layers proven" in document["checked"]) == (source and change in (right, right_on_a_gpu, wrong_on_a_gpu))


@pytest.mark.parametrize("more", [[], ["--headers-only"]])
def test_plan(more: list[object], tmp_path: Path) -> None:
    model = sample("ct-int4-sym").write(tmp_path)
    code, text, page, document = said(["plan", model, "--target", "sm90", "--act", "fp8", *more], tmp_path, "Findings")
    assert code == 0
    assert document["fingerprint"] in text and document["fingerprint"] in page
    questions = document["totals"]["open_questions"]
    assert bool(questions) == ("Open questions" in page) == ("open until the data are read" in text) == bool(more)
    assert all(q in text and q in page for q in questions)


@pytest.mark.parametrize("broken", [False, True])
def test_inspect(broken: bool, tmp_path: Path) -> None:
    model = reordered(tmp_path) if broken else sample("gptq-4bit-v1-sym").write(tmp_path)
    code, _, page, _ = said(["inspect", model], tmp_path, "Findings")
    assert code == (3 if broken else 0)
    assert ("as it is: " in page.partition("<script")[0]) == broken
