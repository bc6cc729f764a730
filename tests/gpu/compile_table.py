"""Kernels of every layout family compiled for every architecture that NVRTC knows, without a GPU; a table of what they take.

    python tests/gpu/compile_table.py [--sm 90 ...] [--jobs N] [--out FILE.json]

Registers, bytes of shared memory, bytes of stack (spills land there) from cuobjdump, and the tensor-core instruction from nvdisasm where
these two are found (nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm); without them only sizes. Exit code 1 if a kernel does not compile or does
not multiply on tensor cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "layouts"), str(HERE.parent.parent)]

from cases import Case, selected  # noqa: E402

from humming_convert.gemm.nvrtc import CompileError, architecture, compile_cubin, compiler, supported_sms  # noqa: E402
from humming_convert.gemm.source import kernel_source  # noqa: E402
from humming_convert.gemm.tuning import Tuning  # noqa: E402


def tool(name: str) -> str | None:
    """Beside NVRTC, or on the path."""
    for folder in (compiler().path.parent.parent / "bin", *map(Path, os.environ.get("PATH", "").split(os.pathsep))):
        if (folder / name).is_file():
            return str(folder / name)
    return None


def one(job: tuple[str, int, int]) -> dict[str, Any]:
    """Compiles the layer of number `index` for `sm`."""
    family, index, sm = job
    spec = selected()[index]
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, sm)
    start = time.perf_counter()
    try:
        cubin = compile_cubin(kernel_source("mma_any", case.layer, case.compute, Tuning.of(64)), architecture(sm))
    except CompileError as error:
        return {"family": family, "sm": sm, "error": str(error)}
    found: dict[str, Any] = {"family": family, "sm": sm, "bytes": len(cubin), "seconds": time.perf_counter() - start}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        if (dump := tool("cuobjdump")) is not None:
            text = subprocess.run([dump, "--dump-resource-usage", f.name], capture_output=True, text=True, check=True).stdout
            found |= {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", text)}
        if (disassemble := tool("nvdisasm")) is not None:
            text = subprocess.run([disassemble, "-c", f.name], capture_output=True, text=True, check=True).stdout
            found["instructions"] = sorted(set(re.findall(r"\b(HMMA\.[\w.]+)", text)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sm", type=int, nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out")
    asked = parser.parse_args()
    sms = asked.sm or list(supported_sms())
    family_of: dict[str, dict[str, int]] = {}
    for index, spec in enumerate(selected()):
        recipe = spec.recipe()
        assert recipe is not None
        family_of.setdefault(Case.of(spec, recipe, 90).layer.family, {}).setdefault(spec.param, index)
    # float16 where a family has it: sm_75 has no bfloat16
    chosen = {family: by.get("F16", by.get("BF16", 0)) for family, by in family_of.items()}
    jobs = [(f, i, sm) for f, i in sorted(chosen.items()) for sm in sms if sm >= 80 or "F16" in family_of[f]]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(one, jobs))
    print(f"NVRTC {compiler().version}; registers / shared bytes / stack bytes")
    print(f"{'family':26}" + "".join(f"{'sm' + str(sm):>14}" for sm in sms))
    for family in sorted(chosen):
        mine = {r["sm"]: r for r in rows if r["family"] == family}
        cells = [
            f"{r.get('reg', '?')}/{r.get('shared', '?')}/{r.get('stack', '?')}" if (r := mine.get(sm)) and "error" not in r else "-"
            for sm in sms
        ]
        print(f"{family:26}" + "".join(f"{c:>14}" for c in cells))
    for sm in sms:
        print(f"sm{sm}: {sorted({i for r in rows if r['sm'] == sm for i in r.get('instructions', ())})}")
    failed = [r for r in rows if "error" in r or r.get("instructions") == []]
    for r in failed[:3]:
        print("FAILED", r)
    print(f"{len(rows)} kernels, {len(failed)} failed, {sum(r.get('seconds', 0) for r in rows):.0f} s of compiling")
    if asked.out:
        Path(asked.out).write_text(json.dumps(rows, indent=1))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
