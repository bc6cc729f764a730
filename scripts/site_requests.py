"""What a built site would load from elsewhere: scripts, styles, fonts, images, frames. Links that a reader follows are none.

    python scripts/site_requests.py SITE

In: a folder of HTML and CSS.  Out: each foreign address with its file; exit code 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src", "object": "data", "embed": "src"}
LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "prefetch", "modulepreload", "manifest"}
FOREIGN = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.I)
IN_STYLE = re.compile(r"(?:url\(\s*|@import\s+)['\"]?([^'\")\s;]+)", re.I)


class Loaded(HTMLParser):
    """`found`: addresses that a browser fetches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        if tag in LOADED and given.get(LOADED[tag]):
            self.found.append(given[LOADED[tag]])
        if tag == "link" and LINKS & set(given.get("rel", "").split()):
            self.found.append(given.get("href", ""))
        self.found += IN_STYLE.findall(given.get("style", ""))


def foreign(site: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(p for p in site.rglob("*") if p.suffix in (".html", ".css", ".svg")):
        text = path.read_text(errors="replace")
        found = IN_STYLE.findall(text) if path.suffix == ".css" else []
        if path.suffix == ".html":
            parser = Loaded()
            parser.feed(text)
            found = parser.found
        yield from ((path, address) for address in found if FOREIGN.match(address))


def main(site: Path) -> int:
    pages = len(list(site.rglob("*.html")))
    found = list(foreign(site))
    for path, address in found:
        print(f"{path.relative_to(site)}: {address}")
    print(f"{site}: {pages} pages, {len(found)} addresses elsewhere")
    return int(bool(found) or not pages)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
