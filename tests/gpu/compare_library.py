"""The library beside ours on fresh random layers of every target: counts of equal, different, both refuse, only one refuses.

    python tests/gpu/compare_library.py --count 2000 --wheels DIR      both versions, from wheels that lie in DIR
    python tests/gpu/compare_library.py --count 2000                   the version that is installed
    python tests/gpu/compare_library.py --library 0.1.20=DIR --only 7-1234

Needs an NVIDIA GPU and what humming-kernels needs (torch, triton, cuda-bindings, jinja2, tabulate, tqdm); no network. Each version runs
in processes of its own. Prints a line for each of the first differences and one JSON line a version; exit code 0 if nothing differed,
1 if something did, 2 if nothing could be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from humming_convert import Refused  # noqa: E402 the checkout need not be installed
from humming_convert.layouts.config import LayerConfig  # noqa: E402
from humming_convert.targets.environment import VERSIONS  # noqa: E402
from tests.golden.adapter import prepare  # noqa: E402
from tests.gpu.library import Library, LibraryBroken, LibraryRefused, Stored  # noqa: E402
from tests.gpu.library_cases import make_case  # noqa: E402

FLAGS = ("use_native_dequant", "use_ldmatrix_dequant", "use_raw_weight", "use_flat_weight", "use_block_scaled_mma", "should_apply_bs_on_c")
FIELDS = (*LayerConfig.__struct_fields__, *FLAGS)
UNDEFINED = "interleave_undefined"  # the library's index divides by zero; its bytes are arbitrary (layouts.md 5.7)
# the library drops the columns after the last whole group, scales and all (layouts.md 3); its rewrite of fused E8M0 weights reads groups of
# 4, 8, 16, ... words and nothing says what it makes of others (layouts.md S5)
STRICTER = ("k_not_multiple_of_group", "fused_group_not_legal")
OUTCOMES = ("equal", "different", "both refuse", "only ours refuses", "only the library refuses", "ours is stricter", "undefined")
FAULTS = ("different", "only ours refuses", "only the library refuses")
SHOWN = 20


def ours(case: dict[str, Any], inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Raises Refused."""
    from humming_convert.checkpoint.tensors import NAMES

    config, out = prepare(case, inputs)
    return config, {role: Stored(NAMES[x.dtype], x.shape, x.tobytes()) for role, x in out.items()}


def compare(case: dict[str, Any], inputs: dict[str, Any], library: Any) -> tuple[str, str]:
    """(one of OUTCOMES, what differs or why it was refused)."""
    try:
        config, tensors = ours(case, inputs)
        refused = None
    except Refused as error:
        refused = error.findings[0]
        if refused.code == UNDEFINED:
            return "undefined", ""
    try:
        their_config, their_tensors = library.make(case, inputs)
    except LibraryRefused as error:
        return ("both refuse", refused.code) if refused is not None else ("only the library refuses", str(error))
    if refused is not None and refused.code in STRICTER:
        return "ours is stricter", refused.code
    if refused is not None:
        return "only ours refuses", f"{refused.code}: {refused.message}"
    differs = [f"{f} {config[f]} there {their_config[f]}" for f in FIELDS if config[f] != their_config[f]]
    differs += [f"{role} only there" for role in sorted(their_tensors.keys() - tensors.keys())]
    for role, mine in tensors.items():
        theirs = their_tensors.get(role)
        if theirs is None:
            differs.append(f"{role} only here")
        elif (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            differs.append(f"{role} {mine.dtype}{list(mine.shape)} there {theirs.dtype}{list(theirs.shape)}")
        elif mine.data != theirs.data:
            wrong = sum(a != b for a, b in zip(mine.data, theirs.data, strict=True))
            differs.append(f"{role}: {wrong} of {len(mine.data)} bytes")
    return ("different", "; ".join(differs)) if differs else ("equal", "")


def describe(case: dict[str, Any]) -> str:
    w, a = case["weight_schema"], case["input_schema"]
    name = "ppu" if case["ppu"] else f"sm{case['sm']}"
    scale = f"{w['weight_scale_type']} {w['weight_scale_group_size']} {w['bs_dtype']} + {w['weight_scale_2_type']}"
    zero = "" if not w["has_zero_point"] else " fp zp" if w["is_fp_zero_point"] else " int zp"
    act = f"{a['a_dtype']}:{a['input_scale_group_size']} {a['input_quant_mode']}"
    return f"{case['id']} {name} {case['entry']} {w['b_dtype']}{zero} {scale}, {act}, {case['shape_n']}x{case['shape_k']} {case['param_dtype']}"


def run(library: Any, version: str, seed: int, numbers: range, seconds: float) -> dict[str, Any]:
    """Compares the cases of `numbers` until the time is over. The result can be printed as JSON and added up."""
    counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
    targets: Counter[str] = Counter()
    shown: list[str] = []
    end = time.monotonic() + seconds
    broken = None
    for index in numbers:
        if time.monotonic() > end:
            break
        case, inputs = make_case(seed, index, version)
        try:
            outcome, why = compare(case, inputs, library)
        except LibraryBroken as error:
            broken = f"{describe(case)}: {error}"
            break
        counts[outcome] += 1
        targets["ppu" if case["ppu"] else f"sm{case['sm']}"] += 1
        if outcome in FAULTS and len(shown) < SHOWN:
            shown.append(f"{outcome}: {describe(case)}: {why}")
    return {"version": version, "counts": dict(counts), "targets": dict(targets), "shown": shown, "broken": broken}


def added(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of several workers."""
    counts: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    for r in results:
        counts.update(r["counts"])
        targets.update(r["targets"])
    return {
        "version": results[0]["version"],
        "compared": sum(counts.values()),
        **{name.replace(" ", "_"): counts[name] for name in OUTCOMES},
        "targets": dict(sorted(targets.items())),
        "shown": [line for r in results for line in r["shown"]][:SHOWN],
        "broken": next((r["broken"] for r in results if r["broken"]), None),
    }


# ------------------------------------------------------------------ processes
def unpacked(wheels: Path, version: str, into: Path) -> Path:
    """The library's files from its wheel. LibraryBroken if there is none."""
    found = sorted(wheels.glob(f"humming_kernels-{version}-*.whl"))
    if not found:
        raise LibraryBroken(f"no wheel of humming-kernels {version} in {wheels}")
    folder = into / version
    with zipfile.ZipFile(found[0]) as wheel:
        wheel.extractall(folder)
        for name in wheel.namelist():
            if "/_native/" in name:  # compilers and libraries beside the Python files are run, not only read
                (folder / name).chmod(0o755)
    return folder


def spawn(arguments: argparse.Namespace, version: str, folder: Path | None) -> dict[str, Any]:
    """All workers of one version."""
    environment = dict(os.environ)
    if folder is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [environment.get("PYTHONPATH")])])
    workers = []
    for number in range(arguments.jobs):
        command = [sys.executable, __file__, "--worker", f"{number}/{arguments.jobs}", "--version", version, "--seed", str(arguments.seed)]
        command += ["--count", str(arguments.count), "--seconds", str(arguments.seconds)]
        workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    results = []
    for worker in workers:
        out, err = worker.communicate()
        lines = out.strip().splitlines()
        if worker.returncode or not lines:
            said = (err.strip().splitlines() or ["no output"])[-1]
            results.append({"version": version, "counts": {}, "targets": {}, "shown": [], "broken": f"a worker ended: {said}"})
        else:
            results.append(json.loads(lines[-1]))
    return added(results)


