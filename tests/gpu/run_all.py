"""One command for a machine with a GPU: every layout and type multiplied and compared, planted single-bit errors looked for.

    python tests/gpu/run_all.py [--family wgmma_sm90a] [--out FILE.json] [--limit N] [--flips N] [--jobs N] [--match TEXT] [--rounds]

Prints a table of layout families: layers, weights compared one by one, largest error of a product over the sum of magnitudes, and of the
planted errors: tried, caught, without effect on any value. Exit code 1 if a layer is wrong or an error that changes a value is not caught.
Under compute-sanitizer: `compute-sanitizer --tool memcheck python tests/gpu/run_all.py --limit 12 --flips 0`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "layouts"), str(HERE.parent.parent)]

import numpy as np  # noqa: E402
from cases import Case, Spec, selected  # noqa: E402

from humming_convert.gemm import tasks  # noqa: E402
from humming_convert.gemm.cache import build_all  # noqa: E402
from humming_convert.gemm.check import DTYPES, ROWS, Checker, LayerCheck, as_float, half_bits, random_rows  # noqa: E402
from humming_convert.gemm.device import Device, bits, open_device  # noqa: E402
from humming_convert.gemm.families import FAMILIES, PLAIN, Family, at_rows, named  # noqa: E402
from humming_convert.gemm.multiplier import Multiplier, source_of  # noqa: E402
from humming_convert.gemm.nvrtc import architecture, compiler  # noqa: E402
from humming_convert.gemm.reference import Reference  # noqa: E402
from humming_convert.gemm.source import KernelSource  # noqa: E402


def reason_against(spec: Spec, device: Device, family: Family, rounds: bool) -> str | None:
    recipe = spec.recipe()
    assert recipe is not None
    case = Case.of(spec, recipe, device.sm)
    return family.why_not(case.layer, replace(case.compute, rounds=rounds), device.sm)


class Subject:
    """One case, with what it stands for before anything is planted."""

    def __init__(self, spec: Spec, device: Device, family: Family = PLAIN, rounds: bool = False) -> None:
        packed = spec.packed()
        case = Case.of(spec, packed.recipe, device.sm)
        self.case = case = replace(case, compute=replace(case.compute, rounds=rounds))
        self.packed = {role: np.ascontiguousarray(x) for role, x in packed.tensors.items()}
        first = self.reference(self.packed)
        experts = max(1, case.layer.experts)
        self.weights = [first.weights(e) for e in range(experts)]
        self.bias = [first.bias(e) for e in range(experts)]
        given = 0.25 if case.compute.act_mode == "fixed" else 0.01
        self.checker = Checker(device, case.layer, case.compute, self.packed, self.weights.__getitem__, self.bias.__getitem__, given)
        self.checker.family = family

    def reference(self, packed: dict[str, Any]) -> Reference:
        recipe = self.case.recipe
        return Reference(recipe.config.as_dict(), recipe.pair.target, recipe.environment, packed)

    def changes(self, packed: dict[str, Any]) -> bool:
        """Does a planted error change any float32 value of any weight or bias? Of weights that are rounded to 16 bits: any such value?"""
        family = at_rows(self.checker.family, 1, self.case.compute.task)
        rounding = family.rounding(self.case.layer, self.case.compute)
        weight_type = DTYPES[self.case.layer.half] if rounding == "weights" else np.dtype(np.float32)
        other = self.reference(packed)
        if self.case.layer.zero == "integer" and any(self.impossible(other, e) for e in range(len(self.weights))):
            return True
        with np.errstate(all="ignore"):
            for e, (w, b) in enumerate(zip(self.weights, self.bias, strict=True)):
                for was, now, dtype in ((w, other.weights(e), weight_type), (b, other.bias(e), np.dtype(np.float32))):
                    if not np.array_equal(was.astype(dtype), now.astype(dtype), equal_nan=True):
                        return True
        return False

    def impossible(self, reference: Reference, e: int) -> bool:
        """A zero point that its type does not have (a bit above it was set): what that stands for is not defined, so it has to be caught."""
        layer = self.case.layer
        zero = reference.integer_zeros(e)[: layer.n, : -(-layer.k // (layer.group_k or layer.shape_k))]
        return bool((zero >= 1 << layer.bits).any())

    def flip(self, role: str, bit: int) -> dict[str, Any]:
        planted = self.packed[role].copy()
        planted.reshape(-1).view(np.uint8)[bit // 8] ^= np.uint8(1 << bit % 8)
        return self.packed | {role: planted}

    def caught(self, packed: dict[str, Any]) -> bool:
        found = LayerCheck()
        checker = replace(self.checker, packed=packed)
        checker.every_weight(found, range(checker.experts))
        checker.every_bias(found)
        return not found.ok


def half_output_agrees(subject: Subject, device: Device) -> bool:
    """Results of 16 bits are the float32 results, rounded once."""
    layer, checker = subject.case.layer, subject.checker
    rng = np.random.default_rng(5)
    x = device.put(random_rows(33, layer.k, layer.half, rng))
    experts = rng.integers(0, layer.experts, 33) if layer.experts else None
    given = checker.given if checker.compute.wants_given_scale else None
    about: dict[str, Any] = {"packed": subject.packed, "given": given, "family": checker.family}
    wide = device.get(Multiplier.of(device, layer, checker.compute, **about)(x, experts))
    narrow = device.get(Multiplier.of(device, layer, replace(checker.compute, output=layer.half), **about)(x, experts))
    with np.errstate(all="ignore"):
        return np.array_equal(as_float(half_bits(wide, layer.half), layer.half), as_float(narrow, layer.half), equal_nan=True)


GROUPED_ROWS = (5, 40)  # most rows of an expert


def grouped_sources(subject: Subject) -> list[KernelSource]:
    layer, checker = subject.case.layer, subject.checker
    if not layer.experts:
        return []
    return [source_of(checker.family, layer, checker.compute, most, task) for most in GROUPED_ROWS for task in tasks.GROUPED]


def groups_agree(subject: Subject, device: Device) -> bool:
    """Contiguous rows and room for rows give what the same rows give with an expert for each; so does a row that goes to several."""
    layer, checker = subject.case.layer, subject.checker
    rng = np.random.default_rng(6)
    given = checker.given if checker.compute.wants_given_scale else None
    multiplier = Multiplier.of(device, layer, checker.compute, subject.packed, given, checker.family)
    for most in GROUPED_ROWS:
        counts = rng.integers(0, most + 1, layer.experts)
        x = device.put(random_rows(most * layer.experts, layer.k, layer.half, rng))
        for task, of_row in (
            (
                tasks.Contiguous(counts),
                np.pad(tasks.contiguous(counts), (0, most * layer.experts - counts.sum()), constant_values=tasks.NOBODY),
            ),
            (tasks.Masked(counts), tasks.masked(counts, most)),
        ):
            have, want = device.get(multiplier(x, task)), device.get(multiplier(x, of_row))
            if np.isnan(have[of_row >= 0]).all(axis=1).any():
                return False
            if not np.array_equal(bits(have), bits(want)):
                return False
        # each row of x for two experts: what two copies of it give
        some = random_rows(most * layer.experts // 2, layer.k, layer.half, rng)
        ids = rng.integers(tasks.NOBODY, layer.experts, 2 * some.shape[0]).astype(np.int32)
        both = (multiplier(device.put(some), tasks.Indexed(ids, 2)), multiplier(device.put(np.repeat(some, 2, axis=0)), ids))
        if not np.array_equal(*(bits(device.get(y)) for y in both)):
            return False
    return True


HEADS = ("layers", "right", "grouped", "weights", "max_error", "tried", "caught", "no value changed")


def print_table(table: dict[str, dict[str, Any]]) -> None:
    """A row for each layout family and one for all: counts, and the largest error of a product."""
    print(f"{'family':28}" + "".join(f"{h:>18}" for h in HEADS))
    for family, row in sorted(table.items()):
        print(f"{family:28}" + "".join(f"{row[h]:18.2e}" if h == "max_error" else f"{int(row[h]):18d}" for h in HEADS))
    total = {h: sum(row[h] for row in table.values()) for h in HEADS}
    print(f"{'all':28}" + "".join(f"{'':18}" if h == "max_error" else f"{int(total[h]):18d}" for h in HEADS))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", default="mma_any", choices=[f.NAME for f in FAMILIES])
    parser.add_argument("--out")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--flips", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--match", default="")
    parser.add_argument("--rounds", action="store_true", help="kernels that serve: they may round weights, or sums of E4M3")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th layer from the I-th on (run_parts.py runs all N side by side)")
    parser.add_argument("--seconds", type=float, default=480, help="planted errors stop here; how many were left out is printed")
    asked = parser.parse_args()
    start = time.monotonic()
    device = open_device()
    arch = architecture(device.sm)
    family = named(asked.family)
    part, parts = (int(x) for x in asked.part.split("/"))
    specs = [s for s in selected() if asked.match in s.name][part::parts]
    left = Counter(reason for s in specs if (reason := reason_against(s, device, family, asked.rounds)) is not None)
    specs = [s for s in specs if reason_against(s, device, family, asked.rounds) is None]
    if asked.limit:
        specs = specs[:: max(1, len(specs) // asked.limit)][: asked.limit]
    tested = [Subject(spec, device, family, asked.rounds) for spec in specs]
    made = time.monotonic()
    wanted = {(s.generated, s.name): (s, arch) for t in tested for s in [*t.checker.sources(), *grouped_sources(t)]}
    build_all(device.cache, list(wanted.values()), asked.jobs)
    built = time.monotonic()
    print(
        f"{device.name} {arch}, NVRTC {compiler().version}: {len(tested)} layers made in {made - start:.0f} s, {len(wanted)} kernels in {built - made:.0f} s"
    )
    for reason, count in left.items():
        print(f"{count} layers are not for {family.NAME}: {reason}")

    # --- Layers
    table: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(int))
    wrong: list[dict[str, Any]] = []
    by_rows: dict[int, float] = defaultdict(float)
    good: list[Subject] = []
    for number, t in enumerate(tested):
        found = t.checker.check(ROWS)
        row = table[t.case.layer.family]
        row["layers"] += 1
        row["weights"] += found.weights
        row["max_error"] = max(row["max_error"], *found.products.values())
        for m, error in found.products.items():
            by_rows[m] = max(by_rows[m], error)
        if number % 10 == 0 and not half_output_agrees(t, device):
            wrong.append({"layer": t.case.name, "what": ["16-bit results are not the rounded float32 results"]})
        if t.case.layer.experts:
            row["grouped"] += 1
            if not groups_agree(t, device):
                wrong.append({"layer": t.case.name, "what": ["grouped rows are not what indexed rows are"]})
        if found.ok:
            row["right"] += 1
            good.append(t)
        else:
            wrong.append({"layer": t.case.name, "family": t.case.layer.family, "what": [str(w) for w in found.wrong]})
    checked = time.monotonic()
    print(f"checked in {checked - built:.0f} s; largest errors by rows: {dict(by_rows)}")
    for entry in wrong[:20]:
        print("WRONG", entry["layer"], "|", " | ".join(entry["what"][:2]))

    # --- Planted errors
    missed: list[str] = []
    rng = np.random.default_rng(9)
    left_out = 0
    for t in good:
        for role, x in t.packed.items():
            row = table[t.case.layer.family]
            for bit in rng.integers(0, bits(x).nbytes * 8, asked.flips):
                if time.monotonic() - start > asked.seconds:
                    left_out += 1
                    continue
                planted = t.flip(role, int(bit))
                changes, caught = t.changes(planted), t.caught(planted)
                row["tried"] += 1
                row["caught"] += caught
                row["no value changed"] += not changes
                if changes != caught:
                    missed.append(f"{t.case.name} {role} bit {bit}: {'not caught' if changes else 'caught, and no value changed'}")
    print(f"planted in {time.monotonic() - checked:.0f} s; {left_out} left out for time; {len(missed)} missed")
    for line in missed[:20]:
        print("MISSED", line)
    print_table(table)
    if asked.out:
        document = {"device": device.name, "arch": arch, "nvrtc": compiler().version, "families": table, "wrong": wrong, "missed": missed}
        document |= {"left_out": left_out, "rows": by_rows, "not_for": left, "kernels": len(wanted)}
        Path(asked.out).write_text(json.dumps(document, indent=1, default=float))
    return int(bool(wrong or missed))


if __name__ == "__main__":
    sys.exit(main())
