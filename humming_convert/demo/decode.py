"""Reads an output folder back to float64, by the address formulas, without the package's own layouts.

Knows the standard form and what sm90 packs (repack in standard and packed-K order, flat).  In: a folder with a manifest.
Out: weight and bias of every source module.  Facts: layouts.md 1, 5.0 to 5.6, 6.1, 6.5, 6.6, 7, 8.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.demo.pack import E2M1, E4M3, SAFETENSORS_NAMES, Array, Real

DTYPES = {name: dtype for dtype, name in SAFETENSORS_NAMES.items()}
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One source module as the output has it. weight: [n, k]; bias: [n] or None.

    largest: the largest scale of the row, all factors in it [n, 1]; it bounds what `e8m0-range` may change.
    """

    weight: Real
    bias: Real | None
    layer: str
    largest: Real


class Folder:
    """Tensors of a folder's safetensors files by name, read when asked for."""

    def __init__(self, folder: Path) -> None:
        self.manifest: Mapping[str, Any] = json.loads((folder / "humming_manifest.json").read_text())
        self.folder = folder

    def read(self, entry: Mapping[str, Any]) -> Array:
        """The tensor of a manifest entry {name, dtype, shape, file}."""
        raw = (self.folder / entry["file"]).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        found = json.loads(raw[8 : 8 + length])[entry["name"]]
        assert found["dtype"] == entry["dtype"] and found["shape"] == entry["shape"], entry["name"]
        start, stop = (8 + length + x for x in found["data_offsets"])
        return np.frombuffer(raw[start:stop], DTYPES[entry["dtype"]]).reshape(entry["shape"])


def stream_codes(words: Array, bits: int, count: int) -> Ints:
    """Codes 0..count-1 of the bit stream in int32 words [..., w] (layouts.md 1)."""
    wide = np.concatenate([words.view(np.uint32), np.zeros((*words.shape[:-1], 1), np.uint32)], -1).astype(np.uint64)
    position = np.arange(count) * bits
    word, shift = position // 32, (position % 32).astype(np.uint64)
    both = wide[..., word] | wide[..., word + 1] << np.uint64(32)
    return ((both >> shift) & np.uint64((1 << bits) - 1)).astype(np.int64)


def width_of(name: str) -> int:
    """Bits of a number type: the first number in its name."""
    found = re.search(r"\d+", name)
    assert found, name
    return int(found[0])


def code_values(name: str) -> Real:
    """Value of each code of a number type; unsigned integers as they are stored."""
    if name == "float4e2m1":
        return E2M1
    if name == "float8e4m3":
        bytes_: Array = np.arange(256).astype(np.uint8).view(E4M3)
        return np.asarray(bytes_.astype(np.float64))
    bits = width_of(name)
    if name.startswith("uint"):
        return np.arange(1 << bits).astype(np.float64)
    assert name == f"float{bits}e0m{bits - 1}", f"{name} is in no sample"
    code, top = np.arange(1 << bits), 1 << (bits - 1)
    return np.asarray(np.where(code >= top, -1.0, 1.0) * (code & (top - 1)))


def scale_values(stored: Array, dtype: str) -> Real:
    """Scales as numbers; E8M0 is often stored as bytes."""
    if dtype == "float8e8m0":
        return np.exp2(stored.view(np.uint8).astype(np.float64) - 127)
    return stored.astype(np.float64)


# Where a code is (layouts.md 5.2 to 5.4)


