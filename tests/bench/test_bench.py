"""`bench` on an emulated device: what is measured and checked, and what documents, tables and pictures say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import emulation
import jsonschema
import numpy as np
import pytest
from fake_device import FakeDevice
from fake_graphs import FakeGraphs

import humming_convert as hc
from humming_convert.bench import plot, table
from humming_convert.bench.contenders import Case, Core, Prepared
from humming_convert.bench.document import CORE, CUBLAS, LIBRARY, Document, LayerResult, Measured, Point, read
from humming_convert.bench.layers import alike
from humming_convert.bench.run import Bench
from humming_convert.findings import Refused
from humming_convert.gemm.load import Loaded
from humming_convert.gemm.stored import stored_layers
from humming_convert.manifest.schema import load_schema
from tests.samples import sample

needs_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    hc.convert(hc.plan(sample("gptq-4bit-v1-sym").write(folder), target="sm90", act="fp8"), out=folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench-experts")
    hc.convert(hc.plan(sample("mxfp4-gpt-oss").write(folder), target="sm90", act="bf16"), out=folder / "out")
    return folder / "out"


class Other:
    """A contender that has `us`, or a reason, or fails."""

    name = CUBLAS
    how = "made up"

    def __init__(self, reason: str | None = None, failure: Exception | None = None) -> None:
        self.reason, self.failure = reason, failure

    def why_not(self, case: Case) -> str | None:
        return self.reason

    def prepare(self, case: Case) -> Prepared:
        if self.failure is not None:
            raise self.failure
        return Prepared([lambda: None] * 2)


def bench_of(folder: Path, tmp_path: Path, *others: Any) -> Bench:
    device = FakeDevice(tmp_path)
    loaded = Loaded(device, {s.name: s for s in stored_layers(folder)})
    return Bench(loaded, FakeGraphs(), [Core(), *others], lambda nbytes: nbytes / 1000, cache_bytes=1 << 16)


# --- Which layers


def test_one_layer_of_each_kind_is_measured(folder: Path) -> None:
    every = list(stored_layers(folder))
    kinds = alike([*every, *every], "*")
    assert [k.count for k in kinds] == [2] * len(every)
    shapes = [(k.stored.config["shape_n"], k.stored.config["shape_k"]) for k in kinds]
    assert len(shapes) == len(set(shapes))
    assert [k.stored.name for k in alike(every, "*.down_proj")] == ["model.layers.0.mlp.down_proj"]


def test_a_pattern_that_no_layer_has_is_refused_with_names(folder: Path) -> None:
    with pytest.raises(Refused, match="no packed layer is called nothing"):
        alike(stored_layers(folder), "nothing")


# --- Measuring


@needs_compiler
@pytest.mark.parametrize("which", ["folder", "experts"])
def test_the_core_is_compared_with_float64_before_it_is_timed(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    out = request.getfixturevalue(which)
    bench = bench_of(out, tmp_path)
    result = bench.layer(alike(stored_layers(out), "*")[0], (1, 5))
    assert [p.rows for p in result.points] == [1, 5]
    for point in result.points:
        core = point.contenders[CORE]
        assert core.ok and core.error is not None and core.error < 2.0**-7
        assert core.us == 10.0 and point.floor_us == point.nbytes / 1000
    assert bool(result.experts) == (which == "experts")


@needs_compiler
def test_a_wrong_product_is_named(folder: Path, tmp_path: Path) -> None:
    """One scale of the layer, changed on the device alone."""
    bench = bench_of(folder, tmp_path)
    kind = alike(stored_layers(folder), "*")[0]
    layer = bench.loaded[kind.stored.name]
    tensors = layer.multiplier.tensors
    layer.multiplier.tensors = {**tensors, "weight_scale": np.full_like(tensors["weight_scale"], 0x41)}
    result = bench.layer(kind, (4,))
    document = document_of(result)
    assert [(x.name, p.rows, who) for x, p, who in document.wrong] == [(kind.stored.name, 4, CORE)]
    assert "WRONG" in table.rows(result)[0]


@needs_compiler
def test_experts_without_rows_do_not_count_as_read(experts: Path, tmp_path: Path) -> None:
    bench = bench_of(experts, tmp_path)
    kind = alike(stored_layers(experts), "*")[0]
    one, many = (p.nbytes for p in bench.layer(kind, (1, 64)).points)
    assert one * kind.stored.config["num_experts"] == many


@needs_compiler
def test_whoever_is_absent_is_named_with_the_reason_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    kind = alike(stored_layers(folder), "*")[0]
    for number, (other, said) in enumerate(
        ((Other(reason="dense layers only"), "dense layers only"), (Other(failure=ValueError("no")), "at 2 rows: ValueError: no"))
    ):
        (tmp_path / f"other{number}").mkdir()
        result = bench_of(folder, tmp_path / f"other{number}", other).layer(kind, (2,))
        assert result.absent == {CUBLAS: said}
        assert CORE in result.points[0].contenders
    assert CUBLAS in bench_of(folder, tmp_path, Other()).layer(kind, (2,)).points[0].contenders


@needs_compiler
def test_a_gpu_that_failed_ends_the_run(folder: Path, tmp_path: Path) -> None:
    broken = Other(failure=RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bench_of(folder, tmp_path, broken).layer(alike(stored_layers(folder), "*")[0], (2,))


# --- Documents


def measured(us: float, **more: Any) -> Measured:
    return Measured(us=us, low=us * 0.99, high=us * 1.01, **more)


def document_of(*layers: LayerResult, **more: Any) -> Document:
    about: dict[str, Any] = {"device": "a GPU", "sm": 90, "multiprocessors": 132, "compiler": "13.0", "templates": "xxh3:" + "0" * 32}
    about |= {"tuning": "heuristics", "contenders": {CORE: "kernels"}, "absent": {LIBRARY: "not installed"}}
    return Document(layers=layers, **(about | more))


def made_up() -> Document:
    """Numbers that nobody measured, for what is made of documents."""

    def point(rows: int, core: float, library: float, cublas: float, scaled: float) -> Point:
        found = {CORE: measured(core, error=1e-7, ok=True, kernel="mma_sm80, 8 rows"), LIBRARY: measured(library, error=1e-4, ok=True)}
        return Point(
            rows=rows, nbytes=33_000_000, floor_us=9.0, contenders={**found, CUBLAS: measured(cublas), "scaled_mm": measured(scaled)}
        )

    points = (point(1, 13.0, 20.0, 39.0, 36.0), point(16, 16.0, 21.0, 38.0, 25.0), point(4096, 960.0, 800.0, 760.0, 400.0))
    layer = LayerResult(
        name="model.layers.0.mlp.down_proj",
        alike=32,
        weight="uint4, group 128",
        act="bfloat16",
        n=8192,
        k=8192,
        experts=0,
        kernels="mma_sm80 to 32 rows, wgmma_sm90a",
        points=points,
        absent={},
    )
    return document_of(layer)


def test_a_document_keeps_to_its_schema_and_comes_back(tmp_path: Path) -> None:
    document = made_up()
    jsonschema.Draft202012Validator(load_schema("bench")).validate(document.as_dict())
    assert read(json.dumps(document.as_dict())) == document


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "humming-bench"}', json.dumps(made_up().as_dict() | {"format_version": 2})])
def test_what_is_no_document_of_this_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no result of bench|is not read"):
        read(text)


def test_the_table_has_times_and_what_they_come_to() -> None:
    rows = table.rows(made_up().layers[0])
    assert rows[0] == ("1", "13.0", "20.0", "39.0", "36.0", "9.0", "1.44", "3.00", "1.54", "1e-07", "mma_sm80, 8 rows")
    assert table.title(made_up().layers[0]) == "model.layers.0.mlp.down_proj: 8192 x 8192, uint4, group 128; bfloat16, 32 layers"


def test_the_table_says_who_is_absent_and_why() -> None:
    assert "humming-kernels: not measured: not installed" in table.notes(made_up())


# --- Pictures


def test_speed_up_is_over_cublas_and_without_it_the_share_of_the_floor() -> None:
    document = made_up()
    layer = document.layers[0]
    assert plot.base_of(document) == CUBLAS
    assert plot.lines(layer, CUBLAS)[CORE][0] == (1, 3.0)
    assert plot.lines(layer, None)[CORE][0] == (1, 9 / 13)


@pytest.mark.parametrize("suffix", plot.FORMATS)
def test_the_same_document_gives_the_same_picture(suffix: str) -> None:
    pytest.importorskip("matplotlib")
    first, second = (plot.picture(made_up(), suffix) for _ in range(2))
    assert first == second
    if suffix == ".svg":
        text = first.decode()
        assert text.count("<svg") == 1
        for name in (CORE, "humming-kernels", "torch._scaled_mm"):
            assert f"<!-- {name} -->" in text  # matplotlib's own note of a word that it draws as paths
        assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace("http://creativecommons.org", "")


def test_without_matplotlib_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    def no(name: str, *rest: Any, real: Any = builtins.__import__) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no)
    with pytest.raises(plot.MissingExtra, match=r"pip install 'matplotlib>=3.8'"):
        plot.library()


def test_places_without_a_layer_stay_empty() -> None:
    """Four panels in rows of three."""
    pytest.importorskip("matplotlib")
    layer = made_up().layers[0]
    assert plot.picture(document_of(layer, layer, layer, layer), ".svg").decode().count('<g id="axes_') == 4


# ------------------------------------------------------------------ the command
def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from humming_convert.cli.main import run; run()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"})


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(made_up().as_dict()))
    return file


def test_a_document_needs_no_folder(recorded: Path, tmp_path: Path) -> None:
    done = call("bench", "--from", recorded, "--out", tmp_path / "again.json")
    assert done.returncode in (0, 4) and "core" in done.stdout, done.stderr
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(recorded.read_text())


@pytest.mark.parametrize("given", [["out"], ["--m", "16"], ["--layer", "*"], ["--rank", "0"], ["--jobs", "2"], ["out", "--m", "1,2"]])
def test_what_says_what_to_measure_is_refused_beside_a_document(recorded: Path, given: list[str]) -> None:
    done = call("bench", *given, "--from", recorded)
    assert done.returncode == 2 and not done.stdout
    told = " ".join(done.stderr.split())
    assert "measures nothing" in told
    assert all(name in told for name in given if name.startswith("--")) and ("OUT" in told.partition("nothing:")[2]) == (given[0] == "out")


def test_without_a_folder_and_without_a_document_there_is_nothing_to_do() -> None:
    done = call("bench")
    assert done.returncode == 2 and "OUT is missing" in done.stderr


@pytest.mark.parametrize("what", ["nowhere", "folder", "other"])
def test_a_document_that_is_none_is_a_usage_error(what: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").write_text("{}")
    done = call("bench", "--from", tmp_path / what)
    assert done.returncode == 2 and f"--from {tmp_path / what}" in " ".join(done.stderr.split())
