"""Whatever is wrong with a folder, a finding says where and what to do."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from humming_convert import api
from humming_convert.findings import Finding
from tests.fuzz import mutations
from tests.fuzz.folders import bases, write
from tests.fuzz.run import Case, cases


def findings_of(case: Case, path: Path) -> tuple[Finding, ...]:
    folder = bases()[case["base"]].copy()
    for step in case["steps"]:
        mutations.apply(folder, (step[0], step[1]))
    write(folder, path)
    try:
        return api.plan(path, standard=True, io="read").findings
    except api.Refused as refused:
        return refused.findings


def test_every_error_of_a_mutated_folder_has_advice_and_a_place(tmp_path: Path) -> None:
    for i, case in enumerate(islice(cases(11, only=("demo:",)), 120)):
        for f in findings_of(case, tmp_path / str(i)):
            if f.severity == "error":
                assert f.advice, f
                assert f.layer or f.tensor or f.file or f.code in ("no-weights", "not-a-checkpoint"), f
                assert f.code == f.code.lower() and f.message, f


def test_what_is_wrong_with_a_tensor_is_said_with_its_file(tmp_path: Path) -> None:
    for i, case in enumerate(islice(cases(12, only=("demo:",)), 120)):
        for f in findings_of(case, tmp_path / str(i)):
            assert f.severity != "error" or f.tensor is None or f.file is not None, f