def work(arguments: argparse.Namespace) -> int:
    """One worker: its JSON on the last line."""
    number, of = (int(x) for x in arguments.worker.split("/"))
    version = arguments.version
    try:
        library = Library()
        if library.version != version:
            raise LibraryBroken(f"humming-kernels {library.version} is importable, {version} was asked for")
    except LibraryBroken as error:
        print(json.dumps({"version": version, "counts": {}, "targets": {}, "shown": [], "broken": str(error)}))
        return 0
    print(json.dumps(run(library, version, arguments.seed, range(number, arguments.count, of), arguments.seconds)))
    return 0


def only(ids: list[str], version: str) -> int:
    """Some cases again, here, with everything that differs."""
    library, faults = Library(), 0
    for name in ids:
        seed, _, number = name.partition("-")
        case, inputs = make_case(int(seed), int(number), version)
        outcome, why = compare(case, inputs, library)
        print(f"{outcome}: {describe(case)}: {why}" + (f"\n{json.dumps(case)}" if outcome in FAULTS else ""), flush=True)
        faults += outcome in FAULTS
    return int(faults > 0)


def parsed(arguments: list[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--count", type=int, default=2000, help="layers a version")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument(
        "--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes; compiling the library's kernels takes most of the time"
    )
    p.add_argument("--seconds", type=float, default=240, help="a version; what is left then is not compared")
    p.add_argument("--wheels", type=Path, help="folder with wheels of both versions")
    p.add_argument("--library", action="append", default=[], metavar="VERSION=DIR", help="folder that holds the package `humming`")
    p.add_argument("--only", metavar="SEED-NUMBER", nargs="+", help="these cases again, of the installed version")
    p.add_argument("--version", help=argparse.SUPPRESS)
    p.add_argument("--worker", help=argparse.SUPPRESS)
    return p.parse_args(arguments)


def main(arguments: list[str]) -> int:
    a = parsed(arguments)
    if a.worker:
        return work(a)
    if a.only:
        return only(a.only, Library().version)
    with tempfile.TemporaryDirectory() as scratch:
        folders: dict[str, Path | None] = {v: Path(f) for v, _, f in (x.partition("=") for x in a.library)}
        try:
            if a.wheels is not None:
                folders |= {v: unpacked(a.wheels, v, Path(scratch)) for v in VERSIONS}
            elif not folders:
                folders = {Library().version: None}
        except LibraryBroken as error:
            print(f"cannot compare: {error}", file=sys.stderr)
            return 2
        found = [spawn(a, version, folder) for version, folder in sorted(folders.items())]
    for result in found:
        for line in result.pop("shown"):
            print(line[:400])
        print(json.dumps(result))
    if any(r["broken"] or not r["compared"] for r in found):
        return 2
    return int(any(r[name.replace(" ", "_")] for r in found for name in FAULTS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
