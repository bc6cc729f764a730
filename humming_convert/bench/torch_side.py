"""With torch: its CUDA graphs, cuBLAS in the model dtype (`matmul`; with experts `_grouped_mm`), and `_scaled_mm` of E4M3 by rows.

In: a Case.  Out: calls, on torch's current stream, which is CuPy's too while graphs are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

from humming_convert.bench.contenders import Case, Prepared
from humming_convert.bench.document import CUBLAS, SCALED
from humming_convert.gemm.device import Device
from humming_convert.gemm.timing import Call

HALVES = {"f16": "float16", "bf16": "bfloat16"}
SCALED_SM = 89  # the first with E4M3
SIXTEENS = 16  # `_scaled_mm` takes multiples of it


class TorchGraphs:
    """Graphs of torch: its allocator knows them, and CuPy launches into them."""

    def __init__(self, torch: Any, device: Device) -> None:
        self.torch, self.cupy = torch, device.cupy
        self.stream = torch.cuda.Stream()

    def _on_stream(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(self.torch.cuda.stream(self.stream))
        stack.enter_context(self.cupy.cuda.ExternalStream(self.stream.cuda_stream))
        return stack

    def run(self, calls: Sequence[Call]) -> None:
        self.torch.cuda.synchronize()
        with self._on_stream():
            for call in calls:
                call()
        self.stream.synchronize()

    def captured(self, calls: Sequence[Call]) -> Call:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream), self._on_stream():
            for call in calls:
                call()

        def replay() -> None:
            with self.torch.cuda.stream(self.stream):
                graph.replay()

        return replay

    def elapsed(self, replay: Call, count: int) -> list[float]:
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record(self.stream)
        for mark in marks[1:]:
            replay()
            mark.record(self.stream)
        self.stream.synchronize()
        return [float(a.elapsed_time(b)) for a, b in pairwise(marks)]


def random_weights(torch: Any, case: Case, dtype: Any, scale: float) -> list[Any]:
    """[n, k], or [experts, n, k]; copies that together fill the cache several times."""
    experts = case.layer.experts
    shape = (experts, case.layer.n, case.layer.k) if experts else (case.layer.n, case.layer.k)
    first = (torch.randn(shape, device="cuda", dtype=torch.float16) * scale).to(dtype)
    share = case.x.hit / experts if experts else 1.0
    return [first] + [first.clone() for _ in range(case.copies(int(first.nbytes * share)) - 1)]


class TorchBlas:
    """What a model without quantization would do: random weights of the model dtype."""

    name = CUBLAS

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.how = f"torch {torch.__version__}, the model dtype; with experts _grouped_mm"

    def why_not(self, case: Case) -> str | None:
        if case.layer.experts and (not hasattr(self.torch, "_grouped_mm") or case.half != "bf16"):
            return "torch has _grouped_mm for bfloat16 from 2.8 on"
        return None

    def prepare(self, case: Case) -> Prepared:
        torch = self.torch
        dtype = getattr(torch, HALVES[case.half])
        x = torch.randn((case.x.m, case.layer.k), device="cuda", dtype=torch.float32).to(dtype)
        weights = random_weights(torch, case, dtype, 1 / case.layer.k**0.5)
        if case.x.counts is not None:
            ends = torch.as_tensor(case.x.counts.cumsum(), dtype=torch.int32, device="cuda")
            return Prepared([partial(torch._grouped_mm, x, w.transpose(-1, -2), offs=ends) for w in weights])
        y = torch.empty((case.x.m, case.layer.n), dtype=dtype, device="cuda")
        return Prepared([partial(torch.matmul, x, w.T, out=y) for w in weights])


class ScaledMm:
    """What a model with FP8 weights would do: random E4M3 weights and rows, a scale each row."""

    name = SCALED

    def __init__(self, torch: Any, sm: int) -> None:
        self.torch, self.sm = torch, sm
        self.how = f"torch {torch.__version__}, E4M3 weights and activations with a scale each row, fast accumulation"

    def why_not(self, case: Case) -> str | None:
        reasons = (
            (self.sm < SCALED_SM, f"E4M3 needs sm_{SCALED_SM}"),
            (bool(case.layer.experts), "dense layers only"),
            (case.half != "bf16", "scales by row give bfloat16 only"),
            (bool(case.layer.n % SIXTEENS or case.layer.k % SIXTEENS), f"n and k are not multiples of {SIXTEENS}"),
        )
        return next((reason for against, reason in reasons if against), None)

    def prepare(self, case: Case) -> Prepared:
        torch, m, n = self.torch, case.x.m, case.layer.n
        x = torch.randn((m, case.layer.k), device="cuda", dtype=torch.float32).to(torch.float8_e4m3fn)
        weights = random_weights(torch, case, torch.float8_e4m3fn, 1.0)
        of_x, of_w = torch.ones((m, 1), device="cuda"), torch.ones((1, n), device="cuda")
        y = torch.empty((m, n), dtype=torch.bfloat16, device="cuda")

        def call(w: Any) -> None:
            torch._scaled_mm(x, w.T, scale_a=of_x, scale_b=of_w, out_dtype=torch.bfloat16, use_fast_accum=True, out=y)

        return Prepared([partial(call, w) for w in weights])
