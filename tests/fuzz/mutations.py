"""Structured changes of a checkpoint folder. A step is a name and plain arguments, so that a case is a few lines of JSON.

`draw` chooses a step for a folder at random, `apply` does it. A step that no longer fits (its tensor is gone) does nothing.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tests.fuzz.folders import Folder
from tests.fuzz.slow_bits import DTYPES, Tensor

Step = tuple[str, list[Any]]
INDEX = "model.safetensors.index.json"
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 4.5, 1e30, 2**40, -5, "", "4", "x" * 300, [], {}, [[]], [0, 0],
    [128, 128], [64, 64], [1, 128], "128x128", ["Linear"], ["re:.*"], ["re:("], ["lm_head"], [1], {"a": 1}, {"re:(": {"bits": 4}}, "re:(",
    "gptq", "gptq_v2", "gptq_p", "awq", "gemm", "gemv", "gemv_fast", "marlin", "auto-round", "auto_round:auto_gptq", "compressed-tensors",
    "modelopt", "fp8", "fbgemm_fp8", "mxfp4", "mxfp8", "quark", "humming", "bitsandbytes", "pack-quantized", "int-quantized",
    "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "naive-quantized", "dense", "mixed-precision",
    "NVFP4", "FP8", "MXFP8", "MXFP4", "W4A16_NVFP4", "MIXED_PRECISION", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "group", "channel",
    "tensor", "block", "tensor_group", "token", "static", "dynamic", "local", "int", "float", "torch.uint8", "bfloat16", "float16",
    "float32", "uint4", "uint3", "uint5", "int4", "float4e2m1", "float8e4m3", "float8e8m0", "float8e5m3", "llama", "qwen2", "qwen3",
    "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "deepseek_v4", "nonsense", ["gptqmodel:7.7.0"], ["gptqmodel:0.8.0"], "gptqmodel:5.0.0",
)  # fmt: skip
KEYS = (
    "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "quant_method", "zero_point", "version", "dynamic", "meta",
    "modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "weight_block_size", "activation_scheme", "config_groups",
    "transform_config", "sparsity_config", "kv_cache_scheme", "quant_algo", "quantized_layers", "pack_dtype", "rotation", "lm_head",
    "b_dtype", "bs_dtype", "weight_scale_group_size", "weight_scale_type", "weight_scale_2_type", "has_zero_point", "is_fp_zero_point",
    "hadamard_block_size", "store_dtype", "expert_dtype", "scale_fmt", "fmt", "extra_config", "packing_format", "num_local_experts",
    "num_experts", "num_hidden_layers", "hidden_size", "intermediate_size", "text_config", "dtype", "torch_dtype", "tie_word_embeddings",
)  # fmt: skip
SUFFIXES = (
    "qweight", "qzeros", "scales", "g_idx", "bias", "weight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "scale",
    "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale", "input_scale", "input_global_scale", "zero_point",
    "pre_quant_scale", "k_scale", "lora_A", "weight_bias", "bitmask", "input_zero_point", "smooth_factor",
)  # fmt: skip
PATTERNS = ("00", "ff", "7f", "80", "7e", "fe", "0000807f", "0000c07f", "007c", "00fc", "807f", "c07f", "01000000", "ffffffff", "ffffff7f",
            "0100", "ff7b", "7f7f", "88888888", "77777777", "11111111")  # fmt: skip


# ------------------------------------------------------------------ configs
def _paths(body: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        yield (*at, key)
        yield from _paths(value, (*at, key))


def _parent(body: Any, path: list[Any]) -> Any:
    for key in path[:-1]:
        body = body[key]
    if not isinstance(body, (dict, list)):
        raise KeyError(path)
    return body


def set_value(f: Folder, file: str, path: list[Any], value: Any) -> None:
    _parent(f.json[file], path)[path[-1]] = copy.deepcopy(value)  # a later step may change what stands there


def delete_key(f: Folder, file: str, path: list[Any]) -> None:
    del _parent(f.json[file], path)[path[-1]]


def rename_key(f: Folder, file: str, path: list[Any], name: str) -> None:
    parent = _parent(f.json[file], path)
    parent[name] = parent.pop(path[-1])


def side_config(f: Folder, file: str, key: str, value: Any) -> None:
    """The primary config once more in a quantizer's file, one key of it changed."""
    f.json[file] = {**f.json["config.json"]["quantization_config"], key: copy.deepcopy(value)}


