"""Small GPTQ, AWQ and Marlin folders from known codes, and layers back to codes, for the tests of the readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.checkpoint import normalise_method, open_checkpoint
from humming_convert.checkpoint.tensors import NAMES, read_mapped
from humming_convert.findings import Finding, Findings
from humming_convert.formats.registry import read_layers
from humming_convert.formats.source import ReadOptions, Source
from humming_convert.standard.expr import Context
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.packing import stream_pack, stream_unpack
from humming_convert.standard.packing_gptq import awq_fast_pack, awq_pack, marlin_order, marlin_pack, planar_pack

Array = NDArray[Any]
MODULE = "model.layers.0.mlp.up_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


@dataclass(frozen=True)
class Matrix:
    """What goes in: codes [n, k], scales [n, groups], zeros [n, groups]."""

    codes: Array
    scales: Array
    zeros: Array
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return int(n), int(k)


def matrix(bits: int = 4, n: int = 64, k: int = 128, groups: int = 4, *, sym: bool = True, low: int = 0, seed: int = 0) -> Matrix:
    """Random codes over the full range. low: the smallest zero point of an asymmetric one; codes are centred on it as a quantizer's are."""
    r = np.random.default_rng(seed)
    top, mid = 1 << bits, 1 << (bits - 1)
    zeros = np.full((n, groups), mid, np.uint8) if sym else r.integers(low, top, (n, groups), np.uint8)
    codes = r.integers(0, top, (n, k), np.uint8)
    if not sym:  # mean code = mean zero point, so that d tells v1 from v2
        spread = np.clip(np.repeat(zeros.astype(int), -(-k // groups), 1)[:, :k] + r.integers(-1, 2, (n, k)), 0, top - 1)
        codes = spread.astype(np.uint8)
    return Matrix(codes, r.uniform(0.001, 0.1, (n, groups)).astype(np.float16), zeros, bits)


def gptq(m: Matrix, version: str = "v1", *, planar: bool = False, g_idx: Array | None = None) -> dict[str, Array]:
    """qweight, qzeros, scales as a quantizer that works field by field writes them."""
    pack = (lambda c: planar_pack(c, m.bits)) if planar else (lambda c: stream_pack(c, m.bits))
    stored = m.zeros if version == "v2" else (m.zeros - np.uint8(1)) & np.uint8((1 << m.bits) - 1)
    out = {
        "qweight": np.ascontiguousarray(pack(m.codes).T),
        "qzeros": pack(np.ascontiguousarray(stored.T)),
        "scales": np.ascontiguousarray(m.scales.T),
    }
    return out if g_idx is None else {**out, "g_idx": g_idx.astype(np.int32)}


def awq(m: Matrix) -> dict[str, Array]:
    pack = awq_pack if m.bits == 4 else (lambda c: stream_pack(c, m.bits))
    return {
        "qweight": pack(np.ascontiguousarray(m.codes.T)),
        "qzeros": pack(np.ascontiguousarray(m.zeros.T)),
        "scales": np.ascontiguousarray(m.scales.T),
    }


def padded(x: Array, width: int) -> Array:
    return np.concatenate([x, np.zeros((x.shape[0], width - x.shape[1]), x.dtype)], 1)


def gemv(m: Matrix, words: int) -> dict[str, Array]:
    """words: zw of formats.md 3.3."""
    return {
        "qweight": stream_pack(m.codes, 4),
        "qzeros": stream_pack(padded(m.zeros, 8 * words), 4),
        "scales": padded(m.scales, 8 * words),
    }


def fast(m: Matrix, words: int) -> dict[str, Array]:
    scaled = -(m.scales.astype(np.float32) * m.zeros).astype(np.float16)
    return {
        "qweight": awq_fast_pack(m.codes),
        "qzeros": np.ascontiguousarray(padded(scaled, 8 * words).T),
        "scales": np.ascontiguousarray(padded(m.scales, 8 * words).T),
    }


def marlin(m: Matrix, names: tuple[str, str] = ("qweight", "scales")) -> dict[str, Array]:
    assert marlin_order().shape == (1024,)
    rows = np.ascontiguousarray(m.scales.T)
    if m.scales.shape[1] == 1:
        order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    else:
        order = [i + 8 * j for i in range(8) for j in range(8)]
    return {names[0]: marlin_pack(m.codes), names[1]: rows.reshape(-1, len(order))[:, order].reshape(rows.shape)}


def modules(**tensors: dict[str, Array]) -> dict[str, Array]:
    """Keyword: last part of the module's name."""
    return {f"model.layers.0.mlp.{name}.{suffix}": x for name, t in tensors.items() for suffix, x in t.items()}


def folder(
    path: Path, tensors: Mapping[str, Array], quant: Mapping[str, Any] | None, *, side: Mapping[str, Any] | None = None, **config: Any
) -> Path:
    """A checkpoint folder. side: quantize_config.json; further keywords: config.json."""
    header, body = {}, b""
    for name, x in tensors.items():
        raw = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    head = json.dumps(header).encode()
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
    model = {"model_type": "llama", "dtype": "float16", **config}
    (path / "config.json").write_text(json.dumps({**model, "quantization_config": dict(quant)} if quant is not None else model))
    if side is not None:
        (path / "quantize_config.json").write_text(json.dumps(dict(side)))
    return path


@dataclass(frozen=True)
class Reading:
    """What was read: layers by name, findings, and a way to look into layers."""

    layers: dict[str, StandardLayer]
    findings: Findings
    context: Context
    passed: tuple[str, ...]

    def found(self, code: str) -> Finding:
        """The first finding of that code."""
        hits = [f for f in self.findings if f.code == code]
        assert hits, f"{code} is not among {[str(f) for f in self.findings]}"
        return hits[0]

    def codes(self, layer: str = MODULE) -> Array:
        x = self.layers[layer]
        return stream_unpack(x.tensors["weight"].evaluate(self.context), x.form.number.bits, x.k)

    def zeros(self, layer: str = MODULE) -> Array:
        x = self.layers[layer]
        return stream_unpack(np.ascontiguousarray(x.tensors["zero_point"].evaluate(self.context).T), x.form.number.bits, x.n).T

    def value(self, role: str, layer: str = MODULE) -> Array:
        return self.layers[layer].tensors[role].evaluate(self.context)

    def holds(self, m: Matrix, layer: str = MODULE) -> None:
        """Codes, scales and zero points are those of m, group by group."""
        x = self.layers[layer]
        group = x.form.scale.k or x.k
        old = x.k // m.scales.shape[1] if x.k % m.scales.shape[1] == 0 else 0
        column = np.arange(x.k // group) * group // old if old else None
        np.testing.assert_array_equal(self.codes(layer), m.codes)
        assert column is not None
        np.testing.assert_array_equal(self.value("weight_scale", layer), m.scales[:, column])
        if x.form.zero_point == "int":
            np.testing.assert_array_equal(self.zeros(layer), m.zeros[:, column])
        else:
            assert "zero_point" not in x.tensors
            assert (m.zeros == 1 << (m.bits - 1)).all()


def read(path: Path, *, headers_only: bool = False, **options: Any) -> Reading:
    """Opens and reads a folder; the checkpoint itself must be good."""
    findings = Findings()
    checkpoint = open_checkpoint(path, findings)
    assert checkpoint is not None, [str(f) for f in findings]
    primary = checkpoint.sections[0].body if checkpoint.sections else {}
    mapped = read_mapped()

    def refuse(view: Any) -> Array:
        raise AssertionError(f"{view.name} was read though only headers may be")

    source = Source(
        checkpoint=checkpoint,
        method=normalise_method(primary) if primary else "",
        config=primary,
        options=ReadOptions(**options),
        read=refuse if headers_only else mapped,
        findings=findings,
        headers_only=headers_only,
    )
    reading = read_layers(source)
    return Reading(
        {layer.name: layer for layer in reading.layers}, findings, Context(mapped, Meter()), tuple(v.name for v in reading.passthrough)
    )


def reading_of(path: Path, tensors: Mapping[str, Array], quant: Mapping[str, Any] | None = GPTQ, **options: Any) -> Reading:
    """Writes a folder and reads it."""
    return read(folder(path, tensors, quant), **options)
