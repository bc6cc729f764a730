"""Mutated folders: every case that was once at fault, a few fresh ones, and one minute of them under `-m fuzz`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.demo.samples import all_samples
from tests.fuzz import mutations, slow_reader
from tests.fuzz.folders import bases, write
from tests.fuzz.judge import judge
from tests.fuzz.run import CORPUS, case, cases, run

RECIPES = [(path.stem, recipe) for path in sorted(CORPUS.glob("*.json")) for recipe in json.loads(path.read_text())]
SMALL = [s for s in all_samples() if s.nbytes < 1 << 20]


@pytest.mark.parametrize("recipe", [pytest.param(r, id=f"{stem}-{i}") for i, (stem, r) in enumerate(RECIPES)])
def test_a_case_that_was_at_fault_is_refused_or_right(recipe: dict[str, Any]) -> None:
    if recipe["base"] not in bases():
        pytest.skip("its base is in the shared set, which is not here")
    verdict = case(recipe["base"], recipe["steps"])
    assert not verdict.fault, verdict
    assert verdict.word in recipe.get("want", ("refused", "equal")), verdict


@pytest.mark.parametrize("sample", SMALL, ids=lambda s: s.name)
def test_the_slow_reader_reads_what_went_into_a_sample(sample: Any, tmp_path: Path) -> None:
    found, plain = slow_reader.read(sample.write(tmp_path))
    assert set(found) == set(sample.meaning)
    for name, want in sample.meaning.items():
        m = found[name]
        np.testing.assert_allclose(m.values * m.scale * m.second.reshape(-1, 1), want, rtol=1e-12)
    assert not {n.rpartition(".")[0] for n in plain} & set(sample.meaning)


@pytest.mark.parametrize("name", ["demo:gptq-4bit-v2-asym", "demo:nvfp4-modelopt", "demo:ct-int4-asym", "demo:humming-uint4"])
def test_an_unchanged_folder_is_equal(name: str) -> None:
    assert case(name, []).word == "equal"


def test_a_wrong_output_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge judges: zero points read one off are told, and so are codes of another tensor."""
    folder = bases()["demo:gptq-4bit-v2-asym"].copy()
    write(folder, tmp_path / "in")
    verdict = judge(tmp_path / "in", tmp_path / "out", gptq_zeros="v1", gptq_wrap="field")
    assert verdict.word == "wrong"
    assert "codes differ" in verdict.detail


def test_equal_seeds_draw_equal_cases() -> None:
    one, other = cases(7), cases(7)
    assert [next(one) for _ in range(5)] == [next(other) for _ in range(5)]


def test_a_step_that_does_not_fit_changes_nothing() -> None:
    folder = bases()["demo:humming-uint4"].copy()
    before = folder.tensors()
    mutations.apply(folder, ("drop", ["nowhere.weight"]))
    mutations.apply(folder, ("set_value", ["config.json", ["no", "such", "key"], 1]))
    assert folder.tensors() == before


def test_every_kind_of_step_can_be_drawn() -> None:
    rng = random.Random(0)
    drawn = {mutations.draw(rng.choice(list(bases().values())).copy(), rng)[0] for _ in range(3000)}
    assert drawn == set(mutations.STEPS) - {"rename_leaf"}  # only inside `every`


def test_fresh_mutations_are_refused_or_right() -> None:
    counts, faults = run(0.2, seed=20240601, limit=25)
    assert not faults, faults
    assert counts.total() > 0


@pytest.mark.fuzz
def test_one_minute_of_mutations() -> None:
    counts, faults = run(1, seed=random.SystemRandom().getrandbits(32))
    print(dict(counts))
    assert not faults, faults
