"""Layers of real sizes through the same checks, by every family that takes them, with times: packing, reference, cold compiling, checking.

python tests/gpu/run_large.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "layouts"), str(HERE.parent.parent)]

from layer_maker import form, layer  # noqa: E402

from humming_convert.gemm.cache import KernelCache, build_all  # noqa: E402
from humming_convert.gemm.check import ROWS, Checker  # noqa: E402
from humming_convert.gemm.compute import Compute  # noqa: E402
from humming_convert.gemm.device import open_device  # noqa: E402
from humming_convert.gemm.families import FAMILIES  # noqa: E402
from humming_convert.gemm.layer import Layer  # noqa: E402
from humming_convert.gemm.nvrtc import architecture  # noqa: E402
from humming_convert.gemm.reference import Reference  # noqa: E402
from humming_convert.layouts import prepare  # noqa: E402
from humming_convert.targets.activations import activation  # noqa: E402
from humming_convert.targets.environment import Environment  # noqa: E402
from humming_convert.targets.table import find_target  # noqa: E402

ENV = Environment((13, 0), True, "0.1.20")
LAYERS: tuple[tuple[str, Any, tuple[int, int], dict[str, Any], str], ...] = (
    ("W4A16 g128", form("uint4"), (4096, 4096), {}, "bf16"),
    ("W4A8 fp8 g128", form("uint4"), (4096, 14336), {}, "fp8"),
    ("W4A16 zero points", form("uint4", zero_point="int"), (14336, 4096), {}, "bf16"),
    ("MXFP4 8 experts, fp8", form("float4e2m1", k=32, dtype="float8e8m0"), (5760, 2944), {"experts": 8, "bias": True}, "fp8"),
    ("W3A16 g64, float16", form("uint3", "group", 64, "float16"), (3072, 4096), {}, "fp16"),
    ("W8A16 g128", form("uint8"), (2048, 4096), {}, "bf16"),
    ("MXFP4", form("float4e2m1", k=32, dtype="float8e8m0"), (3200, 2048), {"bias": True}, "bf16"),
    ("NVFP4", form("float4e2m1", k=16, dtype="float8e4m3", scale_2="tensor"), (2048, 4096), {}, "bf16"),
    ("INT8 channels", form("int8", "channel", 0), (2048, 4096), {}, "int8"),
    ("FP8 channels", form("float8e4m3", "channel", 0), (1920, 4096), {"bias": True}, "fp8"),
    ("FP8 128 x 128 blocks", form("float8e4m3", "block", 128, "float32", n=128), (7168, 2048), {}, "fp8:128"),
)


def main() -> int:
    device, failed = open_device(KernelCache(Path(tempfile.mkdtemp()))), 0
    for name, f, (n, k), more, act in LAYERS:
        target = find_target("sm90")
        assert target is not None
        times = [time.perf_counter()]

        def lap(times: list[float] = times) -> None:
            times.append(time.perf_counter())

        half = "F16" if act == "fp16" else "BF16"
        packed = prepare(layer(f, n, k, param=half, **more), target, activation(act, half), env=ENV, param_dtype=half)
        lap()
        config = packed.recipe.config.as_dict()
        mine = Layer.of(config, packed.recipe.flags)
        compute = Compute.of(mine, config, sm=device.sm)
        serving = replace(compute, rounds=True)
        reference = Reference(config, target, ENV, packed.tensors)
        checker = Checker(device, mine, compute, dict(packed.tensors), reference.weights, reference.bias)
        reference.weights(0)
        lap()
        print(f"{name}, {n} x {k}: made {times[1] - times[0]:.1f} s, one expert in numpy {times[2] - times[1]:.1f} s")
        for family in FAMILIES:
            exact = family.why_not(mine, compute, device.sm)
            if (reason := exact and family.why_not(mine, serving, device.sm)) is not None:
                print(f"    {family.NAME:12} {reason}")
                continue
            begin = time.perf_counter()
            checker.family, checker.compute = family, serving if exact else compute
            kernels = checker.sources(ROWS)
            build_all(device.cache, [(s, architecture(device.sm)) for s in kernels])
            built = time.perf_counter()
            found = checker.check(ROWS)
            failed += not found.ok
            print(
                f"    {family.NAME:12} {'rounds, ' * bool(exact)}{'ok' if found.ok else found.wrong[0]}, {found.weights / 1e6:.0f} million weights, errors "
                f"{max(found.products.values()):.1e}; {len(kernels)} kernels {built - begin:.1f} s, checked {time.perf_counter() - built:.1f} s"
            )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
