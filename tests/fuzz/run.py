"""The loop: draw a case, write it, judge it, keep what is at fault. `scripts/fuzz` is its command line.

A case is {"base", "steps"}; `case` makes its folder and judges it, `shrunk` leaves out the steps that are not needed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz import mutations
from tests.fuzz.folders import Folder, bases, write
from tests.fuzz.judge import Verdict, judge, planned

CORPUS = Path(__file__).resolve().parent / "corpus"
Case = dict[str, Any]
TARGETS = ("sm75", "sm80", "sm89", "sm90", "sm100", "sm120", "ppu")


def scratch() -> str | None:
    """A folder in memory, where the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def case(base: str, steps: Sequence[Any]) -> Verdict:
    """One mutated folder, converted and judged."""
    folder = bases()[base].copy()
    for step in steps:
        mutations.apply(folder, (step[0], step[1]))
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="fuzz-") as top:
        try:
            write(folder, Path(top) / "in")
        except (KeyError, ValueError, FileExistsError):
            return Verdict("refused", "not written")
        verdict = judge(Path(top) / "in", Path(top) / "out")
        if not verdict.fault and steps:
            at = len(str(steps)) % len(TARGETS)  # any, the same for the same case
            if verdict.word == "equal" and TARGETS[at] == "sm90":
                also = judge(Path(top) / "in", Path(top) / "packed", target="sm90", act="bf16" if _bf16(folder) else "fp16")
            else:
                also = planned(Path(top) / "in", TARGETS[at]) or verdict
            verdict = also if also.fault else verdict
        return verdict


def _bf16(folder: Folder) -> bool:
    """The model dtype; the other one would be another conversion."""
    config = folder.json.get("config.json", {})
    return "float16" not in [config.get(k) for k in ("dtype", "torch_dtype")]


def cases(seed: int, only: Sequence[str] = ()) -> Iterator[Case]:
    """Endless, the same for the same seed and bases."""
    rng = random.Random(seed)
    names = [n for n in bases() if not only or any(o in n for o in only)]
    # small ones more often: what goes wrong in a mixture of experts mostly goes wrong in one matrix too, and is judged sooner
    weights = [1 / len(bases()[n].tensors()) for n in names]
    while True:
        base = rng.choices(names, weights)[0]
        folder, steps = bases()[base].copy(), []
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            step = mutations.draw(folder, rng)
            mutations.apply(folder, step)
            steps.append([step[0], step[1]])
        yield {"base": base, "steps": steps}


def shrunk(found: Case, word: str) -> Case:
    """The same fault with as few steps as it takes."""
    steps = list(found["steps"])
    for i in reversed(range(len(steps))):
        fewer = steps[:i] + steps[i + 1 :]
        if fewer and case(found["base"], fewer).word == word:
            steps = fewer
    return {"base": found["base"], "steps": steps}


def run(
    minutes: float, seed: int, *, limit: int | None = None, out: Path | None = None, only: Sequence[str] = ()
) -> tuple[Counter[str], list[Case]]:
    """Counts by verdict, and the faults, shrunk. out: a file that gets a line of JSON for each fault as it is found."""
    counts: Counter[str] = Counter()
    faults: list[Case] = []
    end = time.monotonic() + 60 * minutes
    for drawn in cases(seed, only):
        if time.monotonic() > end or (limit is not None and counts.total() >= limit):
            break
        verdict = case(drawn["base"], drawn["steps"])
        if verdict.word == "hang":  # once more: the machine may have been busy, or this process stopped
            verdict = case(drawn["base"], drawn["steps"])
        counts[verdict.word] += 1
        if verdict.fault:
            small = {**shrunk(drawn, verdict.word), "verdict": verdict.word, "detail": verdict.detail[-1500:]}
            faults.append(small)
            if out is not None:
                with out.open("a") as f:
                    f.write(json.dumps(small) + "\n")
        if counts.total() % 500 == 0:
            print(f"{counts.total()} folders: {dict(counts)}", file=sys.stderr, flush=True)
    return counts, faults


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="fuzz", description="Convert mutated checkpoint folders and compare each output with an independent slow reader."
    )
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--seed", type=int, default=None, help="default: by the clock")
    p.add_argument("--limit", type=int, default=None, metavar="FOLDERS")
    p.add_argument("--only", action="append", default=[], metavar="TEXT", help="bases whose name holds TEXT")
    p.add_argument("--out", type=Path, default=Path("fuzz-faults.jsonl"), help="a line of JSON for each fault")
    p.add_argument("--replay", type=Path, metavar="FILE", help="judge the cases of a file again")
    args = p.parse_args(arguments)
    if args.replay is not None:
        return replay(args.replay)
    seed = args.seed if args.seed is not None else int(time.time())
    counts, faults = run(args.minutes, seed, limit=args.limit, out=args.out, only=args.only)
    print(f"seed {seed}: {counts.total()} mutated folders, " + ", ".join(f"{n} {w}" for w, n in counts.most_common()))
    for fault in faults[:20]:
        print(json.dumps({k: v for k, v in fault.items() if k != "detail"}), fault["detail"].splitlines()[-1])
    return int(bool(faults))


def replay(path: Path) -> int:
    bad = 0
    for line in path.read_text().splitlines():
        found = json.loads(line)
        verdict = case(found["base"], found["steps"])
        bad += verdict.fault
        if verdict.fault:
            print(
                verdict.word, found["base"], json.dumps(found["steps"]), verdict.detail.strip().splitlines()[-1] if verdict.detail else ""
            )
    print(f"{bad} faults")
    return int(bool(bad))


__all__ = ["CORPUS", "case", "cases", "main", "run"]

if __name__ == "__main__":
    sys.exit(main())
