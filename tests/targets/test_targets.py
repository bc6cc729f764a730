"""The rows of targets, and how people name them."""

from __future__ import annotations

import pytest

from humming_convert.targets.environment import Environment, compiler_version
from humming_convert.targets.table import TARGETS, find_target, suggest_targets, target_of

FRIENDLY = "t4:75 a100:80 a10:86 l40s:89 4090:89 h20:90 h100:90 h200:90 b200:100 b300:103 5090:120 gb10:121 zw810e:80"


@pytest.mark.parametrize(("name", "sm"), [x.split(":") for x in FRIENDLY.split()])
def test_cards_are_found_by_what_people_call_them(name: str, sm: str) -> None:
    target = find_target(name)
    assert target is not None and target.sm == int(sm)


@pytest.mark.parametrize("name", ["sm90", "SM90", "sm_90", "H100", "h-100"])
def test_spelling_does_not_matter(name: str) -> None:
    assert find_target(name) is target_of(90)


def test_a_ppu_is_not_an_a100() -> None:
    assert find_target("zw810e") is find_target("ppu") is target_of(80, ppu=True)
    assert find_target("a100") is target_of(80)
    assert not find_target("a100").ppu


def test_an_unknown_name_gets_suggestions() -> None:
    assert find_target("h1000") is None
    assert "h100" in suggest_targets("h1000")
    assert suggest_targets("toaster") == tuple(t.name for t in TARGETS)


def test_every_name_belongs_to_one_target() -> None:
    names = [n for t in TARGETS for n in (t.name, *t.names)]
    assert len(names) == len(set(names))
    assert [t.sm for t in TARGETS] == [75, 80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121, 80]


@pytest.mark.parametrize(("text", "version"), [("13.0", (13, 0)), ("12.6", (12, 6)), ("13", (13, 0))])
def test_compiler_versions_are_pairs(text: str, version: tuple[int, int]) -> None:
    assert compiler_version(text) == version


@pytest.mark.parametrize("text", ["", "13.", "x.1", "13.0.1"])
def test_other_texts_are_no_compiler_version(text: str) -> None:
    with pytest.raises(ValueError, match=r"13\.0"):
        compiler_version(text)


def test_only_known_library_versions_can_be_reproduced() -> None:
    with pytest.raises(ValueError, match=r"0\.1\.20"):
        Environment(humming_version="0.1.21")
