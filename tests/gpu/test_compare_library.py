"""The comparison itself, without a GPU: its random layers, what it counts, and that it fails clearly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert import Refused
from humming_convert.targets.table import TARGETS
from tests.gpu import compare_library
from tests.gpu.compare_library import OUTCOMES, added, compare, describe, ours, run
from tests.gpu.library import LibraryBroken, LibraryRefused, Stored
from tests.gpu.library_cases import make_case

SCRIPT = Path(compare_library.__file__)


class Fake:
    """A library that is ours; `spoil` may change what it gives."""

    version = "0.1.20"

    def __init__(self, spoil: Any = None) -> None:
        self.spoil = spoil

    def make(self, case: dict[str, Any], inputs: dict[str, Any]) -> Any:
        try:
            config, tensors = ours(case, inputs)
        except Refused as error:
            if self.spoil == "takes all":
                return {}, {}
            raise LibraryRefused(str(error)) from error
        if callable(self.spoil):
            self.spoil(config, tensors)
        return config, tensors


def accepted(index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """A case that ours packs."""
    while True:
        case, inputs = make_case(3, index, "0.1.20")
        try:
            ours(case, inputs)
        except Refused:
            index += 1
        else:
            return case, inputs


# ------------------------------------------------------------------ the layers
def test_a_case_is_the_same_every_time_and_differs_from_the_next() -> None:
    (one, a), (again, b), (other, _) = make_case(1, 5, "0.1.20"), make_case(1, 5, "0.1.20"), make_case(1, 6, "0.1.20")
    assert one == again and all(a[role].tobytes() == b[role].tobytes() for role in a)
    assert one != other


def test_cases_are_plain_documents_with_the_keys_of_golden_vectors() -> None:
    case, _ = make_case(1, 0, "0.1.19")
    assert json.loads(json.dumps(case)) == case
    assert {"entry", "sm", "ppu", "compiler", "cubin_patch", "shape_n_stacks", "weight_schema", "input_schema", "convert_e0m"} <= set(case)


@pytest.mark.parametrize("version", ["0.1.19", "0.1.20"])
def test_the_layers_reach_every_target_entry_and_way_of_packing(version: str) -> None:
    targets: set[tuple[int, bool]] = set()
    entries: set[str] = set()
    places: set[str] = set()
    fate: Counter[str] = Counter()
    for index in range(250):
        case, inputs = make_case(2, index, version)
        targets.add((case["sm"], case["ppu"]))
        entries.add(case["entry"])
        try:
            config, _ = ours(case, inputs)
        except Refused:
            fate["refused"] += 1
            continue
        fate["packed"] += 1
        places |= {k for k, v in config.items() if k.startswith("use_") and v}
    assert targets == {(t.sm, t.ppu) for t in TARGETS} and entries == {"vllm", "direct", "humming-layer"}
    assert {"use_raw_weight", "use_flat_weight", "use_packed_k_layout", "use_fused_e8m0_scale", "use_block_scaled_mma"} <= places
    assert fate["packed"] > 2 * fate["refused"] > 20


# ------------------------------------------------------------------ what is counted
def test_equal_bytes_are_equal() -> None:
    result = run(Fake(), "0.1.20", 1, range(30), 60)
    assert result["counts"]["equal"] > 15 and not result["shown"] and result["broken"] is None
    assert sum(result["counts"].values()) == 30 == sum(result["targets"].values())
    assert all(result["counts"][x] == 0 for x in compare_library.FAULTS)


def flip(role: str) -> Any:
    def spoil(_config: dict[str, Any], tensors: dict[str, Stored]) -> None:
        t = tensors[role]
        tensors[role] = Stored(t.dtype, t.shape, bytes([t.data[0] ^ 1]) + t.data[1:])

    return spoil


def renamed(_config: dict[str, Any], tensors: dict[str, Stored]) -> None:
    t = tensors["weight_scale"]
    tensors["weight_scale"] = Stored("X", t.shape, t.data)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (flip("weight"), "weight: 1 of"),
        (flip("weight_scale"), "weight_scale: 1 of"),
        (renamed, "there X"),
        (lambda config, _: config.update(use_raw_weight=not config["use_raw_weight"]), "use_raw_weight"),
        (lambda config, _: config.update(pad_shape_n=1), "pad_shape_n"),
        (lambda _, tensors: tensors.pop("weight_scale"), "only here"),
        (lambda _, tensors: tensors.update(more=tensors["weight"]), "more only there"),
    ],
)
def test_a_difference_of_any_kind_is_found_and_named(spoil: Any, said: str) -> None:
    case, inputs = accepted()
    outcome, why = compare(case, inputs, Fake(spoil))
    assert outcome == "different" and said in why


def test_refusals_of_one_side_are_told_apart() -> None:
    def refuse(_config: dict[str, Any], _tensors: dict[str, Any]) -> None:
        raise LibraryRefused("no")

    case, inputs = accepted()
    assert compare(case, inputs, Fake(refuse)) == ("only the library refuses", "no")
    refused = [c for i in range(80) if (c := make_case(1, i, "0.1.20")) and compare(*c, Fake())[0] == "both refuse"]
    assert refused
    case, inputs = refused[0]
    assert compare(case, inputs, Fake("takes all"))[0] in ("only ours refuses", "ours is stricter")


def test_what_the_library_itself_leaves_undefined_is_not_given_to_it() -> None:
    case, inputs = next(c for i in range(400) if (c := make_case(1, i, "0.1.20")) and _code(*c) == compare_library.UNDEFINED)
    assert compare(case, inputs, None) == ("undefined", "")


def _code(case: dict[str, Any], inputs: dict[str, Any]) -> str:
    try:
        ours(case, inputs)
    except Refused as error:
        return error.findings[0].code
    return ""


def test_a_broken_library_ends_the_run_and_says_where() -> None:
    class Broken(Fake):
        def make(self, case: dict[str, Any], inputs: dict[str, Any]) -> Any:
            raise LibraryBroken("CUDA error")

    result = run(Broken(), "0.1.20", 1, range(10), 60)
    assert "CUDA error" in result["broken"] and sum(result["counts"].values()) < 10


def test_workers_are_added_up() -> None:
    half = [run(Fake(), "0.1.20", 1, range(i, 20, 2), 60) for i in range(2)]
    whole = added(half)
    assert whole["compared"] == 20 and whole["equal"] == sum(r["counts"]["equal"] for r in half)
    assert {x.replace(" ", "_") for x in OUTCOMES} <= set(whole)


def test_a_case_is_described_in_one_line() -> None:
    case, _ = make_case(1, 0, "0.1.20")
    assert case["id"] in describe(case) and "\n" not in describe(case)


# ------------------------------------------------------------------ the script
@pytest.mark.parametrize("arguments", [[], ["--wheels", "nowhere"], ["--library", "0.1.20=nowhere", "--count", "2", "--jobs", "1"]])
def test_without_the_library_it_says_so_and_ends_with_2(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "cannot compare" in done.stderr or json.loads(done.stdout)["broken"]


def test_arrays_are_taken_as_bytes() -> None:
    """Scales that hold integers under a 16-bit float dtype are compared by their bytes, never by value."""
    case, inputs = accepted()
    _, tensors = ours(case, inputs)
    assert all(isinstance(t.data, bytes) and len(t.data) % np.prod(t.shape) == 0 for t in tensors.values())
