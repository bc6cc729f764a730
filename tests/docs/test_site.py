"""The pages as a site: each has its place, and nothing would be loaded from elsewhere. `scripts/check_site` builds it."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def in_nav(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from in_nav(inner)


def test_every_page_has_a_place_and_every_place_a_page() -> None:
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    placed = list(in_nav(SITE["nav"]))
    listed_elsewhere = {p for p in pages if any(fnmatch.fnmatch(f"/{p}", pattern) for pattern in SITE["not_in_nav"].split())}
    assert len(placed) == len(set(placed))
    assert set(placed) == pages - listed_elsewhere


def test_it_asks_for_no_fonts_and_has_no_repository_whose_stars_are_fetched() -> None:
    assert SITE["theme"]["font"] is False
    assert "repo_url" not in SITE and "analytics" not in SITE.get("extra", {})


@pytest.mark.parametrize(
    ("page", "foreign"),
    [
        ('<script src="https://elsewhere.example/a.js"></script>', True),
        ('<link rel="stylesheet" href="//elsewhere.example/a.css">', True),
        ('<link rel="preconnect" href="https://elsewhere.example">', True),
        ('<p style="background: url(https://elsewhere.example/a.png)">', True),
        ('<img src="a.png"><a href="https://elsewhere.example">a link is followed by a reader</a>', False),
    ],
)
def test_the_check_sees_what_a_browser_would_load(tmp_path: Path, page: str, foreign: bool) -> None:
    (tmp_path / "index.html").write_text(page)
    done = subprocess.run([sys.executable, ROOT / "scripts" / "site_requests.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == foreign, done.stdout
    assert ("elsewhere.example" in done.stdout) is foreign


def test_the_check_sees_styles_that_fetch_others(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>")
    (tmp_path / "a.css").write_text("@import 'https://elsewhere.example/font.css';")
    done = subprocess.run([sys.executable, ROOT / "scripts" / "site_requests.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "elsewhere.example" in done.stdout


def test_no_code_in_a_table_has_an_escaped_bar() -> None:
    """The site would show the backslash, and without it other readers would end the cell."""
    wrong = [
        f"{page.name}: {line}"
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("|") and any("\\|" in code for code in re.findall(r"`[^`]*`", line))
    ]
    assert not wrong