def only_side(f: Folder, file: str) -> None:
    f.json[file] = f.json["config.json"].pop("quantization_config")


# ------------------------------------------------------------------ tensors
def _new(f: Folder, tensor: str, **changes: Any) -> None:
    file = f.place(tensor)
    old = f.weights[file][tensor]
    f.weights[file][tensor] = Tensor(**{"dtype": old.dtype, "shape": old.shape, "raw": old.raw, **changes})


def drop(f: Folder, tensor: str) -> None:
    del f.weights[f.place(tensor)][tensor]
    f.json.get(INDEX, {}).get("weight_map", {}).pop(tensor, None)


def rename(f: Folder, tensor: str, name: str) -> None:
    file = f.place(tensor)
    f.weights[file] = {name if k == tensor else k: t for k, t in f.weights[file].items()}
    where = f.json.get(INDEX, {}).get("weight_map", {})
    if tensor in where:
        where[name] = where.pop(tensor)


def retype(f: Folder, tensor: str, dtype: str) -> None:
    _new(f, tensor, dtype=dtype)


def cast(f: Folder, tensor: str, dtype: str) -> None:
    """The same numbers in another dtype."""
    old = f.weights[f.place(tensor)][tensor]
    with np.errstate(all="ignore"):
        _new(f, tensor, dtype=dtype, raw=old.array.astype(np.float64).astype(DTYPES[dtype]).tobytes())


def reshape(f: Folder, tensor: str, shape: list[int]) -> None:
    _new(f, tensor, shape=tuple(shape))


def transpose(f: Folder, tensor: str) -> None:
    old = f.weights[f.place(tensor)][tensor].array.T
    _new(f, tensor, shape=old.shape, raw=np.ascontiguousarray(old).tobytes())


def resize(f: Folder, tensor: str, axis: int, length: int) -> None:
    """Cut, or the last entries repeated."""
    old = f.weights[f.place(tensor)][tensor].array
    new = np.take(old, np.minimum(np.arange(length), old.shape[axis] - 1), axis)
    _new(f, tensor, shape=new.shape, raw=new.tobytes())


def swap(f: Folder, one: str, other: str) -> None:
    a, b = f.weights[f.place(one)][one], f.weights[f.place(other)][other]
    f.weights[f.place(one)][one], f.weights[f.place(other)][other] = b, a


