"""`doctor OUT`: rows, exit codes, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from humming_convert.serve import doctor
from humming_convert.serve.machine import Machine
from tests.serve.conftest import Packed


def rows(folder: Path) -> dict[str, Any]:
    return {r.what: r for r in doctor.rows(folder)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """machine(sm=…, humming=…, vllm=…): what this one shall be taken for."""

    def be(*, sm: int | None = 90, humming: str | None = "0.1.20", vllm: str | None = "0.33.0") -> None:
        monkeypatch.setattr(doctor, "here", lambda: Machine(sm=sm, humming=humming))
        monkeypatch.setattr(doctor, "installed_vllm", lambda: vllm)
        monkeypatch.setattr(doctor.library, "compiler", lambda: "13.0")
        monkeypatch.setattr(doctor.library, "differences", lambda *_: iter(()))

    return be


def test_a_machine_that_fits_has_no_row_against_it(packed: Packed, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    entry = type("Entry", (), {"name": "humming_packed", "value": "humming_convert.serve.plugin:register"})()
    monkeypatch.setattr(doctor, "entry_points", lambda group: [entry])
    found = rows(packed(tp=2))
    assert all(r.ok for r in found.values()), found
    assert {"files, rank 0", "files, rank 1"} <= set(found)
    assert "--tensor-parallel-size 2" in found["start"].found and "13.0" in found["reading"].found


@pytest.mark.parametrize(
    ("more", "row", "word"),
    [
        ({"sm": 80}, "gpu", "--target sm80"),
        ({"sm": None}, "gpu", "serving machine"),
        ({"humming": "0.1.21"}, "humming-kernels", "--humming-version 0.1.21"),
        ({"humming": None}, "humming-kernels", "pip install humming-kernels"),
        ({"vllm": "0.34.0"}, "vllm", "install vLLM 0.33"),
    ],
)
def test_what_does_not_fit_is_a_row_with_advice(packed: Packed, machine: Any, more: dict[str, Any], row: str, word: str) -> None:
    machine(**more)
    found = rows(packed())[row]
    assert found.ok is False and word in found.advice


def test_without_vllm_the_library_may_be_missing(packed: Packed, machine: Any) -> None:
    machine(humming=None, vllm=None)
    found = rows(packed())
    assert found["humming-kernels"].ok is None and found["vllm"].ok is None and found["reading"].ok is None


def test_a_plugin_that_vllm_does_not_find_is_told(packed: Packed, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    assert rows(packed())["plugin"].ok is False


@pytest.mark.parametrize(
    ("said", "ok", "mended"),
    [
        (None, True, None),
        ("humming_packed", True, None),
        ("other,humming_packed", True, None),
        ("humming_packed,", True, None),
        ("other", False, "other,humming_packed"),
        ("other,more", False, "other,more,humming_packed"),
        ("", False, "humming_packed"),
        (",", False, "humming_packed"),
        ("other, humming_packed", False, "other,humming_packed"),
        ("Humming_Packed", False, "Humming_Packed,humming_packed"),
        ("humming_packed_too", False, "humming_packed_too,humming_packed"),
        ("$(other)", False, "'$(other),humming_packed'"),
    ],
)
def test_the_plugins_that_vllm_is_allowed_are_read_as_vllm_reads_them(
    packed: Packed, machine: Any, monkeypatch: pytest.MonkeyPatch, said: str | None, ok: bool, mended: str | None
) -> None:
    machine()
    entry = type("Entry", (), {"name": "humming_packed", "value": "humming_convert.serve.plugin:register"})()
    monkeypatch.setattr(doctor, "entry_points", lambda group: [entry])
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if said is not None:
        monkeypatch.setenv("VLLM_PLUGINS", said)
    row = rows(packed())["plugin"]
    assert row.ok is ok
    if mended is not None:
        assert row.advice.startswith(f"export VLLM_PLUGINS={mended}, or unset ")
        monkeypatch.setenv("VLLM_PLUGINS", mended.strip("'"))
        assert rows(packed())["plugin"].ok is True
    elif said is not None:
        assert "names it" in row.found


def test_files_that_are_missing_are_told_by_rank(packed: Packed, machine: Any, tmp_path: Path) -> None:
    import shutil

    machine()
    shutil.copytree(packed(tp=2), tmp_path / "out")
    next((tmp_path / "out").glob("model-packed-tp2of2-*")).unlink()
    found = rows(tmp_path / "out")
    assert found["files, rank 0"].ok and found["files, rank 1"].ok is False


@pytest.mark.parametrize("name", ["config.json", "model-common-*", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    ("change", "says"), [("cut", " bytes, the manifest says"), ("gone", "is missing"), ("folder", "is a folder, not a file")]
)
def test_common_files_that_are_not_what_was_written_are_told(
    packed: Packed, machine: Any, tmp_path: Path, name: str, change: str, says: str
) -> None:
    import shutil

    machine()
    shutil.copytree(packed(), tmp_path / "out")
    path = next((tmp_path / "out").glob(name))
    content = path.read_bytes()
    path.unlink()
    if change == "cut":
        path.write_bytes(content[:-1])
    elif change == "folder":
        path.mkdir()
    row = rows(tmp_path / "out")["files, common"]
    assert row.ok is False and f"{path.name} " in row.found and says in row.found and "fetch the folder again" in row.advice


@pytest.mark.parametrize(
    ("installed", "word"), [((), "neither torch nor CuPy"), (("torch",), "seen by torch"), (("torch", "cupy"), "by torch or CuPy")]
)
def test_what_looked_for_a_gpu_is_named(packed: Packed, machine: Any, monkeypatch: pytest.MonkeyPatch, installed: Any, word: str) -> None:
    machine(sm=None)
    monkeypatch.setattr(doctor, "find_spec", lambda name: name if name in installed else None)
    assert word in rows(packed())["gpu"].found


def call(*arguments: Any) -> subprocess.CompletedProcess[str]:
    code = "import sys; from humming_convert.cli.main import run; sys.exit(run())"
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


def test_the_command_answers_with_its_exit_code_and_as_json(packed: Packed) -> None:
    done = call("doctor", packed(), "--json")
    document = json.loads(done.stdout)
    assert document["out"] == str(packed()) and document["rows"][0]["what"] == "folder"
    assert done.returncode == (5 if document["status"] == "failed" else 0)
    assert "load here" in call("doctor", packed()).stdout


def test_a_folder_that_is_not_packed_is_refused(tmp_path: Path) -> None:
    done = call("doctor", tmp_path)
    assert done.returncode == 3 and "no-manifest" in done.stderr
    assert call("doctor", tmp_path / "gone").returncode == 2
