"""GB/s of source bytes of each compiled pass and its proof, beside a memory copy in the same run.

    python benchmarks/passes.py [--mb 64] [--threads 1 2] [--only gptq] [--repeats 7] [--window WORDS] [--cpu]

One line a pass: source packing and bits, layout, maps; seconds to compile both kernels when nothing is cached (0: cached); then, for
each number of threads, copy, pass and proof, the best of the repeats. A thread copies, packs and proves window by window into one
buffer that stays in cache.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from humming_convert import passes  # noqa: E402
from humming_convert.layouts.config import ScalePlace  # noqa: E402
from humming_convert.layouts.recipe import CodeMap, Place, WeightRecipe  # noqa: E402
from humming_convert.layouts.scales import place_scale  # noqa: E402
from tests.passes.cases import aux_for, recipe  # noqa: E402

WINDOW_WORDS = 1 << 17  # 512 KB
N = 4096

PASSES: tuple[tuple[str, int, int, Place, tuple[CodeMap, ...], dict[str, Any]], ...] = (
    ("gptq", 4, 16, "standard", (), {}),
    ("gptq", 4, 16, "standard", ("e0m",), {}),
    ("gptq", 4, 8, "standard", ("int_to_float",), {}),
    ("gptq", 4, 8, "packed_k", ("e0m",), {"swapped": True}),
    ("gptq", 4, 8, "packed_k", ("int_to_float_zp",), {"swapped": True, "group": 128}),
    ("gptq", 2, 16, "standard", (), {}),
    ("gptq", 3, 16, "standard", (), {}),
    ("gptq", 3, 16, "standard", ("e0m",), {}),
    ("gptq", 8, 16, "standard", (), {}),
    ("gptq", 8, 8, "flat", ("sign_flip",), {}),
    ("gptq", 5, 16, "standard", (), {}),
    ("gptq", 6, 16, "standard", (), {}),
    ("gptq", 7, 16, "standard", (), {}),
    ("awq", 4, 16, "standard", (), {}),
    ("awq", 4, 8, "standard", ("int_to_float_zp",), {"group": 128}),
    ("awq", 4, 8, "packed_k", ("int_to_float_zp",), {"swapped": True, "group": 128}),
    ("rows", 4, 16, "standard", (), {}),
    ("rows", 4, 16, "standard", ("e0m",), {}),
    ("rows", 4, 8, "packed_k", ("e0m",), {"swapped": True}),
    ("rows", 4, 8, "standard", ("fused_e8m0",), {"interleave": "mode2", "group": 32}),
    ("rows", 4, 8, "standard", ("fused_e8m0",), {"interleave": "mode2", "group": 32, "top": 1}),
    ("rows", 4, 8, "packed_k", ("fused_e8m0",), {"interleave": "mode2", "group": 32}),
    ("rows", 4, 8, "packed_k", ("fused_e8m0",), {"interleave": "mode2", "group": 32, "top": 1}),
    ("rows", 4, 4, "raw", (), {}),
    ("rows", 4, 4, "flat", (), {}),
    ("rows", 8, 8, "flat", (), {}),
    ("rows", 8, 16, "standard", (), {}),
    ("signed_rows", 8, 8, "flat", ("sign_flip",), {}),
    ("rows", 2, 16, "standard", (), {}),
    ("rows", 3, 16, "standard", (), {}),
    ("rows", 6, 16, "standard", (), {}),
)


Work = Callable[[int, int], None]  # (window, thread)


def rates(works: tuple[Work, ...], count: int, nbytes: int, threads: int, repeats: int, clock: Callable[[], float]) -> list[float]:
    """GB/s of each work. A thread does all works on one window, then on its next; their times are added up apart."""
    best = [float("inf")] * len(works)
    for _ in range(repeats):
        spent = np.zeros((threads, len(works)))

        def some(t: int, spent: NDArray[np.float64] = spent) -> None:
            for i in range(t, count, threads):
                for j, work in enumerate(works):
                    start = clock()
                    work(i, t)
                    spent[t, j] += clock() - start

        pool = [threading.Thread(target=some, args=(t,)) for t in range(threads)]
        for x in pool:
            x.start()
        for x in pool:
            x.join()
        best = [min(a, b) for a, b in zip(best, spent.sum(0) / threads)]
    return [nbytes / x / 1e9 for x in best]


def aligned(words: int) -> NDArray[np.uint32]:
    room = np.zeros(words + 16, np.uint32)
    skip = -room.__array_interface__["data"][0] % 64 // 4
    return room[skip : skip + words]


def source(packing: str, bits: int, k: int, raw: np.ndarray) -> np.ndarray:
    if packing == "gptq":
        return raw.view(np.uint32).reshape(k * bits // 32, N)
    if packing == "awq":
        return raw.view(np.uint32).reshape(k, N // 8)
    return raw.reshape(N, -1)


def measure(
    packing: str,
    bits: int,
    act: int,
    place: Place,
    maps: tuple[CodeMap, ...],
    more: dict[str, Any],
    mb: int,
    threads: list[int],
    repeats: int,
    clock: Callable[[], float],
    window: int,
) -> str:
    k = (mb << 20) * 8 // bits // N // 512 * 512
    more = dict(more)
    top = more.pop("top", 12)  # E8M0 offsets are below it; 1: the usual case of none
    r: WeightRecipe = recipe(bits, act, N, k, place, maps, **more)
    nbytes = N * k * bits // 8
    raw = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    if "e0m" in maps:
        raw |= 0x11 if bits == 4 else 0x25  # hardly any code 0; a pass does not care
    stored = source(packing, bits, k, raw)
    values = aux_for(maps, bits, N, k, r.group, 0, top=top)
    aux = None if values is None else passes.Aux(values)
    windows = list(passes.windows(r, window))
    parts = [passes.slice_block(packing, bits, stored, N, (w.n0, w.n1), (w.k0, w.k1)) for w in windows]

    def arguments(i: int) -> dict[str, Any]:
        w = windows[i]
        return {
            "packing": packing,
            "stored": parts[i],
            "n": w.n1 - w.n0,
            "k": w.k1 - w.k0,
            "row": w.n0,
            "aux": aux,
            "column": w.k0,
            "first": w.first,
        }

    longest = max(w.words for w in windows)
    buffers = [aligned(longest) for _ in range(max(threads))]  # as the engine's: one a thread, used again and again

    def pack(i: int, t: int) -> None:
        passes.pack_block(r, out=buffers[t][: windows[i].words], **arguments(i))

    def prove(i: int, t: int) -> None:
        assert passes.prove_block(r, written=buffers[t][: windows[i].words], **arguments(i)) is None

    def copy(i: int, t: int) -> None:
        np.copyto(buffers[t][: windows[i].words].view(np.uint8), flat[windows[i].first * 4 : (windows[i].first + windows[i].words) * 4])

    flat = raw.reshape(-1)
    start = time.perf_counter()
    pack(0, 0)
    prove(0, 0)
    cold = time.perf_counter() - start
    cells = ""
    for t in threads:
        again = rates((copy,), len(windows), nbytes, t, repeats, clock)
        cells += " |" + "".join(f"{x:6.1f}" for x in again + rates((pack, prove), len(windows), nbytes, t, repeats, clock))
    name = f"{packing}{bits} -> A{act} {place} {'+'.join(maps)}{' offsets < ' + str(top) if 'fused_e8m0' in maps else ''}"
    return f"{name:52s}{cold:6.2f}{cells}"


SCALES: tuple[tuple[ScalePlace, Any], ...] = (
    ("normal", np.uint8),
    ("normal", np.float16),
    ("on_c", np.float16),
    ("mx1", np.uint8),
    ("mx4", np.uint8),
    ("umma", np.uint8),
)


def measure_scales(place: ScalePlace, dtype: Any, repeats: int, clock: Callable[[], float]) -> str:
    """One thread, [14336, 256] scales into a new array, beside the numpy reference."""
    n, g = 14336, 256
    scale = np.random.default_rng(0).integers(0, 256, (n, g * np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)
    passes.place_scale(scale, place, False)

    def best(work: Callable[[], Any]) -> float:
        spent = []
        for _ in range(repeats):
            start = clock()
            work()
            spent.append(clock() - start)
        return scale.nbytes / min(spent) / 1e9

    fast, slow = best(lambda: passes.place_scale(scale, place, False)), best(lambda: place_scale(scale, place, False))
    return f"{f'scales {place} {np.dtype(dtype).name}':52s} copy {best(scale.copy):6.1f}  pass {fast:6.1f}  numpy {slow:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--only", default="")
    parser.add_argument("--window", type=int, default=WINDOW_WORDS, help="32-bit words of a window")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="count this thread's time on the processor, for a machine that is busy")
    a = parser.parse_args()
    print(f"GB/s of source bytes, {a.mb} MB{'':27s}cold s" + "".join(f" |{t} thr: copy pass proof" for t in a.threads))
    clock = time.thread_time if a.cpu else time.perf_counter
    for one in PASSES:
        if a.only in f"{one[0]}{one[1]} A{one[2]} {one[3]} {one[4]}":
            print(measure(*one, a.mb, a.threads, a.repeats, clock, a.window), flush=True)
    for place, dtype in SCALES:
        if a.only in f"scales {place}":
            print(measure_scales(place, dtype, a.repeats, clock), flush=True)


if __name__ == "__main__":
    main()
