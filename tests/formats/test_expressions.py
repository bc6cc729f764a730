"""Regular expressions of configs: those that could hang are refused before they are run."""

from __future__ import annotations

import pytest

from humming_convert.formats.expressions import BadExpression, compiled


@pytest.mark.parametrize(
    "pattern",
    [r"^((([a-z0-9._])+)+)+!$", r"^(([a-z0-9_.])+)+!$", r"(.*)*(.*)*(a|a)*$x", r"(?:(?:a|b*)x?)+", r"(a{2,}b?)*", r"(?:a(?=b+))*?"],
)
def test_a_repeat_of_a_repeat_is_refused(pattern: str) -> None:
    with pytest.raises(BadExpression, match="forever"):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.layers\.\d+\.mlp\..*_proj$",
        r"^model\.layers\.(?:[0-9]|[1-3][0-9])\..*$",
        r"(?:.*\.)?layers\.0\.self_attn\.(?:k_proj|q_proj)$",
        r"(?:[a-z]{1,8}\.){1,6}weight",
        r".*lm_head.*",
        r"[*+]{2,}",
    ],
)
def test_what_quantizers_write_is_taken(pattern: str) -> None:
    assert compiled(pattern).pattern == pattern


@pytest.mark.parametrize("pattern", ["(", "*", "a{4294967296}"])
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(BadExpression, match="no regular expression"):
        compiled(pattern)
