"""humming-kernels multiplies the folder's own bytes, with the tuning of its own heuristics for the number of rows.

In: a Case.  Out: calls; ready codes and scales, as the core has them.
Facts: humming-kernels 0.1.20 (`forward.humming_forward` takes codes and scales as they are; `tune.get_heuristics_config`).
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from humming_convert.bench.contenders import Case, Prepared
from humming_convert.bench.document import LIBRARY
from humming_convert.bench.torch_side import HALVES
from humming_convert.gemm.multiplier import ROLES
from humming_convert.serve.library_layers import LibraryLayers

MODES = ("none", "dynamic_token", "dynamic_group")  # whose scales the library takes as the core makes them
CODES = {"float8e4m3": "float8_e4m3fn", "int8": "int8"}


class Library:
    name = LIBRARY

    def __init__(self, torch: Any, layers: LibraryLayers) -> None:
        self.torch, self.layers = torch, layers
        self.how = f"humming-kernels {layers.machine.humming}, the same bytes, its own heuristics"

    def why_not(self, case: Case) -> str | None:
        c = case.stored.config
        reasons = (
            (c["input_quant_mode"] not in MODES, f"scales of {c['input_quant_mode']} activations are not passed to it ready"),
            (case.layer.multiplier.compute.quantizes and c["a_dtype"] not in CODES, f"{c['a_dtype']} codes are not passed to it ready"),
            (
                c["input_quant_mode"] != "none" and c["as_dtype"] not in (None, "float32"),
                f"{c['as_dtype']} scales are not passed to it ready",
            ),
        )
        return next((reason for against, reason in reasons if against), None)

    def prepare(self, case: Case) -> Prepared:
        from humming.forward import humming_forward
        from humming.tune import get_heuristics_config

        torch = self.torch
        layer = self.layers[case.stored.name]
        x, scale = self._operands(case)
        y = torch.empty((case.x.m, layer.n), dtype=getattr(torch, HALVES[case.half]), device="cuda")
        compute: dict[str, Any] = {"gemm_type": "dense", "use_batch_invariant": False, "use_f16_accum": False}
        more: dict[str, Any] = {}
        if case.x.counts is not None:
            compute["gemm_type"] = "grouped_contiguous"
            offsets = torch.zeros(case.layer.experts + 1, dtype=torch.int32, device="cuda")
            offsets[1:] = torch.as_tensor(case.x.counts.cumsum(), dtype=torch.int32)
            more["expert_layout"] = offsets
        tuning = get_heuristics_config(layer.config, shape_m=case.x.m, gemm_type=compute["gemm_type"])
        tensors = {role: t for role, t in layer.tensors.items() if role in ROLES}
        sets = [tensors] + [{role: t.clone() for role, t in tensors.items()} for _ in range(case.copies(case.nbytes) - 1)]

        def call(mine: dict[str, Any]) -> None:
            humming_forward(
                layer.config,
                inputs=x,
                input_scale=scale,
                outputs=y,
                locks=layer.locks,
                compute_config=json.dumps(compute),
                tuning_config=tuning,
                **mine,
                **more,
            )

        allowed = self.layers.tolerance(case.stored.name, case.x.m)
        bits = case.layer.multiplier.device.from_dlpack(y.view(torch.int16)).view("uint16")
        return Prepared([partial(call, mine) for mine in sets], bits, (allowed.size, allowed.result))

    def _operands(self, case: Case) -> tuple[Any, Any]:
        """Codes in torch's type for them, and scales."""
        torch, operand, half = self.torch, case.layer.multiplier.compute.operand, getattr(self.torch, HALVES[case.half])
        wide = operand in HALVES  # 16-bit numbers, which stand for codes where the activation has fewer bits
        q = torch.from_dlpack(case.x.q.view("int16" if wide else "uint8"))
        if not case.layer.multiplier.compute.quantizes:
            return q.view(half), None
        codes = getattr(torch, CODES[case.stored.config["a_dtype"]])
        return (q.view(half).to(codes) if wide else q.view(codes)), torch.from_dlpack(case.x.scale)
