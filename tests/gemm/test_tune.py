"""Tuning: what is measured, what may win, what the folder keeps, and when a loader takes it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import emulation
import jsonschema
import numpy as np
import pytest
from cases import Case, Spec, fast_specs
from emulated_block import EmulatedBlocks
from fake_device import FakeDevice
from fake_graphs import FakeGraphs
from msgspec import structs
from narrow_layers import LONG
from needs import needs_nvrtc

import humming_convert as hc
from humming_convert import api
from humming_convert.findings import Refused
from humming_convert.gemm import load, mma_sm80, shipped, tune, tunings
from humming_convert.gemm.check import as_float, random_rows
from humming_convert.gemm.families import ByRows, Fixed, Tuned, at_rows, choose
from humming_convert.gemm.load import Loaded
from humming_convert.gemm.multiplier import Multiplier
from humming_convert.gemm.nvrtc import CompileError
from humming_convert.gemm.parts import ROOM, bucket, sum_bytes
from humming_convert.gemm.reference import Reference
from humming_convert.gemm.rewrite import put_file
from humming_convert.gemm.sampled import Rows
from humming_convert.gemm.source import kernel_source
from humming_convert.gemm.stored import stored_layers
from humming_convert.gemm.timing import Times
from humming_convert.gemm.tune import Tuner, differs
from humming_convert.gemm.tunings import bounds_of, families_of, fields_of, measured_at, offered
from humming_convert.manifest import tuning as files
from humming_convert.manifest.schema import load_schema
from humming_convert.manifest.tuning import TuningFile, decode, encode
from tests.samples import sample

needs_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")
FILE = "humming_tuning-sm_90a.json"
HOPPER = [s for s in (*fast_specs()["wgmma_sm90a"], *fast_specs()["mma_sm80"]) if s.sm in (80, 90)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    hc.convert(hc.plan(sample("gptq-4bit-v1-sym").write(folder), target="sm90", act="bf16"), out=folder / "out")
    return folder / "out"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def case_of(spec: Spec) -> Case:
    recipe = spec.recipe()
    assert recipe is not None, spec.name
    return Case.of(spec, recipe, 90)


# --- Candidates


@pytest.mark.parametrize("spec", HOPPER, ids=lambda s: s.name)
def test_candidates_begin_with_the_heuristics_and_have_room_for_their_parts(spec: Spec) -> None:
    case = case_of(spec)
    kernels = choose(case.layer, case.compute, 90).kernels
    assert not isinstance(kernels, Tuned)
    fitted = kernels.fitted(case.layer, case.compute)
    for family in families_of(kernels):
        for rows in family.ROWS:
            found = family.candidates(case.layer, fitted, rows)
            assert found[0] == family.tuning(case.layer, fitted, rows)
            assert len(set(found)) == len(found)
            for t in found:
                tiles = -(-case.layer.shape_k // t.tile_k)
                each = -(-tiles // t.parts)
                assert (t.parts - 1) * each < tiles, "a part would be empty"
                across = -(-case.layer.n // family.tile_n(t)) * -(-bucket(rows, t.tile_m) // t.tile_m)
                assert t.parts == 1 or across * t.parts * sum_bytes(family.tile_n(t), t.tile_m) <= ROOM
                assert t.parts == 1 or not case.layer.experts


def test_the_open_range_has_no_parts() -> None:
    case = case_of(HOPPER[0])
    kernels = choose(case.layer, case.compute, 90).kernels
    assert isinstance(kernels, ByRows)
    found = offered(kernels, case.layer, kernels.fitted(case.layer, case.compute), measured_at(kernels)[-1], beyond=True)
    assert {f.chosen.parts for f in found} == {1}
    assert {f.NAME for f in found} == {"mma_sm80", "wgmma_sm90a"}


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="emulated_block.hpp is for Linux")
def test_every_candidate_multiplies_right_and_equal_orders_of_sums_give_equal_bits(tmp_path: Path) -> None:
    """The kernels themselves, on a CPU; K is long enough for parts."""
    spec = LONG["groups of 16 bits"]
    case, packed = case_of(spec), spec.packed()
    fitted = mma_sm80.fitted(case.layer, case.compute)
    found = [Fixed(mma_sm80, t) for t in mma_sm80.candidates(case.layer, fitted, 12)]  # type: ignore[arg-type]
    assert len({f.chosen.parts for f in found}) > 1 and len({f.chosen.tile_m for f in found}) > 1
    device = EmulatedBlocks(tmp_path, [kernel_source(f.NAME, case.layer, fitted, f.chosen) for f in found])
    x = device.put(random_rows(12, case.layer.k, case.layer.half, np.random.default_rng(3)))
    given = as_float(x, case.layer.half).astype(np.float64)
    w = Reference(case.recipe.config.as_dict(), case.recipe.pair.target, case.recipe.pair.env, packed.tensors).weights()
    want, size = given @ w.T, np.abs(given) @ np.abs(w).T
    by_order: dict[Any, Any] = {}
    for fixed in found:
        y = Multiplier.of(device, case.layer, fitted, packed.tensors, None, fixed)(x)
        assert (np.abs(y - want) <= 2.0**-19 * size).all(), fixed
        np.testing.assert_array_equal(y, by_order.setdefault(tune.order_of(fixed), y))


# --- Measuring


class Scripted(Tuner):
    """Times by what is measured instead of by a clock."""

    script: Any = staticmethod(lambda fixed: 10.0)
    wrong: Any = staticmethod(lambda fixed: False)

    def _time(self, copies: Any, kernels: Fixed, x: Rows, y: Any) -> Times:
        us = float(self.script(kernels))
        return Times(us, us, us)

    def _results(self, y: Any) -> Any:
        out = super()._results(y)
        if self.wrong(self.now):
            out = out.copy()
            out[0, 0] ^= 0x4000
        return out

    def _run(self, copies: Any, kernels: Fixed, x: Rows, y: Any) -> None:
        self.now = kernels
        super()._run(copies, kernels, x, y)


def tuned_by(folder: Path, tmp_path: Path, script: Any, wrong: Any = lambda fixed: False) -> tuple[Scripted, tune.LayerFound, Loaded]:
    """The folder's first layer."""
    device = FakeDevice(tmp_path / "device")
    loaded = Loaded(device, {s.name: s for s in stored_layers(folder)})
    stored = next(iter(loaded.stored.values()))
    tuner = Scripted(device, FakeGraphs(), cache_bytes=1 << 16)
    tuner.script, tuner.wrong = script, wrong
    one = loaded[stored.name]
    assert not isinstance(one.choice.kernels, Tuned)
    return tuner, tuner.layer(stored, one.multiplier, one.choice.kernels, 1), loaded


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is compiled, few rows are multiplied."""
    (tmp_path / "device").mkdir()
    monkeypatch.setattr(tune, "build_each", lambda cache, wanted, jobs: [tmp_path for _ in wanted])
    real = tune.random_activations
    monkeypatch.setattr(tune, "random_activations", lambda multiplier, m, rng: real(multiplier, min(m, 40), rng))


def half_as_many_parts(fixed: Fixed) -> float:
    return 5.0 if fixed.chosen.parts == 1 and fixed.NAME == "mma_sm80" else 10.0


@needs_compiler
@pytest.mark.usefixtures("quiet")
def test_what_the_gpu_has_no_shared_memory_for_is_not_measured(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: set[int] = set()

    def script(fixed: Fixed) -> float:
        measured.add(fixed.chosen.shared)
        return 10.0

    tuned_by(folder, tmp_path, script)
    all_of_them, room = max(measured), sorted(measured)[len(measured) // 2]
    measured.clear()
    monkeypatch.setattr(FakeDevice, "shared_most", room)
    (tmp_path / "less" / "device").mkdir(parents=True)
    _, found, _ = tuned_by(folder, tmp_path / "less", script)
    chosen = {r.winner.chosen.shared for r in found.ranges}  # the heuristics', which are measured whatever they want
    assert max(measured - chosen) <= room < all_of_them


@needs_compiler
@pytest.mark.usefixtures("quiet")
def test_a_candidate_without_a_kernel_is_named_and_left_out_and_the_heuristics_choice_has_to_have_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: set[int] = set()

    def script(fixed: Fixed) -> float:
        measured.add(fixed.chosen.parts)
        return 10.0

    def fail(parts: int) -> Any:
        def build(cache: Any, wanted: Any, jobs: Any) -> list[Any]:
            return [CompileError("no registers") if f"int parts = {parts};" in s.generated else tmp_path for s, _ in wanted]

        return build

    tuned_by(folder, tmp_path, script)
    few, many = min(measured), max(measured)
    assert few < many
    measured.clear()
    (tmp_path / "less" / "device").mkdir(parents=True)
    monkeypatch.setattr(tune, "build_each", fail(many))
    tuner, _, _ = tuned_by(folder, tmp_path / "less", script)
    assert (
        many not in measured
        and {f.code for f in tuner.findings} == {"tune-no-kernel"}
        and all("no registers" in f.message for f in tuner.findings)
    )
    (tmp_path / "none" / "device").mkdir(parents=True)
    monkeypatch.setattr(tune, "build_each", fail(few))
    with pytest.raises(CompileError, match="no registers"):
        tuned_by(folder, tmp_path / "none", script)


@needs_compiler
@pytest.mark.usefixtures("quiet")
def test_the_quickest_wins_where_it_is_clearly_quicker(folder: Path, tmp_path: Path) -> None:
    _, found, _ = tuned_by(folder, tmp_path, half_as_many_parts)
    assert {(r.winner.NAME, r.winner.chosen.parts) for r in found.ranges} == {("mma_sm80", 1)}
    tied = tuned_by_again(folder, tmp_path, lambda fixed: 9.9 if fixed.chosen.parts == 1 else 10.0)
    assert not any(r.changed for r in tied.ranges)


def tuned_by_again(folder: Path, tmp_path: Path, script: Any) -> tune.LayerFound:
    other = tmp_path / "again"
    (other / "device").mkdir(parents=True)
    return tuned_by(folder, other, script)[1]


@needs_compiler
@pytest.mark.usefixtures("quiet")
def test_a_candidate_with_other_results_never_wins_and_is_named(folder: Path, tmp_path: Path) -> None:
    tuner, found, _ = tuned_by(
        folder, tmp_path, half_as_many_parts, wrong=lambda fixed: fixed.chosen.parts == 1 and fixed.chosen.tile_m == 8
    )
    first = found.ranges[0]
    assert first.winner.chosen.tile_m != 8 or not first.changed
    assert {f.code for f in tuner.findings} == {"tune-wrong-result"}


@needs_compiler
@pytest.mark.usefixtures("quiet")
def test_heuristics_that_are_wrong_tune_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "tolerance", lambda family, layer, compute: (0.0, 0.0))
    tuner, found, _ = tuned_by(folder, tmp_path, half_as_many_parts)
    assert not any(r.changed for r in found.ranges)
    assert len(tuner.findings) == len(found.ranges)


@needs_compiler
def test_one_other_bit_is_seen_where_sums_have_one_order_and_rounding_is_not_an_error(folder: Path, tmp_path: Path) -> None:
    loaded = Loaded(FakeDevice(tmp_path), {s.name: s for s in stored_layers(folder)})
    multiplier = next(iter(loaded.values())).multiplier
    by = (at_rows(multiplier.family, 1), at_rows(multiplier.family, 1))
    want = np.full((4, multiplier.layer.n), 0x3C00, np.uint16)
    assert differs(want, want.copy(), multiplier, by, same_order=True) is None
    near, far = want.copy(), want.copy()
    near[1, 2] ^= 1
    far[1, 2] ^= 0x4000
    assert "not the same bits" in str(differs(want, near, multiplier, by, same_order=True))
    assert differs(want, near, multiplier, by, same_order=False) is None
    assert "1 of" in str(differs(want, far, multiplier, by, same_order=False))


# --- The file


def entry_of(folder: Path, change: Any = lambda chosen: chosen) -> tuple[files.TunedLayer, Any]:
    """An entry for the folder's first layer, each range's second candidate where there is one; and the layer's family."""
    stored = next(iter(stored_layers(folder)))
    layer, compute, choice = Loaded(FakeDevice(folder.parent), {}).configured(stored)
    kernels = choice.kernels
    assert not isinstance(kernels, Tuned)
    fitted = kernels.fitted(layer, compute)
    bounds = (*bounds_of(kernels), None)
    ranges = []
    for rows, up_to in zip(measured_at(kernels), bounds, strict=True):
        every = offered(kernels, layer, fitted, rows, beyond=up_to is None)
        one = every[-1]
        ranges.append(files.TunedRange(up_to=up_to, family=one.NAME, tuning=change(fields_of(one.chosen))))
    return files.TunedLayer(key=tunings.key_of(layer, fitted), name=stored.name, ranges=tuple(ranges)), kernels


