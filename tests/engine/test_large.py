"""Tensors of more than 2^31 elements and files of more than 2^32 bytes: holes stand in for the data, so that only the places are large."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from humming_convert import api
from humming_convert.checkpoint.reading import reader
from humming_convert.checkpoint.tensors import TensorView
from humming_convert.demo.models import Sample
from humming_convert.engine.output import OutputWriter, read_into
from humming_convert.layouts.address import addresses
from humming_convert.plan.types import Plan
from tests.samples import sample

FAR = (1 << 32) + 12345  # a byte no 32-bit number reaches


def test_bytes_beyond_4_gib_of_an_output_file_are_written_where_they_belong(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path / "f", FAR + 100)
    writer.write(memoryview(b"x" * 100), FAR)
    writer.close()
    fd, back = os.open(tmp_path / "f", os.O_RDONLY), bytearray(101)
    read_into(fd, memoryview(back), FAR - 1, tmp_path / "f")
    os.close(fd)
    assert back == b"\0" + b"x" * 100
    assert (tmp_path / "f").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("io", ["mmap", "read"])
def test_tensors_beyond_4_gib_of_a_source_file_are_read_where_they_stand(tmp_path: Path, io: str) -> None:
    path = tmp_path / "f"
    with open(path, "wb") as f:
        f.truncate(FAR + 400)
        f.seek(FAR)
        f.write(np.arange(100, dtype="<i4").tobytes())
    view = TensorView(name="t", file=path, dtype="I32", shape=(100,), offset=FAR, nbytes=400)
    assert np.array_equal(reader(io)(view), np.arange(100))  # type: ignore[arg-type]


def sparse(folder: Path, n: int, k: int) -> Path:
    """A GPTQ checkpoint whose one quantized layer is n x k: all codes 0 but for the last stored word of every 4096th column."""
    made: Sample = sample("gptq-4bit-v1-sym")
    model = made.write(folder)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"]["group_size"] = 128
    (model / "config.json").write_text(json.dumps(config))
    name, groups = "tower.large", k // 128
    shapes = {"qweight": ("I32", [k // 8, n]), "qzeros": ("I32", [groups, n // 8]), "scales": ("F16", [groups, n])}
    header, at = {}, 0
    for leaf, (dtype, shape) in shapes.items():
        nbytes = shape[0] * shape[1] * (4 if dtype == "I32" else 2)
        header[f"{name}.{leaf}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    with open(model / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        start = 8 + len(text)
        f.truncate(start + at)
        last = np.zeros(n, "<u4")
        last[::4096] = 0x76543210
        f.seek(start + header[f"{name}.qweight"]["data_offsets"][1] - 4 * n)
        f.write(last.tobytes())
        f.write(np.full(groups * (n // 8), 0x77777777, "<u4").tobytes())
        f.write(np.full(groups * n, 0.01, "<f2").tobytes())
    return model


def test_a_plan_of_more_than_2_to_the_31_elements_places_every_byte(tmp_path: Path) -> None:
    plan = api.plan(sparse(tmp_path, 1 << 14, 1 << 18), target="sm90", act="bf16", headers_only=True)
    weight = plan.layers[0].outputs["weight"]
    assert weight.nbytes == 1 << 31 and plan.files[-1].nbytes > 1 << 31


@pytest.mark.slow
def test_a_layer_of_more_than_2_to_the_31_elements_is_packed_to_its_last_code(tmp_path: Path) -> None:
    n, k = (1 << 15) + 256, 1 << 16
    assert n * k > 1 << 31
    model = sparse(tmp_path, n, k)
    plan: Plan = api.plan(model, target="sm90", act="bf16")
    api.convert(plan, out=tmp_path / "out")
    layer = plan.layers[0]
    assert layer.recipe is not None
    weight = layer.outputs["weight"]
    words = np.memmap(tmp_path / "out" / weight.file, "<u4", "r", weight.offset, (weight.nbytes // 4,))
    rows, columns = np.arange(0, n, 4096), np.arange(k - 8, k)
    at, bit = addresses(layer.recipe.weight, np.repeat(rows, 8), np.tile(columns, len(rows)))
    values = ((words[at] >> bit.astype(np.uint32) & 1) << np.arange(4, dtype=np.uint32)).sum(axis=1).reshape(len(rows), 8)
    assert (values == values[0]).all() and len(set(values[0].tolist())) == 8
    assert int(at.max()) * 32 > 1 << 31
