"""The model card: a head that the Hub reads, nothing invented, the source's text unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from humming_convert.manifest.card import model_card, split_head
from tests.manifest.stub import stub_plan


def head_of(source: str, **changed: Any) -> str:
    return split_head(model_card(stub_plan(**changed), {}, source))[0]


def test_a_source_without_a_card_gives_ours_alone() -> None:
    head, body = split_head(model_card(stub_plan(), {}, ""))
    assert "license" not in head and "- humming\n" in head and body.lstrip().startswith("# x, ")


@pytest.mark.parametrize("line", ["license: apache-2.0", "license_link: https://a/b", "language:\n- en\n- de", "base_model: org/m"])
def test_keys_of_the_source_are_copied_as_they_stand(line: str) -> None:
    assert f"{line}\n" in head_of(f"---\n{line}\nother: 1\n---\ntext")


@pytest.mark.parametrize("tags", ["tags: [chat, humming]", "tags:\n- chat\n- humming", 'tags:\n  - "chat"'])
def test_tags_are_joined_without_doubles(tags: str) -> None:
    head = head_of(f"---\n{tags}\n---\n")
    assert head.count("- chat\n") == 1 and head.count("- humming\n") == 1


def test_a_hub_source_is_named_as_the_base_model() -> None:
    assert "base_model: org/model\n" in head_of("", name="org/model")
    assert "base_model: org/other\n" in head_of("---\nbase_model: org/other\n---\n", name="org/model")


def test_a_body_without_a_head_is_kept_whole() -> None:
    text = "# Title\n\n---\nnot a head\n---\n"
    assert model_card(stub_plan(), {}, text).endswith(text)


def test_windows_line_ends_have_a_head_too() -> None:
    head, body = split_head("---\r\nlicense: mit\r\n---\r\ntext\r\n")
    assert head.strip() == "license: mit" and body == "text\r\n"
