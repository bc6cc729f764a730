"""The table of codes is whole: no finding has a code that it does not explain."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import humming_convert
from humming_convert.ci.codes import about, all_codes, rules
from humming_convert.ci.ways_out import WAYS_OUT

PACKAGE = Path(humming_convert.__file__).parent
SEVERITIES = ("error", "warning", "note")


def _codes_in(path: Path) -> Iterator[tuple[str, str]]:
    """(code, place) of every finding that is made with a code written out: `….error("code", …)`, `Finding(code="code", …)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        by_method = isinstance(node.func, ast.Attribute) and node.func.attr in SEVERITIES and ast.unparse(node.func.value) != "LOG"
        given = [*(node.args[:1] if by_method else ()), *(k.value for k in node.keywords if k.arg == "code")]
        for value in given:
            # a finding says something after its code: `parser.error("…")` and the like have one argument alone
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and (not by_method or len(node.args) > 1):
                yield value.value, f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_every_code_in_the_sources_is_in_the_table() -> None:
    written = [pair for path in sorted(PACKAGE.rglob("*.py")) for pair in _codes_in(path)]
    assert len({code for code, _ in written}) > 100, "the search finds the findings"
    assert not [f"{code} ({where})" for code, where in written if not about(code)]


def test_every_rule_has_a_way_out_and_no_way_out_is_of_no_rule() -> None:
    assert {x.rule.code for x in rules()} == set(WAYS_OUT)


def test_every_kind_of_error_of_the_command_line_is_in_the_table() -> None:
    source = ast.parse((PACKAGE / "cli" / "guard.py").read_text())
    (names,) = [n.value for n in ast.walk(source) if isinstance(n, ast.AnnAssign) and getattr(n.target, "id", "") == "names"]
    kinds = [ast.literal_eval(v.elts[1]) for v in names.values]  # type: ignore[union-attr]
    assert kinds and not [k for k in kinds if not about(k)]


def test_a_row_says_when_and_what_to_do_in_one_line_each() -> None:
    for row in all_codes():
        assert row.when and row.way_out and "\n" not in row.when + row.way_out, row.code


def test_a_code_stands_once_for_each_kind_of_giver() -> None:
    """Two rules may share a code; two rows of one of the other tables would be one fact said twice."""
    others = [(row.given_by, row.code) for row in all_codes() if row.given_by != "rule"]
    assert len(others) == len(set(others))
