"""The demo's own reading of packed bytes against what the library itself packed (recorded vectors, skipped where they are absent)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humming_convert.demo.decode import DTYPES, packed_weight, standard_weight
from humming_convert.demo.run import E8M0_RANGE

READ = {"bfloat16", "float16", "float8e4m3"}


@pytest.fixture
def vectors(shared: Path) -> Path:
    folder = shared / "golden" / "0.1.20"
    if not folder.is_dir():
        pytest.skip("no recorded vectors")
    return folder


def cases(folder: Path, fused: bool) -> Iterator[dict[str, Any]]:
    """Cases of sm90 with types that samples have. fused: the E8M0 ones for 8-bit activations; else those whose numbers packing leaves alone."""
    for line in gzip.decompress((folder / "cases.jsonl.gz").read_bytes()).splitlines():
        case = json.loads(line)
        if case["sm"] != 90 or case["ppu"] or "outputs" not in case:
            continue
        config, schema = case["config"], case["weight_schema"]
        known = config["b_dtype"].startswith("uint") or "e0m" in config["b_dtype"] or config["b_dtype"] in ("float4e2m1", "float8e4m3")
        scales = schema["bs_dtype"] in (None, "float8e8m0", "float8e4m3") and schema["weight_scale_type"] != "tensor"
        # float16 holds neither the range of E8M0 nor the factors of a rewritten row
        clamped = config["bs_dtype"] == "float8e8m0" and config["c_dtype"] == "float16"
        plain = not config["use_int_weight_scale"] and not config["is_fp_zero_point"] and not clamped
        if known and scales and plain and config["use_fused_e8m0_scale"] == fused and config["a_dtype"] in READ:
            yield case


def arrays(file: Path) -> Callable[[str], Any]:
    raw = np.memmap(file, np.uint8, "r")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    head = json.loads(raw[8 : 8 + length].tobytes())

    def read(key: str) -> Any:
        start, stop = (8 + length + x for x in head[key]["data_offsets"])
        return np.frombuffer(raw[start:stop].tobytes(), DTYPES[head[key]["dtype"]]).reshape(head[key]["shape"])

    return read


def rewritten(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """One factor a part, or scales of another width: the library changed these numbers before it packed them (layouts.md 2, S0)."""
    if "weight_scale_2" not in before:
        return bool(before["weight_scale"].dtype != after["weight_scale"].dtype)
    roles = ("weight_scale", "weight_scale_2")
    return any(r not in after or before[r].dtype != after[r].dtype or before[r].size > after[r].size for r in roles)


def too_far_apart(before: dict[str, Any]) -> bool:
    """E8M0 scales 128 powers of two apart: the library's own result is garbage there (layouts.md 2, S5)."""
    scale = before["weight_scale"]
    return bool(scale.dtype == DTYPES["F8_E8M0"] and np.ptp(scale.view(np.uint8).astype(int)) >= 128)


def both(vectors: Path, fused: bool) -> Iterator[tuple[str, Any, Any, Any]]:
    """(case, weight that went in, weight decoded from the library's bytes, largest scale of each row), an expert at a time."""
    read = arrays(vectors / "blobs.safetensors")
    for case in cases(vectors, fused):
        before = {role: read(key) for role, key in case["inputs"].items()}
        after = {role: read(key) for role, key in case["outputs"].items()}
        if rewritten(before, after) or too_far_apart(before):
            continue
        schema, n, k, experts = case["weight_schema"], case["shape_n"], case["shape_k"], case["num_experts"]
        form = {
            "dtype": schema["b_dtype"],
            "scale_dtype": schema["bs_dtype"] or case["param_dtype"],
            "zero_point": "int" if schema["has_zero_point"] else "none",
        }
        for e in range(experts or 1):
            mine, theirs = ({r: x[e] if experts else x for r, x in t.items()} for t in (before, after))
            want, _ = standard_weight(mine, form, n, k)
            got, largest = packed_weight(theirs, case["config"], case["flags"])
            yield case["id"], want, got[:n, :k], largest[:n]


def test_packed_weights_of_the_library_decode_to_what_went_in(vectors: Path) -> None:
    seen = set()
    for name, want, got, _ in both(vectors, fused=False):
        assert np.array_equal(got, want, equal_nan=True), name
        seen.add(name)
    assert len(seen) > 200


def test_rewritten_e8m0_weights_of_the_library_stay_within_half_a_step(vectors: Path) -> None:
    seen = set()
    for name, want, got, largest in both(vectors, fused=True):
        assert (np.abs(got - want) <= 0.5 * 2.0**-E8M0_RANGE * largest).all(), name
        seen.add(name)
    assert len(seen) >= 20
