"""The verbs of the core where there is no GPU: what is missing is said with the command that mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import humming_convert as hc
from tests.samples import sample

RUN = "from humming_convert.cli.main import run; run()"
HIDDEN = "import sys; sys.modules['cupy'] = None; "  # as on a machine without CuPy


def call(*arguments: object, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + RUN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1", **env})


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    hc.convert(hc.plan(sample("gptq-4bit-v1-sym").write(folder), target="sm90", act="bf16"), out=folder / "out")
    return folder / "out"


def test_doctor_says_what_is_missing_and_how_to_mend_it(tmp_path: Path) -> None:
    done = call("doctor", "--json", before=HIDDEN, HUMMING_CONVERT_CACHE=str(tmp_path))
    rows = {r["what"]: r for r in document(done)["rows"]}
    assert {"humming-convert", "python", "templates", "nvrtc", "cupy", "gpu", "cache"} <= set(rows)
    assert rows["cupy"]["ok"] is None and "pip install" in rows["cupy"]["advice"]
    assert rows["cache"]["found"].startswith(str(tmp_path))
    assert done.returncode == (0 if rows["nvrtc"]["ok"] else 5)


def test_verifying_on_a_gpu_without_one_is_a_matter_of_the_environment(packed: Path) -> None:
    done = call("verify", packed, "--gpu", before=HIDDEN)
    assert done.returncode == 5 and "CuPy is not installed" in done.stderr and "pip install" in done.stderr
    assert document(call("verify", packed, "--gpu", "--json", before=HIDDEN))["findings"][0]["code"] == "no-gpu"


def test_a_sample_without_a_gpu_check_is_a_usage_error(packed: Path) -> None:
    assert call("verify", packed, "--sample", "0.5").returncode == 2


def test_a_folder_without_kernels_lists_none_and_cleans_none(packed: Path) -> None:
    before = (packed / "humming_manifest.json").read_bytes()
    assert "kernels build" in call("kernels", "list", packed).stdout
    assert document(call("kernels", "clean", packed, "--json"))["removed"] == 0
    assert (packed / "humming_manifest.json").read_bytes() == before


def test_kernels_for_a_folder_that_holds_no_packed_layers_are_refused(tmp_path: Path) -> None:
    done = call("kernels", "build", tmp_path)
    assert done.returncode == 3 and "no-manifest" in done.stderr


def test_kernels_for_a_gpu_that_nvrtc_does_not_know_are_a_usage_error(packed: Path) -> None:
    done = call("kernels", "build", packed, "--target", "sm107")
    assert done.returncode in (2, 5) and ("sm107" in done.stderr or "NVRTC" in done.stderr)


def test_without_a_compiler_building_says_what_to_install(packed: Path) -> None:
    without = "from humming_convert.gemm import nvrtc; nvrtc.folders = lambda: []; "
    done = call("kernels", "build", packed, before=without)
    assert done.returncode == 5 and "pip install" in done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample("ct-int8").write(tmp_path_factory.mktemp("model"))


def test_converting_on_a_device_without_cupy_names_the_command_that_mends_it(model: Path, tmp_path: Path) -> None:
    arguments = (model, "--target", "sm90", "--act", "bf16", "--out", tmp_path / "out", "--device", "cuda")
    done = call(*arguments, "--json", before=HIDDEN)
    said = document(done)
    assert (done.returncode, said["status"], said["findings"][0]["code"]) == (5, "environment", "no-gpu")
    assert "pip install 'cupy" in said["findings"][0]["advice"] and "pip install 'cupy" in done.stderr
    assert not list(tmp_path.iterdir())


def test_converting_on_a_device_that_is_not_there_is_said_before_the_source_is_read(tmp_path: Path) -> None:
    assert call(tmp_path / "no-model", "--target", "sm90", "--device", "cuda:1", before=HIDDEN).returncode == 5


@pytest.mark.parametrize("more", [("gpu",), ("cuda:",), ("cuda:x",), ("cuda", "--engine", "ray")])
def test_a_device_that_makes_no_sense_is_a_wrong_request(more: tuple[str, ...], model: Path) -> None:
    done = call(model, "--target", "sm90", "--device", *more)
    assert done.returncode == 2 and "--device" in done.stderr


@pytest.mark.parametrize("verb", ["bench", "tune"])
def test_measuring_without_a_gpu_is_a_matter_of_the_environment(verb: str, packed: Path) -> None:
    done = call(verb, packed, before=HIDDEN)
    assert done.returncode == 5 and "CuPy is not installed" in done.stderr and "pip install" in done.stderr
    assert document(call(verb, packed, "--json", before=HIDDEN))["findings"][0]["code"] == "no-gpu"


@pytest.mark.parametrize("options", [("--m", "1,x"), ("--m", "0"), ("--plot", "picture.txt"), ("--from", "README.md")])
def test_what_bench_cannot_read_or_write_is_a_usage_error(options: tuple[str, ...], packed: Path) -> None:
    assert call("bench", packed, *(packed / x if x == "README.md" else x for x in options), before=HIDDEN).returncode == 2


def test_a_picture_without_matplotlib_says_what_to_install(packed: Path, tmp_path: Path) -> None:
    done = call("bench", packed, "--plot", tmp_path / "a.svg", before=HIDDEN + "sys.modules['matplotlib'] = None; ")
    assert done.returncode == 5 and "humming-convert[plot]" in done.stderr
