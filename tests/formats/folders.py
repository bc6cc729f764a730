"""Small folders of every family but GPTQ and AWQ from known numbers, and layers back to numbers, for the tests of the readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from humming_convert.checkpoint import normalise_method, open_checkpoint
from humming_convert.checkpoint.tensors import NAMES, read_mapped
from humming_convert.findings import Finding, Findings
from humming_convert.formats.checks import run_checks
from humming_convert.formats.registry import read_layers
from humming_convert.formats.source import ReadOptions, Source
from humming_convert.standard.expr import Context, Weight
from humming_convert.standard.layer import StandardLayer
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import scale_values, values
from humming_convert.standard.packing_ct import zero_codes

Array = NDArray[Any]
MODULE = "model.layers.0.mlp.up_proj"
BF16, E4M3, E5M2, E8M0 = (
    np.dtype(x) for x in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu)
)
MODEL = {"model_type": "llama", "dtype": "bfloat16"}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def codes(bits: int, n: int = 32, k: int = 128, *lead: int) -> Array:
    """Codes over the whole range."""
    return rng(bits).integers(0, 1 << bits, (*lead, n, k), np.uint8)


def factors(*shape: int, dtype: Any = BF16) -> Array:
    """Scales that differ, exact in bfloat16."""
    return (rng(7).integers(128, 256, shape) / 2.0**12).astype(np.float32).astype(dtype)


def e4m3_codes(n: int = 32, k: int = 128, *lead: int) -> Array:
    """FP8 codes without NaN."""
    c = rng(3).integers(0, 254, (*lead, n, k), np.uint8)
    return (c + (c >= 127)).astype(np.uint8)


def pairs(c: Array) -> Array:
    """4-bit codes two a byte, even columns in the low nibble."""
    return (c[..., 0::2] | c[..., 1::2] << 4).astype(np.uint8)


def named(tensors: Mapping[str, Any], module: str = MODULE) -> dict[str, Array]:
    return {f"{module}.{leaf}": np.asarray(x) for leaf, x in tensors.items() if x is not None}


@dataclass(frozen=True)
class Got:
    """A reading: layers by name, findings, names that are passed through."""

    layers: Mapping[str, StandardLayer]
    findings: Findings
    passed: tuple[str, ...]
    context: Context

    @property
    def layer(self) -> StandardLayer:
        (only,) = self.layers.values()
        return only

    @property
    def codes_found(self) -> list[str]:
        """Codes of the findings, but for `unverified`."""
        return [f.code for f in self.findings if f.code != "unverified-variant"]

    @property
    def unverified(self) -> list[str]:
        """Variants that were read without a real sample at hand."""
        return [f.message.partition(":")[0] for f in self.findings if f.code == "unverified-variant"]

    def value(self, role: str, name: str | None = None) -> Array:
        layer = self.layer if name is None else self.layers[name]
        return layer.tensors[role].evaluate(self.context)

    def codes(self, name: str | None = None, expert: int = 0) -> Array:
        weight = (self.layer if name is None else self.layers[name]).tensors["weight"]
        assert isinstance(weight, Weight)
        return weight.expert_codes(self.context, expert)

    def weight(self, name: str | None = None, expert: int = 0) -> Array:
        """[n, k] float64: what the layer stands for."""
        return dequantized(self.layer if name is None else self.layers[name], self.context, expert)

    def finding(self, code: str) -> Finding:
        found = [f for f in self.findings if f.code == code]
        assert found, f"{code} is not among {[str(f) for f in self.findings]}"
        assert found[0].advice
        return found[0]


def dequantized(layer: StandardLayer, context: Context, expert: int = 0) -> Array:
    """[n, k] float64 of one expert by the formulas of formats.md 0."""

    def value(role: str) -> Array:
        out = layer.tensors[role].evaluate(context)
        return out if layer.experts is None else out[expert]

    weight, form = layer.tensors["weight"], layer.form
    assert isinstance(weight, Weight)
    found = weight.expert_codes(context, expert)
    if form.zero_point == "int":
        zeros = zero_codes(value("zero_point"), form.number.bits, layer.n).astype(float)
        out = found - np.repeat(zeros, layer.k // zeros.shape[1], 1)
    else:
        out = values(form.number.name)[found]
    scale = scale_values(value("weight_scale"), form.scale.dtype)
    if form.scale.kind == "tensor":
        out = out * scale.reshape(-1)[0]
    else:
        full = np.repeat(np.repeat(scale, form.scale.n or 1, 0), form.scale.k or layer.k, 1)
        assert full.shape == out.shape
        out = out * full
    if form.scale_2 != "none":
        out = out * np.asarray(value("weight_scale_2"), np.float64).reshape(-1, 1)
    return np.asarray(out)


def folder(
    path: Path, quantization: Mapping[str, Any] | None, tensors: Mapping[str, Array], *, side: Mapping[str, Any] | None = None, **model: Any
) -> Path:
    """A folder at `path`. side: name -> JSON of further files; model: keys of config.json."""
    path.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {}
    at = 0
    for name, x in tensors.items():
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    data = b"".join(np.ascontiguousarray(x).tobytes() for x in tensors.values())
    (path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    config = {**MODEL, **model, **({} if quantization is None else {"quantization_config": quantization})}
    for name, body in {"config.json": config, **(side or {})}.items():
        (path / name).write_text(json.dumps(body))
    return path


def read_folder(path: Path, *, headers_only: bool = False, **options: Any) -> Got:
    """The layers of a folder, their numbers checked."""
    findings = Findings()
    checkpoint = open_checkpoint(path, findings)
    assert checkpoint is not None, [str(f) for f in findings]
    read = read_mapped()
    body = checkpoint.sections[0].body if checkpoint.sections else {}
    source = Source(
        checkpoint=checkpoint,
        method=normalise_method(body) if body else "",
        config=body,
        options=ReadOptions(**options),
        read=read,
        findings=findings,
        headers_only=headers_only,
    )
    reading = read_layers(source)
    if not headers_only:
        run_checks([c for layer in reading.layers for c in layer.checks], read, findings)
    return Got({x.name: x for x in reading.layers}, findings, tuple(v.name for v in reading.passthrough), Context(read, Meter()))


def reading_of(path: Path, quantization: Mapping[str, Any] | None, tensors: Mapping[str, Array], **more: Any) -> Got:
    """Writes a folder and reads it. more: options of reading, `headers_only`, `side`, and keys of config.json."""
    options = {k: more.pop(k) for k in [*ReadOptions.__struct_fields__, "headers_only"] if k in more}
    return read_folder(folder(path, quantization, tensors, **more), **options)


def clean(got: Got) -> Got:
    """The same, if nothing was found but that a variant is unverified."""
    assert [str(f) for f in got.findings if f.code != "unverified-variant"] == []
    return got
