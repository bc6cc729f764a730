"""The pages that are tables of the code are what the tables say."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate_docs.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = spec_from_file_location("generate_docs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current(generator: ModuleType) -> None:
    stale = [name for name, make in generator.PAGES.items() if (ROOT / "docs" / name).read_text() != make()]
    assert not stale, f"run python scripts/generate_docs.py: {', '.join(stale)}"


def test_a_rule_number_belongs_to_one_rule(generator: ModuleType) -> None:
    codes: dict[int, set[str]] = {}
    for rule, _ in generator.rules():
        codes.setdefault(rule.number, set()).add(rule.code)
    assert not {n: c for n, c in codes.items() if len(c) > 1}


def test_a_rule_is_stated_once(generator: ModuleType) -> None:
    counts = Counter(rule.number for rule, _ in generator.rules())
    assert not [n for n, count in counts.items() if count > 1]


def test_a_page_that_is_not_current_fails_the_check(tmp_path: Path) -> None:
    """The script reads the folder beside itself: a copy of it finds no pages and says so."""
    copy = tmp_path / "scripts" / "generate_docs.py"
    copy.parent.mkdir()
    copy.write_text(SCRIPT.read_text().replace("sys.path.insert(0, str(ROOT))", f"sys.path.insert(0, {str(ROOT)!r})"))
    (tmp_path / "docs").mkdir()
    run = subprocess.run([sys.executable, str(copy), "--check"], capture_output=True, text=True)
    assert run.returncode == 1 and "not current" in run.stdout
    assert not list((tmp_path / "docs").iterdir())


def test_links_between_pages_lead_somewhere() -> None:
    import re

    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