def device_of(*layers: files.TunedLayer, **more: Any) -> files.TunedDevice:
    about: dict[str, Any] = {"name": "emulated", "sm": 90, "compiler": "13.0", "templates": tunings.templates_digest()}
    return files.TunedDevice(layers=layers, **(about | more))


def put(folder: Path, *devices: files.TunedDevice) -> Path:
    path = folder / FILE
    put_file(path, encode(TuningFile(arch="sm_90a", devices=devices)))
    return path


def test_a_file_comes_back_and_the_same_winners_give_the_same_bytes(folder: Path) -> None:
    entry, _ = entry_of(folder)
    file = TuningFile(arch="sm_90a", devices=(device_of(entry),))
    assert decode(encode(file), FILE) == file
    other = file.with_device(device_of(entry, name="another"))
    assert encode(other.with_device(device_of(entry))) == encode(other)
    jsonschema.Draft202012Validator(load_schema("tuning")).validate(json.loads(encode(other)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d | {"format": "other"}, "is not read"),
        (lambda d: d | {"arch": "sm_80"}, "another architecture"),
        (lambda d: d | {"date": 1}, "no tuning file"),
        (lambda d: {**d, "devices": [{**d["devices"][0], "layers": [{**d["devices"][0]["layers"][0], "ranges": []}]}]}, "do not grow"),
    ],
)
def test_what_is_no_tuning_file_says_why(folder: Path, change: Any, said: str) -> None:
    entry, _ = entry_of(folder)
    document = json.loads(encode(TuningFile(arch="sm_90a", devices=(device_of(entry),))))
    with pytest.raises(ValueError, match=said):
        decode(json.dumps(change(document)).encode(), FILE)


