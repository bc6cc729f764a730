"""The page as a browser reads it: what is markup, what is text, what it may run, how large it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_convert.findings import harmless
from humming_convert.report import html, marks
from humming_convert.report.inside import document
from humming_convert.report.page import HERE, page
from tests.report.samples import HARM, harmful, harmful_model, inspected, large


class Reader(HTMLParser):
    """Elements with their attributes, and the texts by element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = f"{tag}#{dict(attrs).get('id', '')}".rstrip("#")

    def handle_data(self, data: str) -> None:
        self.texts[self._open] = self.texts.get(self._open, "") + data

    @property
    def tags(self) -> Counter[str]:
        return Counter(tag for tag, _ in self.elements)

    @property
    def data(self) -> Any:
        return json.loads(self.texts["script#data"])


def assert_harmless(read: Reader) -> None:
    """Nothing but our own elements and attributes: two scripts, one style, no handler, no address."""
    assert (read.tags["script"], read.tags["style"], read.tags["img"], read.tags["b"]) == (2, 1, 0, 0)
    names = {name for _, attributes in read.elements for name in attributes}
    assert not [n for n in names if n.startswith("on") or n in ("src", "href", "style", "srcdoc", "action")]


def test_markup_in_any_text_of_a_report_is_text() -> None:
    read = Reader(page(harmful()))
    assert_harmless(read)
    assert read.texts["title"] == harmless(HARM)
    assert read.data["layers"][0][1] == harmless(HARM)


def test_markup_in_the_names_of_a_checkpoint_is_text(tmp_path: Path) -> None:
    read = Reader(page(inspected(harmful_model(tmp_path))))
    assert_harmless(read)
    assert any("<script>" in name for name in (layer[1] for layer in read.data["layers"]))


@given(st.text())
def test_any_text_is_one_text_node_and_can_be_written(text: str) -> None:
    made = html.el("p", text, title=text)
    made.encode()
    read = Reader(made)
    assert [tag for tag, _ in read.elements] == ["p"]
    assert read.texts.get("p", "") == harmless(text) == read.elements[0][1]["title"]


@given(st.recursive(st.text(), st.lists))
def test_data_in_the_page_is_what_was_put_in(value: Any) -> None:
    made = html.data(value)
    assert "<" not in made.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert json.loads(Reader(made).texts["script"]) == value


def test_nothing_but_the_style_and_the_script_of_the_package_may_run() -> None:
    text = page(harmful())
    policy = next(a["content"] for tag, a in Reader(text).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")
    for name, what in (("page.css", "style-src"), ("page.js", "script-src")):
        body = (HERE / name).read_text(encoding="utf-8")
        assert f"{what} {html.digest(body)}" in policy and body in text
    assert "unsafe" not in policy


def test_the_page_names_no_address() -> None:
    text = page(large(blocks=1))
    assert not re.search(r"https?:|//[a-z]+\.|url\(|@import|fetch\(|XMLHttpRequest|innerHTML|insertAdjacent|document\.write|eval\(", text)


def test_22000_layers_are_a_small_page() -> None:
    report = large()
    text = page(report)
    read = Reader(text)
    assert len(report.layers.layers) == 22_020 == len(read.data["layers"])
    assert len(text) < 2_000_000
    assert sum(read.tags.values()) < 2_000


def test_the_data_say_of_each_layer_what_the_report_says() -> None:
    report = large(blocks=8, experts=3)
    made = json.loads(json.dumps(document(report.layers)))
    for layer, (block, name, sort, source, line, nbytes, rank) in zip(report.layers.layers, made["layers"], strict=True):
        assert f"{made['blocks'][block]}.{name}" == layer.name
        assert made["sorts"][sort] == marks.pattern(name)
        assert made["sources"][source] == [layer.source, layer.bits, layer.shape, layer.parts]
        assert (nbytes, rank) == (layer.nbytes, layer.rank)
        said = [made["verdicts"][i] for i in made["lines"][line]]
        assert [(made["marks"][m][0], why) for m, why, _, _ in said] == [(v.mark, v.why) for v in layer.verdicts]


def test_the_table_of_kinds_counts_every_layer() -> None:
    layers = large().layers.layers
    for view in (0, 1):
        rows = marks.alike(layers, view)
        assert sum(count for _, _, count in rows) == len(layers)
        assert len(rows) < 30


@given(st.lists(st.sampled_from(["model", "layers", "0", "17", "mlp", "w1", "h2o"]), min_size=1).map(".".join))
def test_a_block_and_the_rest_are_the_name(name: str) -> None:
    block, rest = marks.block_of(name)
    assert rest and (f"{block}.{rest}" if block else rest) == name
    assert not block or block.rpartition(".")[2].isdigit()


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_0_only_if_it_is(share: float) -> None:
    assert (marks.percent(share) == "0 %") == (share == 0)


def _light(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out_from_its_ground(scheme: int) -> None:
    body = re.findall(r":root \{(.*?)\}", (HERE / "page.css").read_text(), re.S)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", body))
    pairs = [(c, f"{c}-ground") for c in ("good", "soft", "bad", "grey")]
    pairs += [(c, ground) for c in ("text", "quiet") for ground in ("ground", "card")] + [("link", "ground")]
    for text, ground in pairs:
        high, low = sorted((_light(colours[text]), _light(colours[ground])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_a_mark_has_a_sign_and_a_word_besides_its_colour() -> None:
    bad = {m for m in marks.MARKS if marks.MARKS[m].sign == "✕"}
    assert bad == {"refused", "failed"}
    assert len({s.word for s in marks.MARKS.values()}) == len(marks.MARKS)
    style = (HERE / "page.css").read_text()
    assert all(f".{m}" in style for m in marks.MARKS if m not in ("plain", "unchecked"))