def padded_place(bits: int, act: int, n: Ints, k: Ints, swapped: bool) -> tuple[Ints, Ints, Ints, Ints]:
    """(lane, N part, padded word, place in it) of code (n, k) inside its block of 64 rows and its tile of K."""
    tile, columns, width = 256 // act, 32 // act, 1 << (bits - 1).bit_length()
    row, q = n % 64, k % tile
    o = row // 8
    lane = 4 * (n % 8) + (q % (tile // 2)) // columns
    part, i3, i4 = o // (act // 2), (o % (act // 2)) // 2, o % 2
    i5, i6 = q // (tile // 2), q % columns
    t = (i3 * 2 + i5) * 2 + i4 if swapped else (i3 * 2 + i4) * 2 + i5
    t = t * columns + i6
    per_word = 32 // width
    return lane, part, t // per_word, t % per_word


def bit_place(bits: int, word: Ints, bit: int) -> tuple[Ints, Ints]:
    """Where bit `bit` of the code in padded word `word` went: (word of the narrow run, bit inside the field) (layouts.md 5.3)."""
    width = 1 << (bits - 1).bit_length()
    start = word * bits
    first, used = start // width, start % width
    free = width - used
    rest = np.maximum(bits - free, 0)
    low = bit < rest
    return np.where(low, first + 1, first), np.where(low, bit, used + bit - rest)


def repacked_codes(words: Array, config: Mapping[str, Any], bits: int, act: int, fused: bool) -> Ints:
    """Codes [N', K'] of one expert's packed words. Blocks of 64 rows are alike: only the first column of their words differs."""
    rows, columns = config["shape_n"], config["shape_k"]
    n, k = np.meshgrid(np.arange(64), np.arange(columns), indexing="ij")
    packed_k, width, tile = config["use_packed_k_layout"], 1 << (bits - 1).bit_length(), 256 // act
    lane, part, padded_word, place = padded_place(bits, act, n, k, swapped=packed_k and not fused)
    pairs = act // width
    mixed = (place % (32 // act)) * pairs + place // (32 // act)
    flat, stored = words.view(np.uint32).reshape(-1), np.zeros((rows, columns), np.int64)
    for bit in range(bits):
        word, inside = bit_place(bits, padded_word, bit)
        # mode 2 leaves all bits but the sign where they were (layouts.md 5.2)
        field_of_bit = place if fused and act == 8 and bit < bits - 1 else mixed
        if packed_k:
            half = word // (bits // 2)
            column = (2 * part + half) * 32 * bits + lane * bits + (k % 64) // 32 * (bits // 2) + word % (bits // 2)
            address, block = k // 64 * (rows * 2 * bits) + column, 128 * bits
        else:
            column = part * 32 * bits + lane * bits + word
            address, block = k // tile * (rows * tile * bits // 32) + column, 512 * bits // act
        shift = (field_of_bit * width + inside).astype(np.uint32)
        for x in range(rows // 64):
            stored[64 * x : 64 * x + 64] |= (((flat[address + x * block] >> shift) & 1) << bit).astype(np.int64)
    return stored


def flat_codes(words: Array, rows: int, columns: int, bits: int) -> Ints:
    """Layout of equal widths: 128-bit chunks of a row are the outer axis (layouts.md 5.6)."""
    chunks = columns * bits // 128
    return stream_codes(np.ascontiguousarray(words.reshape(chunks, rows, 4).transpose(1, 0, 2)).reshape(rows, -1), bits, columns)


def unordered(laid_out: Array, order: str) -> Array:
    """[G, N'] in the N order "64" or "C" -> [N', G] in plain order (layouts.md 6)."""
    length = 64 if order == "64" else 32
    p = np.arange(length)
    source = 8 * (p % 8) + p // 8 if order == "64" else 2 * (p // 8) + 8 * ((p % 8) // 2) + p % 2
    out = np.empty_like(laid_out)
    for start in range(0, laid_out.shape[-1], length):
        out[..., start + source] = laid_out[..., start : start + length]
    return out.T


def zero_points(words: Array, bits: int) -> Ints:
    """Zero points [N', G] from packed words [G, ...] (layouts.md 7)."""
    width = 4 if bits <= 4 else 8
    return unordered(stream_codes(words, width, words.shape[-1] * 32 // width), "64")


# One expert


def packed_weight(tensors: Mapping[str, Array], config: Mapping[str, Any], flags: Mapping[str, Any]) -> tuple[Real, Real]:
    """(weight [N', K'], largest scale of each row) of one expert."""
    name, act_name = config["b_dtype"], config["a_dtype"]
    bits, act, rows, columns = width_of(name), width_of(act_name), config["shape_n"], config["shape_k"]
    assert not act_name.startswith("int"), "no sample is converted for integer activations"
    fused, integer = config["use_fused_e8m0_scale"], name.startswith("uint")
    if flags["use_flat_weight"]:
        codes = flat_codes(tensors["weight"], rows, columns, bits)
    else:
        assert not flags["use_raw_weight"] and not flags["use_native_dequant"], "sm90 has neither"
        codes = repacked_codes(tensors["weight"], config, bits, act, fused)
    zeros: Array = np.full((rows, 1), 1 << (bits - 1), np.int64)
    if config["has_zero_point"]:
        zeros = zero_points(tensors["zero_point"], bits)
    zero = np.repeat(zeros, columns // zeros.shape[1], 1)
    with_zero = config["has_zero_point"]
    if integer and (act < 16 or (act_name == "bfloat16" and bits > (6 if with_zero else 7))):
        # stored c - z for c >= z and M - c below: values above M - z are of the second kind (layouts.md 5.0 b)
        top = (1 << bits) - 1
        codes = np.where(codes <= top - zero, codes + zero, top - codes)
    values = code_values(name)[codes] - (zero if integer else 0)

    # scales are applied to the result where one covers all of K (layouts.md 4.2, should_apply_bs_on_c; sm90 has no block-scaled MMA)
    order = "C" if config["weight_scale_group_size"] == 0 else "64"
    scale = tensors["weight_scale"]
    if config["weight_scale_type"] == "tensor":
        grid = np.full((rows, 1), scale_values(scale, config["bs_dtype"]).reshape(()))
    elif config["weight_scale_type"] == "block":
        grid = np.repeat(scale_values(scale, config["bs_dtype"]).T, config["weight_scale_group_size_n"], 0)
    else:
        plain = unordered(scale, order)
        # rewritten E8M0 scales count powers of two from the factor in weight_scale_2 (layouts.md 2, S5)
        grid = np.exp2(plain.view(np.uint8).astype(np.float64)) if fused else scale_values(plain, config["bs_dtype"])
    second: Real = np.ones((1, 1))
    if "weight_scale_2" in tensors:
        stored = tensors["weight_scale_2"]
        second = stored.astype(np.float64).reshape(1, 1) if stored.size == 1 else unordered(stored[None], "C").astype(np.float64)
    grid = grid * second
    return values * np.repeat(grid, columns // grid.shape[1], 1), grid.max(1, keepdims=True)


def standard_weight(tensors: Mapping[str, Array], form: Mapping[str, Any], n: int, k: int) -> tuple[Real, Real]:
    """(weight [n, k], largest scale of each row) of one expert in the standard form."""
    name = form["dtype"]
    bits = width_of(name)
    codes = stream_codes(tensors["weight"].reshape(n, -1), bits, k)
    values = code_values(name)[codes]
    scale = scale_values(tensors["weight_scale"], form["scale_dtype"])
    if name.startswith("uint"):
        zeros: Ints = np.full((n, 1), 1 << (bits - 1), np.int64)
        if form["zero_point"] == "int":
            zeros = stream_codes(np.ascontiguousarray(tensors["zero_point"].T), bits, n).T
        values = values - np.repeat(zeros, k // zeros.shape[1], 1)
    grid = np.full((n, 1), scale.reshape(())) if scale.size == 1 else scale
    grid = np.repeat(grid, n // grid.shape[0], 0)
    if "weight_scale_2" in tensors:
        grid = grid * tensors["weight_scale_2"].astype(np.float64).reshape(-1, 1)
    return values * np.repeat(grid, k // grid.shape[1], 1), grid.max(1, keepdims=True)


def of_expert(tensors: Mapping[str, Array], expert: int | None) -> dict[str, Array]:
    return dict(tensors) if expert is None else {role: t[expert] for role, t in tensors.items()}


def decode(folder: Path) -> Iterator[tuple[str, Decoded]]:
    """Every source module of an output folder: (name, what the output says of it)."""
    opened = Folder(folder)
    for layer in opened.manifest["layers"]:
        shape = layer["shape"]
        tensors = {role: opened.read(entry) for role, entry in layer["tensors"].items() if not role.startswith("input_scale")}
        packed, experts = "config" in layer, shape["experts"] or 0
        each = len(layer["parts"]) // max(experts, 1)
        for expert in range(max(experts, 1)):
            mine = of_expert(tensors, expert if experts else None)
            if packed:
                weight, largest = packed_weight(mine, layer["config"], layer["flags"])
                # added columns meet activations that are 0, so what stands there is free (layouts.md 3)
                assert not weight[shape["n"] :].any(), f"{layer['name']}: added rows are not zero"
            else:
                weight, largest = standard_weight(mine, layer["weight"], shape["n"], shape["k"])
            bias = None
            if "bias" in mine:
                bias = (unordered(mine["bias"][None], "C")[:, 0] if packed else mine["bias"]).astype(np.float64)
            row = 0
            for part, rows in zip(layer["parts"][expert * each : (expert + 1) * each], shape["stack_n"], strict=True):
                here = slice(row, row + rows)
                yield (
                    part,
                    Decoded(
                        weight=weight[here, : shape["k"]],
                        bias=None if bias is None else bias[here],
                        layer=layer["name"],
                        largest=largest[here],
                    ),
                )
                row += rows