def fill(f: Folder, tensor: str, data: str, start: float, stop: float) -> None:
    """Bytes from a fraction of the tensor to another by a pattern."""
    old, pattern = bytearray(f.weights[f.place(tensor)][tensor].raw), bytes.fromhex(data)
    width = len(pattern)
    a, b = int(start * len(old)) // width * width, int(stop * len(old)) // width * width
    old[a:b] = pattern * ((b - a) // width)
    _new(f, tensor, raw=bytes(old))


def poke(f: Folder, tensor: str, at: float, data: str) -> None:
    old, pattern = bytearray(f.weights[f.place(tensor)][tensor].raw), bytes.fromhex(data)
    a = int(at * len(old)) // len(pattern) * len(pattern)
    old[a : a + len(pattern)] = pattern[: len(old) - a]
    _new(f, tensor, raw=bytes(old))


def flip(f: Folder, tensor: str, seed: int, count: int) -> None:
    old, rng = bytearray(f.weights[f.place(tensor)][tensor].raw), random.Random(seed)
    for _ in range(count if old else 0):
        old[rng.randrange(len(old))] ^= 1 << rng.randrange(8)
    _new(f, tensor, raw=bytes(old))


def shuffle(f: Folder, tensor: str, seed: int) -> None:
    old = f.weights[f.place(tensor)][tensor].array
    _new(f, tensor, raw=old.reshape(-1)[np.random.default_rng(seed).permutation(old.size)].tobytes())


def add(f: Folder, tensor: str, dtype: str, shape: list[int], data: str) -> None:
    """A new tensor beside the others, filled with a pattern."""
    size = np.dtype(DTYPES[dtype]).itemsize * int(np.prod(shape))
    pattern = bytes.fromhex(data)
    file = next(iter(f.weights))
    f.weights[file][tensor] = Tensor(dtype, tuple(shape), (pattern * (size // len(pattern) + 1))[:size])
    if INDEX in f.json:
        f.json[INDEX]["weight_map"][tensor] = file


def act_order(f: Folder, tensor: str, size: int, seed: int) -> None:
    """A g_idx (or weight_g_idx) with every group `size` columns, in another order; seed 0: the identity."""
    file = f.place(tensor)
    old = f.weights[file][tensor]
    k = old.shape[0]
    index = np.arange(k, dtype=np.int32) // size
    if seed:
        index = np.random.default_rng(seed).permutation(index)
    _new(f, tensor, raw=index.astype(np.dtype(DTYPES[old.dtype])).tobytes())


def twice(f: Folder, tensor: str, file: str) -> None:
    f.weights.setdefault(file, {})[tensor] = f.weights[f.place(tensor)][tensor]


def move(f: Folder, tensor: str, file: str) -> None:
    f.weights.setdefault(file, {})[tensor] = f.weights[f.place(tensor)].pop(tensor)


def index_to(f: Folder, tensor: str, file: Any) -> None:
    f.json[INDEX]["weight_map"][tensor] = file


def make_index(f: Folder) -> None:
    f.json[INDEX] = {"metadata": {}, "weight_map": {name: file for file, t in f.weights.items() for name in t}}


def every(f: Folder, leaf: str, name: str, args: list[Any]) -> None:
    """One step for all tensors of a leaf name: a whole checkpoint written by another tool, or by a broken one."""
    for tensor in [n for n in f.tensors() if n.rpartition(".")[2] == leaf]:
        apply(f, (name, [tensor, *args]))


def rename_leaf(f: Folder, tensor: str, leaf: str) -> None:
    rename(f, tensor, f"{tensor.rpartition('.')[0]}.{leaf}")


def late(f: Folder, what: str, args: list[Any]) -> None:
    f.late.append((what, args))


STEPS: dict[str, Callable[..., None]] = {
    s.__name__: s
    for s in (
        set_value, delete_key, rename_key, side_config, only_side, drop, rename, retype, cast, reshape, transpose, resize, swap, fill, poke,
        flip, shuffle, add, act_order, twice, move, index_to, make_index, late, every, rename_leaf,
    )
}  # fmt: skip


def apply(f: Folder, step: Step) -> None:
    name, args = step
    try:
        STEPS[name](f, *args)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        pass  # the place is gone, or the step does not fit this folder


# ------------------------------------------------------------------ drawing
def draw(f: Folder, rng: random.Random) -> Step:
    """A step that fits the folder."""
    kinds: Mapping[str, float] = {"config": 30, "bytes": 22, "tensor": 22, "every": 20, "raw": 8, "index": 6}
    while True:
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        try:
            return DRAW[kind](f, rng)
        except (IndexError, KeyError, ValueError, TypeError):  # nothing there to change
            continue


def _config(f: Folder, rng: random.Random) -> Step:
    file = rng.choice([n for n in f.json if n != INDEX and (n.endswith("config.json") or rng.random() < 0.2)])
    body = f.json[file]
    every = list(_paths(body))
    mine = [p for p in every if p[0] in ("quantization_config", "compression_config", "quantization") or file != "config.json"]
    path = list(rng.choice(mine if mine and rng.random() < 0.75 else every))
    what = rng.random()
    if what < 0.55:
        return "set_value", [file, path, rng.choice(VALUES)]
    if what < 0.7:
        return "delete_key", [file, path]
    if what < 0.75:
        return "rename_key", [file, path, rng.choice(KEYS)]
    if what < 0.9:
        return "set_value", [file, [*path[:-1], rng.choice(KEYS)], rng.choice(VALUES)]
    if what < 0.97:
        side = rng.choice(("quantize_config.json", "quant_config.json", "hf_quant_config.json"))
        return "side_config", [side, rng.choice(list(body["quantization_config"])), rng.choice(VALUES)]
    return "only_side", [rng.choice(("quantize_config.json", "quant_config.json", "hf_quant_config.json"))]


def _some_tensor(f: Folder, rng: random.Random) -> str:
    """Mostly of a quantized module."""
    names = f.tensors()
    packed = [n for n in names if not n.endswith(("norm.weight", "embed_tokens.weight"))]
    return rng.choice(packed if packed and rng.random() < 0.9 else names)


def _tensor(f: Folder, rng: random.Random) -> Step:
    name = _some_tensor(f, rng)
    t = f.weights[f.place(name)][name]
    width = np.dtype(DTYPES[t.dtype]).itemsize
    head, _, leaf = name.rpartition(".")
    what = rng.choice(("drop", "rename", "retype", "cast", "reshape", "transpose", "resize", "resize", "swap", "swap", "add", "act_order"))
    if what == "rename":
        names = [n for n in f.tensors() if n != name]
        return "rename", [
            name,
            rng.choice((f"{head}.{rng.choice(SUFFIXES)}", rng.choice(names), name.replace("0", "1", 1), f"{head}x.{leaf}")),
        ]
    if what in ("retype", "cast"):
        same = [d for d, n in DTYPES.items() if what == "cast" or np.dtype(n).itemsize == width]
        return what, [name, rng.choice(same if rng.random() < 0.9 else list(DTYPES))]
    if what == "reshape":
        size, shape = t.array.size, list(t.shape)
        options = [[size], [1, size], [size, 1], [1, *shape], [*shape, 1], shape[::-1], [*shape[:-2], *(x for x in shape[-2:])]]
        options += [[shape[0] * 2, *shape[1:-1], shape[-1] // 2], [shape[0] // 2, *shape[1:-1], shape[-1] * 2]] if len(shape) > 1 else []
        return what, [name, rng.choice(options)]
    if what == "resize":
        axis = rng.randrange(len(t.shape))
        n = t.shape[axis]
        return what, [name, axis, max(0, rng.choice((n - 1, n + 1, n // 2, n * 2, 1, 0, n - 8, n + 8, n - 32, n + 32)))]
    if what == "swap":
        alike = [n for n in f.tensors() if n != name and (n.rpartition(".")[2] == leaf or rng.random() < 0.05)]
        return what, [name, rng.choice(alike)]
    if what == "add":
        suffix = rng.choice(SUFFIXES)
        shape = rng.choice(([], [1], list(t.shape), [t.shape[0]], [t.shape[-1]], [t.shape[0], 1]))
        return what, [
            f"{head}.{suffix}",
            rng.choice(("F32", "F16", "BF16", "I32", "U8", "F8_E4M3")),
            shape,
            rng.choice((*PATTERNS, "0000803f")),
        ]
    if what == "act_order":
        index = rng.choice([n for n in f.tensors() if n.endswith("g_idx")])
        return what, [index, rng.choice((16, 32, 64, 128)), rng.choice((0, 1, 2, 3))]
    return what, [name]


def _bytes(f: Folder, rng: random.Random) -> Step:
    name = _some_tensor(f, rng)
    small = [n for n in f.tensors() if 0 < len(f.weights[f.place(n)][n].raw) < 20000]
    name = rng.choice(small) if small and rng.random() < 0.6 else name
    what = rng.choice(("fill", "poke", "poke", "flip", "shuffle"))
    if what == "fill":
        a, b = sorted((rng.random(), rng.random()))
        return what, [name, rng.choice(PATTERNS), *rng.choice(((0.0, 1.0), (round(a, 3), round(b, 3))))]
    if what == "poke":
        return what, [name, round(rng.random(), 6), rng.choice((*PATTERNS, f"{rng.getrandbits(8):02x}", f"{rng.getrandbits(32):08x}"))]
    if what == "flip":
        return what, [name, rng.getrandbits(20), rng.choice((1, 2, 10, 1000))]
    return what, [name, rng.getrandbits(20)]


def _raw(f: Folder, rng: random.Random) -> Step:
    file = rng.choice([*f.weights, *f.weights, *f.json])
    size = 8 + sum(len(t.raw) for t in f.weights[file].values()) if file in f.weights else 400
    at = rng.choice((rng.randrange(16), rng.randrange(400), rng.randrange(size)))
    noise = rng.choice(("00", "ff", "22", "7b", "2c", f"{rng.getrandbits(8):02x}", f"{rng.getrandbits(64):016x}"))
    numbers = ("-1", "1e9", "9223372036854775808", "1e400", '"1"', "null", "[]", "0.5", "true")
    choices: list[list[Any]] = [
        ["cut", [file, at]],
        ["cut", [file, rng.randrange(2 * size)]],
        ["append", [file, noise]],
        ["poke", [file, at, noise]],
        ["poke", [file, 0, f"{rng.getrandbits(64):016x}"]],
        ["insert", [file, at, noise]],
        ["replace", [file, f"[{rng.choice((0, 1, 2, 4, 8, 16, 32, 64, 128, 192, 256))}", f"[{rng.choice(numbers)}"]],
        ["replace", [file, '"dtype"', rng.choice(('"dtyp"', '"shape"', '"dtype": "F32", "dtype"'))]],
        [
            "replace",
            [
                file,
                rng.choice(('"I32"', '"F16"', '"BF16"', '"U8"', '"F8_E4M3"')),
                rng.choice(('"F4"', '"I33"', '"F8_E4M3FNUZ"', '"U32"', "7")),
            ],
        ],
        ["remove", [file]],
        ["link", [file, rng.choice((file, "nowhere", "/dev/zero", "/etc/passwd", "..", "config.json"))]],
        ["folder", [rng.choice((file, "extra.safetensors", "sub"))]],
        ["pipe", [rng.choice((file, "extra.json"))]],
    ]
    return "late", list(rng.choice(choices))


def _index(f: Folder, rng: random.Random) -> Step:
    name = _some_tensor(f, rng)
    files = [*f.weights, "model-00009-of-00009.safetensors", "extra.safetensors", "adapter_model.safetensors"]
    what = rng.choice(("twice", "move", "make_index", "index_to"))
    if what == "index_to":
        if INDEX not in f.json:
            return "make_index", []
        return what, [name, rng.choice([*files, "../config.json", "/etc/passwd", "", None, 3, "config.json"])]
    return ("make_index", []) if what == "make_index" else (what, [name, rng.choice(files)])


ALIKE = ("drop", "retype", "cast", "reshape", "transpose", "resize", "fill", "poke", "flip", "shuffle", "act_order")


def _every(f: Folder, rng: random.Random) -> Step:
    name, args = (_tensor if rng.random() < 0.7 else _bytes)(f, rng)
    if name == "rename":
        return "every", [args[0].rpartition(".")[2], "rename_leaf", [rng.choice(SUFFIXES)]]
    if name not in ALIKE:
        raise ValueError(name)
    return "every", [args[0].rpartition(".")[2], name, args[1:]]


DRAW: dict[str, Callable[[Folder, random.Random], Step]] = {
    "config": _config,
    "tensor": _tensor,
    "bytes": _bytes,
    "raw": _raw,
    "index": _index,
    "every": _every,
}
