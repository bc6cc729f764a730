"""One mutated folder: converted in this process, and judged against the slow reader.

Out: a Verdict: `refused`, `equal`, or a fault: `crash`, `hang`, `memory`, `wrong` (the output says something else than the folder),
`unsure` (converted, and the slow reader finds no meaning or cannot tell: a person looks).
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np

from humming_convert import api
from humming_convert.demo.decode import decode
from tests.fuzz import slow_reader
from tests.fuzz.slow_bits import E2M1, Array, Meaning, Tensor, Unreadable, float_value, stream, tensors_of_file

SECONDS = 10
MEMORY = 200 << 20  # bytes a run may take beside twice its input
MALFORMED = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RecursionError, re.error)
REFUSALS = (api.Refused, api.UsageError)
FLOAT = {"F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype(np.float32)}


class Hang(Exception):
    """Not done in time."""


@dataclass(frozen=True)
class Verdict:
    word: str
    detail: str = ""

    @property
    def fault(self) -> bool:
        return self.word not in ("refused", "equal")


def _late(number: int, frame: FrameType | None) -> None:
    raise Hang


def _peak(reset: bool = False) -> int:
    """Largest resident size of this process since the last reset, where the system tells it."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def planned(folder: Path, target: str) -> Verdict | None:
    """A plan for a target: only that it is a plan or a refusal."""
    try:
        with contextlib.suppress(*REFUSALS), limited():
            api.plan(folder, target=target, act="auto", io="read")
    except Hang:
        return Verdict("hang", f"plan for {target}: more than {SECONDS} s")
    except Exception:  # noqa: BLE001 - any other exception is what is looked for
        return Verdict("crash", f"plan for {target}:\n{traceback.format_exc()}")
    return None


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Hang after SECONDS."""
    old = signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def judge(folder: Path, out: Path, **options: Any) -> Verdict:
    """Converts `folder` in `out` (removed afterwards): to the standard form, or as the options say."""
    size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
    before = _peak(reset=True)
    options = options if "target" in options else {**options, "standard": True}
    try:
        with limited():
            plan = api.plan(folder, io="read", **options)
            api.convert(plan, out=out, jobs=1)
    except REFUSALS as refusal:
        word = "refused"
        if isinstance(refusal, api.Refused) and not [f for f in refusal.findings if f.severity == "error"]:
            return Verdict("crash", "refused without an error finding")
        detail = (
            " ".join(sorted({f.code for f in refusal.findings if f.severity == "error"})) if isinstance(refusal, api.Refused) else "usage"
        )
        if out.exists() or out.with_name(out.name + ".partial").exists():
            return Verdict("crash", f"refused ({detail}) and left something behind")
    except Hang:
        return Verdict("hang", f"more than {SECONDS} s")
    except Exception:  # noqa: BLE001 - any other exception is what is looked for
        return Verdict("crash", traceback.format_exc())
    else:
        word, detail = "converted", ""
    grown = _peak() - before
    try:
        if grown > 2 * size + MEMORY:
            return Verdict("memory", f"{grown / 1e6:.0f} MB for an input of {size / 1e6:.1f} MB")
        return compared(folder, out, packed="target" in options) if word == "converted" else Verdict(word, detail)
    finally:
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(out.with_name(out.name + ".partial"), ignore_errors=True)


# ------------------------------------------------------------------ comparing
def compared(folder: Path, out: Path, *, packed: bool = False) -> Verdict:
    """What the output says against what the folder says."""
    try:
        wants, plain = slow_reader.read(folder)
    except Unreadable as unread:
        return Verdict("unsure", str(unread))
    except MALFORMED as error:
        return Verdict("unsure", f"slow reader: {type(error).__name__}: {error}")
    manifest = json.loads((out / "humming_manifest.json").read_text())
    tensors: dict[str, Tensor] = {}
    for path in sorted(out.glob("*.safetensors")):
        tensors |= tensors_of_file(path)
    seen: set[str] = set()
    for part, why in _packed(out, wants) if packed else _standard(out, manifest, tensors, wants):
        if why is not None:
            return Verdict("wrong", f"{part}: {why}")
        seen.add(part)
    for entry in manifest["dequantized"]:
        want, got_matrix = wants.get(entry["name"]), tensors[f"{entry['name']}.weight"].real
        if want is None:
            return Verdict("wrong", f"{entry['name']} is dequantized and nothing in the folder")
        if not near(got_matrix, want.weight):
            return Verdict("wrong", f"{entry['name']}: dequantized to something else")
        seen.add(entry["name"])
    if left := sorted(set(wants) - seen):
        return Verdict("wrong", f"{left[0]} of the folder is not in the output")
    for name, tensor in plain.items():
        same = tensors.get(name)
        if same is None or (same.dtype, same.shape, same.raw) != (tensor.dtype, tensor.shape, tensor.raw):
            return Verdict("wrong", f"{name} was not passed through as it is")
    return Verdict("equal")


Said = Iterator[tuple[str, str | None]]
"""(part, what is wrong with it or None)."""


def _standard(out: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensor], wants: Mapping[str, Meaning]) -> Said:
    """By the manifest; and by config.json alone, as a reader of Humming checkpoints takes it."""
    for layer in manifest["layers"]:
        for part, got in decoded(layer, tensors):
            yield part, difference(got, wants[part]) if part in wants else "nothing in the folder"
    try:
        again, _ = slow_reader.read(out)
    except (Unreadable, *MALFORMED) as error:
        yield "config.json", f"the output is no Humming checkpoint: {error}"
        return
    for part, got in again.items():
        if part in wants and (why := difference(got, wants[part])):  # those fused for their one factor stand under another name
            yield part, f"by config.json: {why}"


def _packed(out: Path, wants: Mapping[str, Meaning]) -> Said:
    """By the address formulas of sm90; scales are cast to the model dtype there. No word on what the demo's decoder does not know."""
    found = decode(out)
    while True:
        try:
            part, got = next(found)
        except StopIteration:
            return
        except (AssertionError, KeyError):  # number types of no sample, padding under one scale for the matrix
            yield from ((name, None) for name in wants)
            return
        want = wants.get(part)
        yield part, "nothing in the folder" if want is None else None if near(got.weight, want.weight) else "packed weights differ"


