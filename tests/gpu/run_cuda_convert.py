"""`convert --device cuda` on a real GPU: the bytes of the CPU, random layouts, and the time of a larger checkpoint.

    python tests/gpu/run_cuda_convert.py [--blocks N] [--gb G] [--jobs 1,8] [--work DIR] [--out FILE.json]

Prints counts: random recipes packed and proven by the kernels against the numpy reference; samples of every family converted on both, file by
file; seconds of a random GPTQ checkpoint on both, in turn. Exit code 1 if a byte differs, or if the GPU was not used.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from humming_convert import Refused, api, passes  # noqa: E402
from humming_convert.demo.pack import write_safetensors  # noqa: E402
from humming_convert.demo.samples import all_samples  # noqa: E402
from humming_convert.gemm.device import Device  # noqa: E402
from humming_convert.gemm.pack_any import FOUND, Block, GpuPackers, mismatch, open_packers  # noqa: E402
from humming_convert.proof import stream  # noqa: E402
from tests.passes.test_many_shapes import Case  # noqa: E402

REQUESTS = (
    {"target": "sm75", "act": "fp16", "dtype": "fp16"},
    {"target": "sm80", "act": "int8"},
    {"target": "sm90", "act": "bf16"},
    {"target": "sm90", "act": "fp8"},
    {"target": "sm100", "act": "fp8"},
    {"target": "sm120", "act": "fp8"},
    {"target": "ppu", "act": "bf16"},
)
LINEARS = (("self_attn.q_proj", 4096, 4096), ("self_attn.k_proj", 1024, 4096), ("self_attn.v_proj", 1024, 4096))
LINEARS += (("self_attn.o_proj", 4096, 4096), ("mlp.gate_proj", 14336, 4096), ("mlp.up_proj", 14336, 4096), ("mlp.down_proj", 4096, 14336))


# ------------------------------------------------------------------ blocks
def random_recipes(shared: GpuPackers, count: int) -> tuple[int, int]:
    """(codes compared, flipped bits found) of `count` random layers. AssertionError with the seed of the first that is wrong."""
    device, queue = shared.device, shared.device.queue()
    codes = flipped = 0
    for number in range(count):
        case = Case(np.random.default_rng((11, number)))
        r, words = case.r, np.zeros(len(case.want), np.uint32)
        shared.ready(r.bits, queue)
        on_device, result = device.room(words.nbytes), device.room(8 * FOUND)
        held = None if case.aux is None else passes.Aux(case.aux)
        aux = None if held is None else device.room(held.values.nbytes)
        if held is not None and aux is not None:
            queue.send(aux.address, held.values)
        kept: list[Any] = []
        blocks: list[tuple[Block, dict[str, Any]]] = []
        for row, end, stored in case.parts:
            where = {"packing": case.packing, "stored": stored, "n": end - row, "k": r.k, "row": row, "aux": case.aux}
            walk = passes.walk(r, words=len(words), **{**where, "aux": held})
            source = np.ascontiguousarray(walk.source)
            assert source.strides[0] == walk.source.strides[0] or len(source) == 1
            room = device.room(source.nbytes)
            queue.send(room.address, source)
            kept += [room, source]
            block = Block(
                source=room.address,
                words=on_device.address + 4 * walk.word,
                aux=0 if walk.aux is None or aux is None else aux.address + walk.aux,
                aux_pitch=walk.aux_pitch,
                tables=shared.tables(walk, queue),
                along_n=bool(number % 2),
            )
            kept.append(block.tables)
            blocks.append((block, where))
        queue.clear(on_device.address, words.nbytes)
        for block, _ in blocks:
            block.start(queue, "pack_any", r.bits)
        queue.bring(words, on_device.address)
        queue.wait()
        passes.fill_padding(r, words, case.aux)
        assert (words == case.want).all(), (number, r, case.packing)
        bit = int(case.rng.integers(32 * len(words)))
        words[bit // 32] ^= np.uint32(1 << bit % 32)
        queue.send(on_device.address, words)
        for block, where in blocks:
            found = np.zeros(FOUND, np.uint64)
            queue.clear(result.address, 8 * FOUND)
            block.start(queue, "prove_any", r.bits, result.address)
            queue.bring(found, result.address)
            queue.wait()
            have = mismatch(found, where["n"], where["k"], where["row"], 0)
            assert have == passes.prove_block(r, written=words, **where), (number, bit, r, case.packing)
            codes += where["n"] * where["k"]
            flipped += have is not None
    return codes, flipped


# ------------------------------------------------------------------ samples
def compare(cpu: Path, gpu: Path) -> tuple[int, int]:
    """(files, bytes) that are the same in both folders. AssertionError if one is not."""
    names = sorted(p.name for p in cpu.iterdir())
    assert names == sorted(p.name for p in gpu.iterdir()), (names, gpu)
    wrong = [n for n in names if not filecmp.cmp(cpu / n, gpu / n, shallow=False)]
    assert not wrong, (gpu, wrong)
    return len(names), sum((cpu / n).stat().st_size for n in names)


def samples(work: Path) -> Counter[str]:
    """Every sample for every request, small layers too, in windows of a few KB."""
    small, window = stream.SMALL, stream.WINDOW
    stream.SMALL, stream.WINDOW = 0, 1 << 12
    total: Counter[str] = Counter()
    try:
        for sample in all_samples():
            model = sample.write(work / "samples")
            for number, options in enumerate(REQUESTS):
                try:
                    plan = api.plan(model, **options)
                except Refused:
                    total["refused"] += 1
                    continue
                outs = [work / f"{sample.name}-{number}-{device}" for device in ("cpu", "cuda")]
                api.convert(plan, out=outs[0])
                api.convert(plan, out=outs[1], device="cuda")
                files, nbytes = compare(*outs)
                total += Counter(conversions=1, layers=len(plan.layers), files=files, bytes=nbytes)
    finally:
        stream.SMALL, stream.WINDOW = small, window
    return total


# ------------------------------------------------------------------ time
def checkpoint(folder: Path, gb: float) -> Path:
    """A random GPTQ checkpoint with the linears of a Llama of 8 billion, a file a decoder layer."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    pool = rng.integers(0, 1 << 32, 1 << 24, dtype=np.uint32).view(np.int32)
    per_layer = sum(n * k // 2 for _, n, k in LINEARS)
    layers, index = max(round(gb * 1e9 / per_layer), 1), {}
    for layer in range(layers):
        tensors: dict[str, Any] = {}
        for name, n, k in LINEARS:
            module, start = f"model.layers.{layer}.{name}", int(rng.integers(1 << 20))
            tensors[f"{module}.qweight"] = np.resize(pool[start:], (k // 8, n))
            tensors[f"{module}.qzeros"] = np.full((k // 128, n // 8), 0x77777777, np.int32)
            tensors[f"{module}.scales"] = (rng.random((k // 128, n), dtype=np.float32) * 0.01 + 0.001).astype(np.float16)
            tensors[f"{module}.g_idx"] = (np.arange(k) // 128).astype(np.int32)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(4096, np.float16)
        if layer == 0:
            tensors |= {f"model.{x}.weight": np.ones(s, np.float16) for x, s in (("embed_tokens", (256, 4096)), ("norm", (4096,)))}
        file = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors"
        write_safetensors(folder / file, tensors)
        index |= dict.fromkeys(tensors, file)
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False, "checkpoint_format": "gptq"}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float16", "vocab_size": 256, "hidden_size": 4096}
    config |= {
        "intermediate_size": 14336,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    config |= {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    nbytes = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": nbytes}, "weight_map": index}))
    return folder


def timed(work: Path, gb: float, jobs: list[int], runs: int) -> list[dict[str, Any]]:
    """Seconds from the plan to the published folder, medians of `runs`, both devices in turn."""
    model = checkpoint(work / "model", gb)
    plan = api.plan(model, target="sm90", act="bf16", shard_size="150MB")
    rows = []
    for count in jobs:
        seconds: dict[str, list[dict[str, float]]] = {"cpu": [], "cuda": []}
        for run in range(runs):
            for device, spent in seconds.items():
                out, begin = work / f"{device}-{count}-{run}", time.perf_counter()
                result = api.convert(plan, out=out, jobs=count, device=device)
                spent.append({**result.seconds, "wall": time.perf_counter() - begin})
            compare(work / f"cpu-{count}-{run}", work / f"cuda-{count}-{run}")
            for device in seconds:
                for path in (work / f"{device}-{count}-{run}").iterdir():
                    path.unlink()
        for device, spent in seconds.items():
            rows.append({"jobs": count, "device": device, **{x: round(statistics.median(s[x] for s in spent), 3) for x in spent[0]}})
            print(json.dumps(rows[-1]), flush=True)
    gpu_bytes = plan.totals["bytes_out"]
    print(f"{gpu_bytes / 1e9:.2f} GB out, {len(plan.files)} files; the same bytes each time", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--jobs", default="1,8")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    launched: Counter[str] = Counter()
    real = Device.launch

    def counted(self: Device, source: Any, *rest: Any) -> None:
        launched[source.name] += 1
        real(self, source, *rest)

    Device.launch = counted  # type: ignore[method-assign]
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hc-cuda-", dir=args.work) as folder:
        work, begin = Path(folder), time.perf_counter()
        shared = open_packers(None)
        opened = time.perf_counter() - begin
        print(
            f"{shared.device.name}, sm_{shared.device.sm}; opened in {opened:.2f} s, {shared.held / 1e6:.0f} MB of host memory", flush=True
        )
        if args.blocks:
            codes, flipped = random_recipes(shared, args.blocks)
            print(
                f"{args.blocks} random layers, {codes} codes: all equal; {flipped} parts with a flipped bit, all found as on the CPU",
                flush=True,
            )
            report["blocks"] = {"layers": args.blocks, "codes": codes, "flipped": flipped}
        before = launched.total()
        report["samples"] = dict(samples(work))
        used = launched.total() - before
        print(f"samples: {report['samples']}, {used} launches: all files equal; {time.perf_counter() - begin:.0f} s so far", flush=True)
        assert used > 0, "the GPU was not used"
        if args.gb:
            before = launched.total()
            report["timed"] = timed(work, args.gb, [int(x) for x in args.jobs.split(",")], args.runs)
            assert launched.total() > before, "the GPU was not used"
    report["launched"] = dict(launched)
    print(f"launches: {report['launched']}; {time.perf_counter() - begin:.0f} s in all", flush=True)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
