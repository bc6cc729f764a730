"""The page: one HTML text that needs nothing beside itself, no network and no other file.

In: a Report.  Out: HTML. Without its script the page lacks only the map of single layers; the table of layers that are alike is always there.
A content security policy names the style and the script by their digests, so that nothing else runs even if it were in the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from humming_convert.findings import SEVERITIES, Finding
from humming_convert.plan.size import size
from humming_convert.report.html import Markup, data, digest, el, join, raw
from humming_convert.report.inside import document
from humming_convert.report.marks import MARKS, alike, counted, padding, percent
from humming_convert.report.types import Cell, Layer, Map, Mark, Report, Table

HERE = Path(__file__).resolve().parent
ROWS = 300  # of a static table; a model has some dozens of kinds of layers
EACH = 50  # findings of one code that are listed
OPEN = 5  # so many findings of one code stand open


def page(report: Report) -> str:
    """The whole document."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {digest(style)}; script-src {digest(script)}"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", report.title),
        raw("style", style),
    )
    main = el(
        "main",
        el("header", el("h1", report.title), _state(report.state), _facts(report.facts), _about(report.about)),
        *(_findings(title, mine) for title, mine in report.findings),
        *(_table(t) for t in report.tables),
        _kinds(report.layers),
        _map(report.layers),
        *(_table(t) for t in report.tail),
        _legend(report),
    )
    body = el("body", main, data(document(report.layers), id="data"), raw("script", script))
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def mark(name: Mark, words: str | None = None) -> Markup:
    """A verdict: its sign and a word, in its colour. words "": the word is there for those who hear the page only."""
    sign = MARKS[name]
    said = f" {sign.word if words is None else words}" if words != "" else el("span", f" {sign.word}", class_="visually-hidden")
    return el("span", el("span", sign.sign, aria_hidden="true", class_="sign"), said, class_=f"mark {name}")


def _state(state: Cell) -> Markup:
    return el("p", mark(state.mark, state.text), class_="state")


def _facts(facts: Iterable[tuple[str, str]]) -> Markup:
    return el("dl", *(el("div", el("dt", label), el("dd", value)) for label, value in facts), class_="facts")


def _about(about: Iterable[tuple[str, str]]) -> Markup:
    rows = join(el("div", el("dt", label), el("dd", value)) for label, value in about)
    return el("dl", rows, class_="about")


def _section(title: str, *content: object) -> Markup:
    return el("section", el("h2", title), *content)


def _cell(head: str, value: object) -> Markup:
    said = mark(value.mark, value.text) if isinstance(value, Cell) else value
    return el("td", el("span", said), data_label=head)


def grid(head: Sequence[str], rows: Sequence[Sequence[object]], *, wide: bool = False) -> Markup:
    """A table; on a narrow screen each row is a card. wide: many narrow columns, which scroll inside their frame instead."""
    top = el("thead", el("tr", *(el("th", h, scope="col") for h in head)))
    body = el("tbody", *(el("tr", *(_cell(h, c) for h, c in zip(head, row, strict=True))) for row in rows))
    table = el("table", top, body, class_="wide" if wide else "cards")
    return el("div", table, class_="frame", tabindex=0, role="region", aria_label=" / ".join(head[:3])) if wide else table


def _table(t: Table) -> Markup:
    parts: list[Markup] = [el("p", t.text)] if t.text else []
    if t.rows:
        parts.append(grid(t.head, t.rows, wide=t.wide))
    if t.below:
        parts.append(el("ul", *(el("li", line) for line in t.below), class_="below"))
    return _section(t.title, *parts)


# ------------------------------------------------------------------ findings
def _findings(title: str, findings: Sequence[Finding]) -> Markup:
    if not findings:
        return _section(title, el("p", "None."))
    by_code: dict[tuple[str, str], list[Finding]] = {}
    for f in sorted(findings, key=lambda f: SEVERITIES.index(f.severity)):
        by_code.setdefault((f.severity, f.code), []).append(f)
    return _section(title, *(_code(mine) for mine in by_code.values()))


def _code(mine: Sequence[Finding]) -> Markup:
    first = mine[0]
    times = f" × {len(mine)}" if len(mine) > 1 else ""
    head = el("summary", el("span", f"{first.severity}", class_=f"severity {first.severity}"), " ", el("code", first.code), times)
    items = [el("li", *_finding(f)) for f in mine[:EACH]]
    if len(mine) > EACH:
        items.append(el("li", f"and {len(mine) - EACH} more; the command with --json lists all"))
    return el("details", head, el("ul", *items), class_="finding", open=len(mine) <= OPEN)


def _finding(f: Finding) -> Iterable[object]:
    where = f.layer or f.tensor or f.file
    if where:
        yield el("code", where)
        yield ": "
    yield f.message
    if f.file and f.file != where and f.file not in f.message:
        yield f" ({f.file})"
    if f.advice:
        yield el("span", f" {f.advice}", class_="advice")


# ------------------------------------------------------------------ layers
def _kinds(m: Map) -> Markup:
    if not m.layers:
        return _section("Layers", el("p", "No quantized layer could be read."))
    view = m.views[m.first]
    shown = " ".join(x for x in (view.group, view.name) if x)
    stored = any(x.nbytes is not None for x in m.layers)
    found = alike(m.layers, m.first)
    head = ("layers", "how many", "source", "N × K", *(("bytes of each",) if stored else ()), "packed", "padding", shown or "verdict")
    rows = [_kind(x, name, count, m.first, stored) for x, name, count in found[:ROWS]]
    more = [el("p", f"{len(found) - ROWS} more kinds of layers; the map below lists every layer.")] if len(found) > ROWS else []
    text = "Layers that differ in nothing but the numbers in their names stand in one row"
    return _section("Kinds of layers", el("p", f"{text}{f'; verdicts for {shown}' if shown else ''}."), grid(head, rows), *more)


def _kind(x: Layer, name: str, count: int, view: int, stored: bool) -> tuple[object, ...]:
    """A row of layers that are alike. stored: with the bytes in the source."""
    v = x.verdicts[view]
    share, word = padding(x, v), MARKS[v.mark].word
    nbytes = ("–" if x.nbytes is None else size(x.nbytes),) if stored else ()
    packed = ("–" if v.nbytes is None else size(v.nbytes), "–" if share is None else percent(share))
    return (el("code", name), count, x.source, x.shape, *nbytes, *packed, Cell(v.mark, f"{word}: {v.why}" if v.why else word))


def _map(m: Map) -> Markup:
    if not m.layers:
        return Markup("")
    missing = el("noscript", el("p", "The map of single layers needs the script of this page; the tables above hold all kinds of layers."))
    return _section("Map of layers", missing, el("div", id="map"))


def _legend(report: Report) -> Markup:
    used = {v.mark for x in report.layers.layers for v in x.verdicts} | {report.state.mark}
    rows = [el("div", el("dt", mark(name)), el("dd", MARKS[name].text)) for name in MARKS if name in used]
    return _section("Signs", el("dl", *rows, class_="about signs"))


def tally(marks: Iterable[Mark]) -> str:
    """`12 packs, 3 lossy`."""
    return ", ".join(f"{count} {MARKS[name].word}" for name, count in counted(marks)) or "no layers"