def test_verify_takes_the_file_and_finds_a_damaged_one(folder: Path) -> None:
    entry, _ = entry_of(folder)
    path = put(folder, device_of(entry))
    assert not api.verify(folder).failed
    path.write_text("{}")
    put_file(path, path.read_bytes())
    assert [f.code for f in api.verify(folder).findings] == ["tuning-damaged"]


# --- Loading


def loaded_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setattr(load, "open_device", lambda index=None: FakeDevice(folder.parent))
    return load.load_folder(folder)


def test_a_loader_takes_tunings_of_its_gpu_and_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = entry_of(folder)
    put(folder, device_of(entry))
    loaded = loaded_from(folder, monkeypatch)
    assert loaded.tunings.words == "tuned on emulated with NVRTC 13.0"
    layer, compute, choice = loaded.configured(loaded.stored[entry.name])
    assert isinstance(choice.kernels, Tuned) and choice.kernels.NAME.endswith(", tuned")
    fitted = choice.kernels.fitted(layer, compute)
    for r in entry.ranges:
        rows = r.up_to or 10**6
        family = at_rows(choice.kernels, rows)
        assert (family.NAME, fields_of(family.tuning(layer, fitted, rows))) == (r.family, r.tuning)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"name": "NVIDIA H100"}, "tuned on NVIDIA H100, this is emulated"),
        ({"templates": "xxh3:" + "0" * 32}, "kernels of another version"),
        ({"sm": 89}, "of sm_89"),
    ],
)
def test_other_gpus_and_kernels_leave_the_heuristics_and_say_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, more: dict[str, Any], said: str
) -> None:
    entry, heuristics = entry_of(folder)
    put(folder, device_of(entry, **more))
    loaded = loaded_from(folder, monkeypatch)
    assert said in caplog.text
    assert loaded.tunings.words.startswith("heuristics: ") and said in loaded.tunings.words
    assert loaded.configured(loaded.stored[entry.name])[2].kernels == heuristics


