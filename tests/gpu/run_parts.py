"""run_all.py in several processes on one GPU, and one table of what they found.

    python tests/gpu/run_parts.py --parts 8 [--family NAME] [--out FILE.json] [other options of run_all.py]

Planting errors is work of the CPU (the reference of a planted layer is made anew each time), so that a process for each core is quicker.
Exit code 1 if a part found a layer wrong or missed an error, or did not end as it should.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from run_all import HEADS, print_table  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--out")
    asked, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{i}.json" for i in range(asked.parts)]
        command = [sys.executable, str(HERE / "run_all.py"), *others]
        parts = [
            subprocess.Popen(
                [*command, "--part", f"{i}/{asked.parts}", "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for i, out in enumerate(outs)
        ]
        told = [part.communicate()[0] for part in parts]
        codes = [part.returncode for part in parts]
        for code, text, out in zip(codes, told, outs, strict=True):
            if code or not out.exists():
                print(text)
        found = [json.loads(out.read_text()) for out in outs if out.exists()]
    table: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(int))
    for document in found:
        for family, row in document["families"].items():
            for head in HEADS:
                join = max if head == "max_error" else int.__add__
                table[family][head] = join(table[family][head], row.get(head, 0))
    rows: dict[str, float] = defaultdict(float)
    for document in found:
        for m, error in document["rows"].items():
            rows[m] = max(rows[m], error)
    not_for = sum((Counter(document["not_for"]) for document in found), Counter())
    total = {key: sum(len(d[key]) for d in found) for key in ("wrong", "missed")} | {
        key: sum(d[key] for d in found) for key in ("left_out", "kernels")
    }
    print(f"{len(found)} of {asked.parts} parts; {total}; largest errors by rows: {dict(rows)}")
    for reason, count in not_for.items():
        print(f"{count} layers are not for this family: {reason}")
    print_table(table)
    if asked.out:
        document = (
            {key: found[0][key] for key in ("device", "arch", "nvrtc")} | {"families": table, "not_for": not_for, "rows": rows} | total
        )
        Path(asked.out).write_text(json.dumps(document, indent=1, default=float))
    return int(any(codes) or len(found) != asked.parts)


if __name__ == "__main__":
    sys.exit(main())
