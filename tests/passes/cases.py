"""Cases for the passes: recipes, stored blocks in every packing, aux values. Shared by tests and benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.layouts.recipe import CodeMap, Place, WeightRecipe
from humming_convert.standard.packing import AWQ_ORDER, stream_pack


def recipe(
    bits: int, act_bits: int, n: int, k: int, place: Place = "standard", maps: tuple[CodeMap, ...] = (), **more: Any
) -> WeightRecipe:
    """A recipe with the packed shape of layouts.md 11."""
    rows, columns = n + more.get("pad_n", 0), k + more.get("pad_k", 0)
    shape = {
        "standard": (columns * act_bits // 256, rows * 8 * bits // act_bits),
        "packed_k": (columns // 64, rows * 2 * bits),
        "raw": (rows, columns * bits // 32),
        "flat": (rows, columns * bits // 32),
    }[place]
    more.setdefault("shape", shape)
    return WeightRecipe(
        bits=bits, act_bits=act_bits, n=n, k=k, pad_n=more.pop("pad_n", 0), pad_k=more.pop("pad_k", 0), maps=maps, place=place, **more
    )


def stored(codes: NDArray[np.uint8], packing: str, bits: int) -> NDArray[Any]:
    """Codes [n, k] as a file holds them."""
    if packing == "rows":
        return stream_pack(codes, bits)
    if packing == "signed_rows":
        return (codes.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
    if packing == "gptq":
        return np.ascontiguousarray(stream_pack(codes, bits).T)
    groups = codes.T.reshape(codes.shape[1], -1, 8)[..., list(AWQ_ORDER)]
    return stream_pack(groups.reshape(codes.shape[1], -1), 4)


def unaligned(array: NDArray[Any], by: int = 1) -> NDArray[Any]:
    """The same values at an address that is no multiple of anything, as in a mapped file."""
    room = np.empty(array.nbytes + by, np.uint8)
    out = room[by:].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def codes_for(maps: tuple[CodeMap, ...], bits: int, n: int, k: int, seed: int) -> NDArray[np.uint8]:
    """Random codes; none is 0 where e0m wants that."""
    lowest = 1 if "e0m" in maps and bits > 1 else 0
    return np.random.default_rng(seed).integers(lowest, 1 << bits, (n, k)).astype(np.uint8)


def aux_for(
    maps: tuple[CodeMap, ...], bits: int, rows: int, columns: int, group: int, seed: int, top: int = 12
) -> NDArray[np.uint8] | None:
    """Random zero points or E8M0 offsets (below `top`), [N', G]."""
    groups = max(-(-columns // group), 1) if group else 1
    rng = np.random.default_rng(seed)
    if "int_to_float_zp" in maps:
        return rng.integers(0, 1 << bits, (rows, groups)).astype(np.uint8)
    if "fused_e8m0" in maps:
        return rng.integers(0, top, (rows, groups)).astype(np.uint8)
    return None
