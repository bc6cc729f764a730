"""Packed folders of every family through the plain loader, by this package's kernels and by humming-kernels, against float64; and load times.

    python tests/gpu/run_load.py --make DIR               makes the folders, without a GPU
    python tests/gpu/run_load.py DIR [--wheels WHEELS] [--jobs 8] [--gb 2]

The second needs an NVIDIA GPU of sm_90, torch, CuPy and humming-kernels, installed or as wheels that lie in WHEELS (with those of msgspec,
xxhash, tabulate, … that are missing). One line a layer and backend: largest error over the sum of magnitudes, beyond what
the rounding of activations leaves open. Then the seconds from files to
layers that are ready: packed tensors read to the GPU, and the standard form read to the GPU and transformed by the library, of the same size.
Exit code 1 if a layer is wrong, if a planted error is not caught, or if nothing was compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

ROWS = 33
# sample -> activations; experts and biases are among them
FOLDERS = {
    "gptq-4bit-v1-sym": ("bf16", "fp8"),
    "gptq-4bit-v2-asym": ("bf16", "int8"),
    "gptq-3bit-v1-asym": ("bf16",),
    "gptq-8bit-channel": ("bf16",),
    "awq-4bit-gemm": ("bf16",),
    "ct-int8": ("int8",),
    "ct-fp8-channel": ("fp8",),
    "ct-fp8-block": ("fp8",),
    "ct-nvfp4": ("bf16",),
    "ct-mxfp4": ("bf16", "fp8"),
    "fp8-modelopt": ("bf16",),
    "humming-uint4": ("bf16",),
    "ct-int4-qwen3-moe": ("bf16", "fp8"),
    "mxfp4-gpt-oss": ("bf16",),
}
TESTED = ("down_proj", "w13", "w2")  # of each folder: compiling takes longer than all else
BIASED = ("gptq-4bit-v2-asym-bf16", "gptq-4bit-v2-asym-int8", "ct-int8-int8")  # and qkv_proj of these, which have biases


def make(into: Path) -> int:
    """The folders, converted for sm90."""
    import humming_convert as hc
    from tests.samples import sample

    with tempfile.TemporaryDirectory() as temporary:
        for name, activations in FOLDERS.items():
            source = sample(name).write(Path(temporary))
            for act in activations:
                hc.convert(hc.plan(source, target="sm90", act=act), out=into / f"{name}-{act}")
    print(f"{len(list(into.iterdir()))} folders in {into}")
    return 0


# ------------------------------------------------------------------ one folder, in a process of its own
def judge(job: tuple[Path, str, list[str]]) -> list[dict[str, Any]]:
    folder, backend, path = job
    sys.path[:0] = path
    import numpy as np
    import torch

    import humming_convert as hc
    from humming_convert import Refused
    from humming_convert.gemm.check import random_rows
    from humming_convert.gemm.stored import stored_layers
    from humming_convert.serve.self_check import activations

    out = []
    stored = {s.name: s for s in stored_layers(folder)}
    layers = hc.load(folder, backend=backend)
    for name, s in stored.items():
        if name.rpartition(".")[2] not in (*TESTED, *(["qkv_proj"] if folder.name in BIASED else [])):
            continue
        row: dict[str, Any] = {"folder": folder.name, "layer": name, "backend": backend}
        out.append(row)
        try:
            layer = layers[name]  # the self-check is part of it
        except Refused as refused:
            row["wrong"] = str(refused)
            continue
        rng = np.random.default_rng(7)
        bits = random_rows(ROWS, s.layer.k, s.layer.half, rng)
        experts = rng.integers(0, s.layer.experts, ROWS) if s.layer.experts else None
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[s.layer.half]
        x = torch.from_numpy(bits.view(np.int16)).cuda().view(dtype)
        y = layer(x, experts)
        assert y.dtype == dtype and y.is_cuda and y.shape == (ROWS, s.layer.n), (y.dtype, y.shape)
        if experts is None:
            again = layer(x.reshape(3, 11, -1))
            assert again.shape == (3, 11, s.layer.n) and torch.equal(again.reshape(ROWS, -1), y)
        got = y.double().cpu().numpy()
        meant, unsure = activations(s, bits, 90)
        reference = s.reference(s.tensors())
        error, tolerance, over = 0.0, layers.layers.tolerance(name, ROWS), 0
        for e in range(max(1, s.layer.experts)):
            mine = np.flatnonzero(experts == e) if experts is not None else np.arange(ROWS)
            w, bias = reference.weights(e), reference.bias(e)
            want, size = meant[mine] @ w.T + bias, np.abs(meant[mine]) @ np.abs(w).T + np.abs(bias)
            off = np.maximum(np.abs(got[mine] - want) - unsure[mine] @ np.abs(w).T, 0)
            error = max(error, float(np.max(off / np.maximum(size, 1e-30), initial=0.0)))
            over += int((~(off <= tolerance.size * size + tolerance.result * np.abs(want))).sum())
        row |= {"error": error, "over": over}
        if over:
            row["wrong"] = f"{over} of {got.size} beyond the tolerance"
        row["caught"] = planted(layers, name)
    return out


def planted(layers: Any, name: str) -> bool:
    """Is an error in the loaded tensors seen? The scales of the layer, moved by one row or column."""
    from humming_convert.serve.self_check import ROWS as FEW
    from humming_convert.serve.self_check import self_check

    layer = layers.layers[name]
    tensors = layer.tensors if hasattr(layer, "tensors") else layer.multiplier.tensors
    role = "weight_scale" if tensors["weight_scale"].shape[-1] > 1 else "weight"
    kept = tensors[role]
    tensors[role] = rolled(kept)
    allowed = layers.layers.tolerance(name, FEW)
    found = self_check(layers.layers.stored[name], lambda b, e: layers.layers.product(name, b, e), allowed, 90)
    tensors[role] = kept
    return found is not None


def rolled(x: Any) -> Any:
    if hasattr(x, "roll"):
        import torch

        flat = x.view(torch.uint8) if x.element_size() == 1 else x
        return flat.roll(1, -1).view(x.dtype).contiguous()
    import cupy

    return cupy.ascontiguousarray(cupy.roll(x, 1, axis=-1))


# ------------------------------------------------------------------ load times
def times(gb: float, work: Path) -> dict[str, Any]:
    """Seconds from files (in the page cache) to layers on the GPU, both ways, for W4A16 layers of 4096 x 4096 in groups of 128."""
    import torch
    from humming.schema import HummingInputSchema, HummingWeightSchema
    from humming.transform import prepare_and_transform_humming_tensors
    from safetensors.torch import load_file, save_file

    from humming_convert.checkpoint.header import read_header
    from humming_convert.serve.torch_tensors import Placing

    n = k = 4096
    count = max(1, round(gb * 1e9 / (n * k // 2)))
    schema = HummingWeightSchema(b_dtype="uint4", weight_scale_group_size=128)
    generator = torch.Generator().manual_seed(0)
    standard, packed = {}, {}

    def transformed(tensors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return prepare_and_transform_humming_tensors(
            tensors=tensors,
            shape_n=n,
            shape_k=k,
            weight_schema=schema,
            input_schema=HummingInputSchema(),
            pad_n_to_multiple=256,
            pad_k_to_multiple=128,
            has_bias=False,
            torch_dtype=torch.bfloat16,
            device=torch.device("cuda", 0),
        )

    for i in range(count):
        words = torch.randint(-(2**31), 2**31 - 1, (n, k // 8), dtype=torch.int32, generator=generator)
        scales = torch.rand((n, k // 128), generator=generator).to(torch.bfloat16)
        standard |= {f"{i}.weight": words, f"{i}.weight_scale": scales}
        _, made = transformed({"weight": words.cuda(), "weight_scale": scales.cuda()})
        packed |= {f"{i}.{role}": t.cpu() for role, t in made.items()}
    save_file(standard, work / "standard.safetensors")
    save_file(packed, work / "packed.safetensors")
    del standard, packed
    header = read_header(work / "packed.safetensors")
    assert not isinstance(header, list), header

    def by_placing() -> None:
        placing = Placing("cuda:0")
        kept.extend(placing.place(view) for view in header.tensors.values())

    def by_transforming() -> None:
        tensors = load_file(work / "standard.safetensors", device="cuda:0")
        for i in range(count):
            _, made = transformed({role: tensors.pop(f"{i}.{role}") for role in ("weight", "weight_scale")})
            kept.append(made)

    kept: list[Any] = []
    out: dict[str, Any] = {"layers": count, "gb": round((work / "packed.safetensors").stat().st_size / 1e9, 2)}
    for name, way in (("packed", by_placing), ("transformed", by_transforming)):
        seconds = []
        for _ in range(3):
            kept.clear()
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            start = time.perf_counter()
            way()
            torch.cuda.synchronize()
            seconds.append(round(time.perf_counter() - start, 3))
        out[name] = seconds
    return out


def unpacked(wheels: Path | None, into: Path) -> list[str]:
    if wheels is None:
        return []
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                path = Path(archive.extract(info, into))
                if info.external_attr >> 16 & 0o111:  # the library ships a program of its own
                    path.chmod(0o755)
    return [str(into)]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path, nargs="?")
    p.add_argument("--make", type=Path)
    p.add_argument("--wheels", type=Path)
    p.add_argument("--jobs", type=int, default=8)
    p.add_argument("--gb", type=float, default=2.0, help="of packed layers for the times; 0: none")
    a = p.parse_args()
    if a.make is not None:
        return make(a.make)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        path = [*unpacked(a.wheels, Path(temporary) / "site"), str(ROOT)]
        sys.path[:0] = path
        jobs = [(folder, backend, path) for folder in sorted(a.folder.iterdir()) for backend in ("core", "humming")]
        rows: list[dict[str, Any]] = []
        with ProcessPoolExecutor(a.jobs, mp_context=get_context("spawn")) as pool:
            for job, future in [(job, pool.submit(judge, job)) for job in jobs]:
                try:
                    found = future.result()
                except Exception as error:  # noqa: BLE001 told, and counted as wrong
                    found = [{"folder": job[0].name, "backend": job[1], "layer": "", "wrong": f"{type(error).__name__}: {error}"[:300]}]
                rows += found
                for row in found:
                    said = row.get("wrong") or f"error {row['error']:.1e}" + ("" if row["caught"] else ", A PLANTED ERROR WAS NOT CAUGHT")
                    print(f"{row['folder']:32} {row['backend']:8} {row['layer'].removeprefix('model.layers.0.'):24} {said}", flush=True)
        bad = [row for row in rows if "wrong" in row or not row["caught"]]
        print(
            f"{len(rows)} layers, {len(bad)} wrong, {sum(row.get('caught', False) for row in rows)} planted errors caught, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        if a.gb:
            print(json.dumps(times(a.gb, Path(temporary))))
    return int(bool(bad) or not rows)


if __name__ == "__main__":
    sys.exit(main())