def test_doctor_says_which_tunings_are_taken_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("humming_convert.gemm.device.open_device", lambda *rest, **more: FakeDevice(folder.parent))
    assert "tunings" not in {r.what for r in api.doctor(folder)}
    entry, _ = entry_of(folder)
    put(folder, device_of(entry, name="NVIDIA H100"))
    row = next(r for r in api.doctor(folder) if r.what == "tunings")
    assert row.found == "heuristics: tuned on NVIDIA H100, this is emulated"


def test_a_damaged_file_never_makes_loading_fail(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert not loaded_from(folder, monkeypatch).tunings.idle and not caplog.text  # there is none
    (folder / FILE).write_text("{")
    assert "is not readable" in loaded_from(folder, monkeypatch).tunings.words and "is not readable" in caplog.text


def test_a_tuning_that_is_no_candidate_is_never_launched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry, heuristics = entry_of(folder, change=lambda fields: fields | {"threads": 1024})
    put(folder, device_of(entry))
    loaded = loaded_from(folder, monkeypatch)
    assert loaded.configured(loaded.stored[entry.name])[2].kernels == heuristics
    assert loaded.tunings.ignored == [entry.name] and "none that this version would measure" in caplog.text


def test_the_same_tunings_are_checked_whatever_the_type_of_results_is(folder: Path) -> None:
    """`verify --gpu` multiplies into float32, loading into the model dtype."""
    stored = next(iter(stored_layers(folder)))
    layer, compute, _ = Loaded(FakeDevice(folder.parent), {}).configured(stored)
    keys = {
        tunings.key_of(layer, replaced(compute, output=output, task=task)) for output in ("f32", "bf16") for task in ("dense", "masked")
    }
    assert len(keys) == 1


# --- Shipped kernels


def test_kernels_of_every_tuning_are_built(folder: Path) -> None:
    before = set(shipped.wanted_kernels(folder, 90).kernels)
    entry, _ = entry_of(folder)
    put(folder, device_of(entry), device_of(entry, name="other", templates="xxh3:" + "0" * 32))
    after = set(shipped.wanted_kernels(folder, 90).kernels)
    assert before < after


def test_no_kernels_are_built_beside_a_damaged_file(folder: Path) -> None:
    (folder / FILE).write_text("{")
    with pytest.raises(Refused, match="no tuning file"):
        shipped.wanted_kernels(folder, 90)


@needs_nvrtc
def test_a_second_run_keeps_what_it_did_not_measure(folder: Path, tmp_path: Path) -> None:
    entry, kernels = entry_of(folder)
    other = structs.replace(entry, key="xxh3:" + "1" * 32)
    put(folder, device_of(other, entry))
    stored = next(iter(stored_layers(folder)))
    layer, compute, _ = Loaded(FakeDevice(tmp_path), {}).configured(stored)
    family = families_of(kernels)[0]
    winner = Fixed(family, family.tuning(layer, kernels.fitted(layer, compute), 8))
    again = tune.LayerFound(entry.name, 1, entry.key, [tune.RangeFound(None, 8, winner, 2.0, 1.0, 1, 0)])
    found = files.read(tune.write(folder, FakeDevice(tmp_path), [again])).device("emulated")
    assert found is not None
    assert {x.key: len(x.ranges) for x in found.layers} == {entry.key: 1, other.key: len(entry.ranges)}
    assert not api.verify(folder).failed


@needs_nvrtc
def test_what_was_found_with_other_kernels_is_not_kept(folder: Path, tmp_path: Path) -> None:
    entry, _ = entry_of(folder)
    put(folder, device_of(entry, templates="xxh3:" + "0" * 32), device_of(entry, name="another"))
    found = files.read(tune.write(folder, FakeDevice(tmp_path), []))
    assert [(d.name, len(d.layers)) for d in found.devices] == [("another", 1), ("emulated", 0)]
