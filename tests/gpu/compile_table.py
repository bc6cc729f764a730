"""Kernels of every family compiled for every architecture that NVRTC knows, without a GPU; a table of what they take.

    python tests/gpu/compile_table.py [--sm 90 ...] [--jobs N] [--out FILE.json]

Registers, bytes of shared memory, bytes of stack (spills land there) from cuobjdump, and the tensor-core instruction from nvdisasm where
these two are found (nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm); without them only sizes. Exit code 1 if a kernel does not compile or does
not multiply on tensor cores. mma_any: a row for each layout family; the fast families: a row for each way in which they multiply.
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
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "layouts"), str(HERE.parent.parent)]

from cases import Case, Spec, fast_specs, selected  # noqa: E402

from humming_convert.gemm.families import PLAIN, named  # noqa: E402
from humming_convert.gemm.multiplier import source_of  # noqa: E402
from humming_convert.gemm.nvrtc import CompileError, architecture, compile_cubin, compiler, supported_sms  # noqa: E402


def tool(name: str) -> str | None:
    """Beside NVRTC, or on the path."""
    for folder in (compiler().path.parent.parent / "bin", *map(Path, os.environ.get("PATH", "").split(os.pathsep))):
        if (folder / name).is_file():
            return str(folder / name)
    return None


FIRST_SM = {"mma_sm80": 80}  # the other fast families: 90, older ones have none of their instructions
# tensor cores: mma.sync; wgmma; block-scaled mma.sync; tcgen05
TENSOR = re.compile(r"\b((?:HMMA|IMMA|HGMMA|QGMMA|IGMMA|QMMA|OMMA|UTC[A-Z]*MMA)[\w.]*)")
# cp.async, blocks of shared memory for a warp, copies that the hardware makes by itself
COPIES = re.compile(r"\b(LDGSTS|LDSM|UTMALDG|UBLKCP)\b")


# until no product of wgmma is under way
WAITS = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0\b")


def inspect(cubin: bytes) -> dict[str, Any]:
    """What cuobjdump and nvdisasm say, where they are."""
    found: dict[str, Any] = {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        if (dump := tool("cuobjdump")) is not None:
            text = subprocess.run([dump, "--dump-resource-usage", f.name], capture_output=True, text=True, check=True).stdout
            found |= {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", text)}
        if (disassemble := tool("nvdisasm")) is not None:
            text = subprocess.run([disassemble, "-c", f.name], capture_output=True, text=True, check=True).stdout
            found["instructions"] = sorted(set(TENSOR.findall(text)))
            found["copies"] = sorted(set(COPIES.findall(text)))
            found["waits"] = len(WAITS.findall(text))
    return found


@dataclass(frozen=True, slots=True)
class Job:
    """One cell: `row` of the table, a family by name, a layer, an architecture."""

    row: str
    family: str
    spec: Spec
    sm: int


def one(job: Job) -> dict[str, Any]:
    """Compiles the kernel for 64 rows."""
    recipe, family = job.spec.recipe(), named(job.family)
    assert recipe is not None
    case = Case.of(job.spec, recipe, job.sm, rounds=True)
    about: dict[str, Any] = {"family": job.row, "sm": job.sm}
    if (reason := family.why_not(case.layer, case.compute, job.sm)) is not None:
        return about | {"rejected": reason}
    source = source_of(family, case.layer, case.compute, 64)
    asked = family.tuning(case.layer, family.fitted(case.layer, case.compute), 64).shared
    start = time.perf_counter()
    try:
        cubin = compile_cubin(source, architecture(job.sm))
    except CompileError as error:
        return about | {"error": str(error)}
    found = about | {"bytes": len(cubin), "seconds": time.perf_counter() - start} | inspect(cubin)
    if "shared" in found:
        found["shared"] += asked
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
    every = selected()
    jobs = [Job(f, PLAIN.NAME, every[i], sm) for f, i in sorted(chosen.items()) for sm in sms if sm >= 80 or "F16" in family_of[f]]
    jobs += [
        Job(f"{family}: {spec.name.partition(' zero=')[0]} {spec.zero} {spec.act}", family, spec, sm)
        for family, specs in fast_specs().items()
        for spec in specs
        for sm in sms
        if sm >= FIRST_SM.get(family, 90)
    ]
    names = list(dict.fromkeys(job.row for job in jobs))
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(one, jobs))
    print(f"NVRTC {compiler().version}; registers / shared bytes / stack bytes")
    print(f"{'family':66}" + "".join(f"{'sm' + str(sm):>14}" for sm in sms))
    for family in names:
        mine = {r["sm"]: r for r in rows if r["family"] == family}
        cells = [
            f"{r.get('reg', '?')}/{r.get('shared', '?')}/{r.get('stack', '?')}" if (r := mine.get(sm)) and "bytes" in r else "-"
            for sm in sms
        ]
        print(f"{family:66}" + "".join(f"{c:>14}" for c in cells))
    for sm in sms:
        print(f"sm{sm}: {sorted({i for r in rows if r['sm'] == sm for key in ('instructions', 'copies') for i in r.get(key, ())})}")
    failed = [r for r in rows if "error" in r or r.get("instructions") == []]
    for r in failed[:3]:
        print("FAILED", r)
    rows = [r for r in rows if "rejected" not in r]
    print(f"{len(rows)} kernels, {len(failed)} failed, {sum(r.get('seconds', 0) for r in rows):.0f} s of compiling")
    if asked.out:
        Path(asked.out).write_text(json.dumps(rows, indent=1))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
