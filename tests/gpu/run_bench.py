"""`bench` and `tune` on a real GPU: a random GPTQ model of real sizes, measured by the heuristics, tuned, measured again.

    python tests/gpu/run_bench.py [--acts bf16,fp8] [--layer '*down_proj'] [--m 1,16,256,4096] [--jobs 16] [--out DIR]

Prints the tables of both runs of `bench`, what `tune` found, and how many points are quicker than before. DIR gets the documents and the tuning
files. Exit code 1 if a product is wrong, if the tunings are not taken after tuning, or if the folder does not verify. It needs what `bench` needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from humming_convert import api  # noqa: E402
from humming_convert.bench import table  # noqa: E402
from humming_convert.bench.document import CORE, Document  # noqa: E402
from humming_convert.bench.run import run  # noqa: E402
from humming_convert.gemm.families import Tuned  # noqa: E402
from humming_convert.gemm.load import load_folder  # noqa: E402
from humming_convert.gemm.timing import CupyGraphs  # noqa: E402
from humming_convert.gemm.tune import tune  # noqa: E402
from tests.gpu.run_cuda_convert import checkpoint  # noqa: E402


def say(document: Document) -> None:
    print("\n".join(table.notes(document)))
    for layer in document.layers:
        print(table.title(layer))
        for row in (table.HEAD, *table.rows(layer)):
            print("  " + " | ".join(row))
    sys.stdout.flush()


def quicker(before: Document, after: Document) -> str:
    """Of the core's points, with the same measurement."""
    pairs = [
        (a.contenders[CORE].us, b.contenders[CORE].us)
        for x, y in zip(before.layers, after.layers, strict=True)
        for a, b in zip(x.points, y.points, strict=True)
    ]
    more, less = sum(b < 0.98 * a for a, b in pairs), sum(b > 1.02 * a for a, b in pairs)
    return f"{len(pairs)} points: {more} more than 2 % quicker once tuned, {less} more than 2 % slower"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--acts", default="bf16,fp8")
    parser.add_argument("--layer", default="*down_proj")
    parser.add_argument("--m", default="1,16,256,4096")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
    rows, wrong, begin = [int(m) for m in asked.m.split(",")], 0, time.perf_counter()

    def told(text: str) -> None:
        print(f"[{time.perf_counter() - begin:6.1f}] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="hc-bench-") as work:
        model = checkpoint(Path(work) / "model", 0.1)
        for act in asked.acts.split(","):
            out = Path(work) / act
            api.convert(api.plan(model, target="sm90", act=act), out=out)
            before = run(out, rows, asked.layer, jobs=asked.jobs, told=told)
            say(before)
            result = tune(out, CupyGraphs, pattern=asked.layer, jobs=asked.jobs, told=told)
            wrong += len(result.findings)
            print("\n".join(str(f) for f in result.findings))
            after = run(out, rows, asked.layer, jobs=asked.jobs, told=told)
            say(after)
            print(f"{act}: {quicker(before, after)}")
            loaded = load_folder(out)
            name = result.layers[0].name
            taken = isinstance(loaded[name].choice.kernels, Tuned)
            verified = api.verify(out)
            print(f"{act}: {loaded.tunings.words}; taken: {taken}; {verified.summary()}")
            wrong += len(before.wrong) + len(after.wrong) + (not taken) + verified.failed
            if asked.out:
                for kind, document in (("heuristics", before), ("tuned", after)):
                    (asked.out / f"bench-{act}-{kind}.json").write_text(json.dumps(document.as_dict(), indent=1))
                (asked.out / f"{act}-{result.path.name}").write_bytes(result.path.read_bytes())
    told(f"{wrong} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
