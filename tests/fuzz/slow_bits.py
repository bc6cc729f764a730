"""The slow reader's files and bits: safetensors, configs, codes out of words, small floats.

Shares no code with the package: both must be wrong in the same way before a fault passes.  Facts: formats.md 0, 1.1, 1.2, 2.4, 9.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8",
    "F16": "<f2", "BF16": ml_dtypes.bfloat16, "F32": "<f4", "F64": "<f8",
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FLOATS = ("F16", "BF16", "F32", "F64")


class Unreadable(Exception):
    """No meaning, or none that this reader can tell."""


@dataclass
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    raw: bytes

    @property
    def array(self) -> Array:
        return np.frombuffer(self.raw, np.dtype(DTYPES[self.dtype])).reshape(self.shape)

    @property
    def real(self) -> Array:
        return self.array.astype(np.float64)

    @property
    def bytes(self) -> Array:
        return np.frombuffer(self.raw, np.uint8).reshape(self.shape)


@dataclass
class Meaning:
    """weight = values * scale * second.  values: code minus zero point, or the number a float code stands for [n, k]; scale [n, k];
    second [n]; columns: where act-order stands, the group of each column."""

    values: Array
    scale: Array
    second: Array = field(default_factory=lambda: np.ones(1))
    bias: Array | None = None
    columns: Array | None = None

    @property
    def weight(self) -> Array:
        return np.asarray(self.values * self.scale * self.second.reshape(-1, 1))


def need(condition: object, why: str) -> None:
    if not condition:
        raise Unreadable(why)


# ------------------------------------------------------------------ files
def tensors_of_file(path: Path) -> dict[str, Tensor]:
    raw = path.read_bytes()
    need(len(raw) >= 8, "header")
    (length,) = struct.unpack("<Q", raw[:8])
    need(length <= len(raw) - 8, "header")
    head = json.loads(raw[8 : 8 + length])
    head.pop("__metadata__", None)
    body = raw[8 + length :]
    out = {}
    for name, entry in head.items():
        begin, end = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        need(0 <= begin <= end <= len(body) and end - begin == dtype.itemsize * int(np.prod(entry["shape"], dtype=object)), name)
        out[name] = Tensor(entry["dtype"], tuple(entry["shape"]), body[begin:end])
    return out


def tensors_of(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        where = json.loads(index.read_text())["weight_map"]
        files = {f: tensors_of_file(folder / f) for f in set(where.values())}
        return {name: files[f][name] for name, f in where.items()}
    single = folder / "model.safetensors"
    names = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    out: dict[str, Tensor] = {}
    for path in names:
        if path.name.startswith(("adapter_model", "consolidated")):
            continue
        for name, tensor in tensors_of_file(path).items():
            need(name not in out, f"{name} twice")
            out[name] = tensor
    return out


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sections_of(folder: Path, config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    places: list[Any] = [config.get("quantization_config")]
    for key in ("text_config", "llm_config", "language_config"):
        places.append(_table(config.get(key)).get("quantization_config"))
    places.append(_table(_table(config.get("thinker_config")).get("text_config")).get("quantization_config"))
    places += [config.get("compression_config"), _table(config.get("text_config")).get("compression_config")]
    for name in ("hf_quant_config.json", "quantize_config.json", "quant_config.json"):
        if (folder / name).exists():
            places.append(json.loads((folder / name).read_text()))
    return [p for p in places if p]


# ------------------------------------------------------------------ bits
def stream(words: Array, bits: int, count: int) -> Array:
    """P(b) along the last axis, bit by bit: int64 codes."""
    flat = np.ascontiguousarray(words).view(np.uint8)
    need(flat.shape[-1] * 8 >= count * bits, "too few words")
    one_by_one = np.unpackbits(flat, axis=-1, bitorder="little")[..., : count * bits].reshape(*flat.shape[:-1], count, bits)
    out = np.zeros((*flat.shape[:-1], count), np.int64)
    for bit in range(bits):
        out |= one_by_one[..., bit].astype(np.int64) << bit
    return out


def padded(words: Array, bits: int, count: int) -> Array:
    """floor(32/b) codes a word."""
    each = 32 // bits
    flat = np.ascontiguousarray(words).view(np.uint32)
    need(flat.shape[-1] * each >= count, "too few words")
    need(not (flat >> np.uint32(each * bits)).any() if each * bits < 32 else True, "high bits")
    return np.stack([(flat[..., i // each] >> np.uint32(bits * (i % each))) & ((1 << bits) - 1) for i in range(count)], -1).astype(np.int64)


PLANES = {3: ((2, 0), (1, 2)), 5: ((4, 0), (1, 4)), 6: ((4, 0), (2, 4)), 7: ((4, 0), (2, 4), (1, 6))}


def planar(words: Array, bits: int, count: int) -> Array:
    flat = np.ascontiguousarray(words).view(np.uint32).astype(np.int64)
    need(count % 32 == 0 and flat.shape[-1] * 32 == count * bits, "planes")
    out = np.zeros((*flat.shape[:-1], count), np.int64)
    for i in range(count):
        base, r = i // 32 * bits, i % 32
        for width, offset in PLANES[bits]:
            each = 32 // width
            out[..., i] |= (flat[..., base + r // each] >> (width * (r % each)) & ((1 << width) - 1)) << offset
            base += width
    return out


def nibbles(bytes_: Array) -> Array:
    """Low nibble first: [..., K/2] bytes to [..., K] codes."""
    out = np.empty((*bytes_.shape[:-1], bytes_.shape[-1] * 2), np.int64)
    out[..., 0::2], out[..., 1::2] = bytes_ & 15, bytes_ >> 4
    return out


def float_value(code: Array, exponent: int, mantissa: int) -> Array:
    """Values of a small float with a sign bit, the widths of its parts given."""
    sign = np.where(code >> (exponent + mantissa) & 1, -1.0, 1.0)
    frac, e = (code & ((1 << mantissa) - 1)).astype(np.float64), code >> mantissa & ((1 << exponent) - 1)
    if exponent == 0:
        return np.asarray(sign * frac)
    bias = (1 << (exponent - 1)) - 1
    return np.asarray(
        sign * np.where(e == 0, frac * 2.0 ** (1 - bias - mantissa), (1 + frac / 2.0**mantissa) * 2.0 ** (e - bias).astype(float))
    )


def e8m0(t: Tensor) -> Array:
    need(t.dtype in ("U8", "F8_E8M0"), "scale dtype")
    need((t.bytes != 255).all(), "E8M0 255")
    return np.exp2(t.bytes.astype(np.float64) - 127)


def e4m3_scale(t: Tensor) -> Array:
    need(t.dtype in ("U8", "F8_E4M3"), "scale dtype")
    code = t.bytes
    need(((code & 0x7F) != 0x7F).all() and (code <= 0x80).all() and (code & 0x7F).any(), "e4m3 scales")
    return np.asarray(float_value(code.astype(np.int64), 4, 3))


def real_scale(t: Tensor) -> Array:
    need(t.dtype in FLOATS, "scale dtype")
    need(np.isfinite(t.real).all() and t.real.any(), "scales not finite, or all zero")
    return t.real


def factor(t: Tensor) -> float:
    need(t.array.size == 1 and t.dtype in FLOATS, "one number")
    value = float(t.real.reshape(()))
    need(np.isfinite(value) and 1e-30 <= value <= 1e30, "a factor")
    return value


def fp8_values(t: Tensor) -> Array:
    need(np.isfinite(t.real).all(), "FP8 NaN")
    return t.real


def columns(per_group: Array, size: int, k: int) -> Array:
    """[rows, groups] to [rows, k]."""
    return np.asarray(per_group[:, np.arange(k) // size])


def groups_over(k: int, count: int, said: Any) -> int:
    """The group size that `count` groups over k columns have (formats.md 12 rows 7 to 9)."""
    if isinstance(said, str) and said.lstrip("-").isdigit():
        said = int(said)
    if count == 1:
        return int(said) if isinstance(said, int) and said >= k else k
    if isinstance(said, int) and said > 0 and -(-k // said) == count:
        return said
    need(k % count == 0, "groups")
    need(not (isinstance(said, int) and 0 < said < k and k % said and k // said == count), "the last group is lost")
    return k // count


def integer(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    return value if type(value) is int else None


def bias_of(t: Mapping[str, Tensor], n: int, name: str = "bias") -> Array | None:
    if name not in t:
        return None
    bias = t[name]
    need(bias.dtype in FLOATS and bias.array.size == n and np.isfinite(bias.real).all(), "bias")
    return bias.real.reshape(n)