def near(got: Array, want: Array) -> bool:
    """Equal but for scales in 16 bits, each rounded at most twice."""
    return got.shape == want.shape and not (np.abs(got - want) > np.abs(want) * 2.0**-7 + 1e-7).any()


def casts(x: Array) -> Iterator[Array]:
    """A scale as it is, and as a 16-bit model dtype has it."""
    yield x
    with np.errstate(over="ignore"):
        for d in ("BF16", "F16"):
            yield x.astype(np.float32).astype(FLOAT[d]).astype(np.float64)


def difference(got: Meaning, want: Meaning) -> str | None:
    if got.values.shape != want.values.shape:
        return f"shape {got.values.shape}, want {want.values.shape}"
    live = np.broadcast_to(want.scale != 0, want.values.shape)
    if bad := int(((got.values != want.values) & live).sum()):
        return f"{bad} of {got.values.size} codes differ"
    factors, exact = got.scale * got.second.reshape(-1, 1), want.scale * want.second.reshape(-1, 1)
    apart = (a * b.reshape(-1, 1) for a in casts(want.scale) for b in casts(want.second))
    if not any((factors == x).all() for x in chain(apart, casts(exact))):
        return f"{int((factors != exact).sum())} of {factors.size} scales differ, the first {factors.flat[0]} for {exact.flat[0]}"
    if (got.bias is None) != (want.bias is None):
        # an all-zero bias of an architecture that has none is dropped (formats.md D19)
        extra = got.bias if got.bias is not None else want.bias
        return "bias" if extra is not None and extra.any() else None
    if got.bias is not None and want.bias is not None and not any((got.bias == x).all() for x in casts(want.bias)):
        return "bias"
    return None


def _e5m3(code: Array) -> Array:
    return np.asarray(np.where(code >> 3 == 0, (code & 7) * 2.0**-17, (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 15.0)))


SCALES: dict[str, Callable[[Array], Array]] = {
    "float8e8m0": lambda code: np.exp2(code.astype(np.float64) - 127),
    "float8e4m3": lambda code: float_value(code, 4, 3),
    "float8e5m2": lambda code: float_value(code, 5, 2),
    "float8e5m3": _e5m3,
}


def decoded(layer: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[tuple[str, Meaning]]:
    """Part -> meaning, from the tensors of the standard form (formats.md 0)."""
    form, shape = layer["weight"], layer["shape"]
    roles = {role: tensors[entry["name"]] for role, entry in layer["tensors"].items()}
    experts, n, k = shape["experts"] or 0, shape["n"], shape["k"]
    each = len(layer["parts"]) // max(experts, 1)
    out = []
    for e in range(max(experts, 1)):
        mine = {r: _entry(t, e) if experts else t for r, t in roles.items()}
        whole = _matrix(mine, form, n, k)
        row = 0
        for part, rows in zip(layer["parts"][e * each : (e + 1) * each], shape["stack_n"], strict=True):
            at = slice(row, row + rows)
            bias = None if whole.bias is None else whole.bias[at]
            second = whole.second if whole.second.size == 1 else whole.second[at]
            out.append((part, Meaning(whole.values[at], whole.scale[at], second, bias)))
            row += rows
    return out


def _entry(t: Tensor, index: int) -> Tensor:
    one = t.array[index]
    return Tensor(t.dtype, one.shape, one.tobytes())


def _matrix(t: Mapping[str, Tensor], form: Mapping[str, Any], n: int, k: int) -> Meaning:
    name = form["dtype"]
    digits = [int(x) for x in "".join(c if c.isdigit() else " " for c in name).split()]
    codes = stream(t["weight"].array.reshape(n, -1), digits[0], k)
    if name.startswith("uint"):
        zero: Array = np.full((n, 1), 1 << (digits[0] - 1), np.int64)
        if "zero_point" in t:
            zero = stream(np.ascontiguousarray(t["zero_point"].array.T), digits[0], n).T
        values = (codes - np.repeat(zero, k // zero.shape[1], 1)).astype(np.float64)
    else:
        values = E2M1[codes] if digits == [4, 2, 1] else float_value(codes, digits[1], digits[2])
    raw, dtype = t["weight_scale"], form["scale_dtype"]
    grid = SCALES[dtype](raw.bytes.astype(np.int64)) if dtype in SCALES else raw.real
    grid = grid.reshape(1, 1) if grid.size == 1 else grid.reshape(-1, grid.shape[-1])
    full = np.repeat(np.repeat(grid, n // grid.shape[0], 0), k // grid.shape[1], 1)
    second = t["weight_scale_2"].real.reshape(-1) if "weight_scale_2" in t else np.ones(1)
    return Meaning(values, full, second, t["bias"].real.reshape(-1) if "bias" in t else None)
