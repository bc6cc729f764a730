"""The real library, driven case by case. It needs an NVIDIA GPU; the SM version and the PPU mark that it reads are replaced, and its
own kernels are always compiled for the GPU that is there (golden/README.md).

In: a case and numpy tensors.  Out: configuration and tensors as bytes, or LibraryRefused.
Facts: humming-kernels 0.1.19 and 0.1.20 (`transform`, `schema`, `layer`, `device`, `config`, `jit.runtime`).
"""

from __future__ import annotations

import os
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
REFUSALS = (AssertionError, ValueError, NotImplementedError, KeyError, IndexError, TypeError, ZeroDivisionError, RuntimeError)
BROKEN = ("CUDA", "NVRTC", "nvrtc", "cuModule", "cuLaunch", "out of memory", "cubin")


class LibraryRefused(Exception):
    """The library raised an error for this case."""


def _where(error: BaseException) -> str:
    """File and line of the library that raised it: most of its refusals are assertions without a text."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "humming" in Path(f.filename).parts]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} `{frames[-1].line}`" if frames else ""


class LibraryBroken(Exception):
    """The GPU, the compiler or the installation failed: what follows would mean nothing."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor: safetensors dtype, shape, bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(slots=True)
class Reported:
    """What the library shall read of its device and compiler."""

    sm: int
    ppu: bool
    compiler: tuple[int, int]


class Library:
    """humming-kernels as it is importable here. Raises LibraryBroken where it, or a GPU, is missing."""

    def __init__(self) -> None:
        try:
            from importlib.metadata import PackageNotFoundError, version

            import torch

            if not torch.cuda.is_available():
                raise LibraryBroken("no CUDA device")
            torch.cuda.init()
            import humming
            from humming.config import config as library_config
            from humming.device import DeviceInfo
            from humming.jit.compiler import NVRTCCompiler
            from humming.jit.runtime import KernelRuntime
            from humming.layer import HummingLayer
            from humming.schema import HummingInputSchema, HummingWeightSchema
            from humming.transform import prepare_and_transform_humming_tensors
        except ImportError as error:
            raise LibraryBroken(f"{error}; humming-kernels and what it needs must be importable") from error
        try:
            self.version = str(getattr(humming, "__version__", "") or version("humming-kernels"))
        except PackageNotFoundError:
            self.version = "unknown"
        self.torch, self.layer_class, self.transform = torch, HummingLayer, prepare_and_transform_humming_tensors
        self.weight_schema, self.input_schema = HummingWeightSchema, HummingInputSchema
        major, minor = torch.cuda.get_device_capability()
        self.reported = reported = Reported(10 * major + minor, False, (13, 0))
        real = 10 * major + minor

        def init_sm_version(kernel: Any) -> None:
            kernel.sm_version, kernel.sm_version_str = real, f"{real}a" if real >= 90 else f"{real}"

        DeviceInfo.sm_version = property(lambda _: reported.sm)
        DeviceInfo.sm_major = property(lambda _: reported.sm // 10)
        DeviceInfo.sm_minor = property(lambda _: reported.sm % 10)
        DeviceInfo.is_ppu = property(lambda _: reported.ppu)
        KernelRuntime.init_sm_version = init_sm_version
        KernelRuntime._get_compiler = staticmethod(lambda: NVRTCCompiler)
        library_config._cuda_compiler_version = lambda _: reported.compiler
        t = torch
        self.names = {
            t.int32: "I32",
            t.uint8: "U8",
            t.float16: "F16",
            t.bfloat16: "BF16",
            t.float32: "F32",
            t.float8_e4m3fn: "F8_E4M3",
            t.float8_e5m2: "F8_E5M2",
            t.float8_e8m0fnu: "F8_E8M0",
        }
        self.of_numpy = {
            "bfloat16": t.bfloat16,
            "float8_e4m3fn": t.float8_e4m3fn,
            "float8_e5m2": t.float8_e5m2,
            "float8_e8m0fnu": t.float8_e8m0fnu,
        }

    # ------------------------------------------------------------------ one case
    def make(self, case: dict[str, Any], inputs: dict[str, Array]) -> tuple[dict[str, Any], dict[str, Stored]]:
        """(fields and flags of the configuration, tensors by role)."""
        r = self.reported
        r.sm, r.ppu = case["sm"], case["ppu"]
        major, minor = case["compiler"].split(".")
        r.compiler = (int(major), int(minor))
        os.environ["HUMMING_DISABLE_PATCH_CUBIN"] = "0" if case["cubin_patch"] else "1"
        tensors = {role: self._tensor(x) for role, x in inputs.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                config, out = (self._layer if case["entry"] == "humming-layer" else self._serve)(case, tensors)
            self.torch.cuda.synchronize()
        except REFUSALS as error:
            said = f"{type(error).__name__}{_where(error)}: {error}"
            if isinstance(error, RuntimeError) and any(word in said for word in BROKEN):
                raise LibraryBroken(said) from error
            raise LibraryRefused(said.splitlines()[0][:200]) from error
        return _Fields(config), {role: self._stored(x) for role, x in out.items()}

    def _tensor(self, x: Array) -> Any:
        raw = self.torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(np.uint8).copy())
        if x.dtype.name in self.of_numpy:
            return raw.view(self.of_numpy[x.dtype.name]).reshape(x.shape).cuda()
        return self.torch.from_numpy(np.ascontiguousarray(x).copy()).cuda()

    def _stored(self, x: Any) -> Stored:
        x = x.detach().cpu()
        flat = self.torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1))  # one number can have any stride and counts as contiguous
        return Stored(self.names.get(x.dtype, str(x.dtype)), tuple(x.shape), flat.view(self.torch.uint8).numpy().tobytes())

    def _serve(self, case: dict[str, Any], tensors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Entries `vllm` and `direct`: convert, two refusals, prepare and transform."""
        param = getattr(self.torch, case["param_dtype"])
        given = self.input_schema(**case["input_schema"])
        schema, made = self.weight_schema(**case["weight_schema"]).convert_humming(
            tensors=dict(tensors),
            shape_n_stacks=list(case["shape_n_stacks"]),
            shape_k_stacks=[case["shape_k"]],
            param_dtype=param,
            num_experts=case["num_experts"],
            convert_symmetric_integer=case["convert_e0m"],
        )
        if case["entry"] == "vllm":
            if schema.has_zero_point and schema.b_dtype.num_bits == given.get_activation_bits():
                raise ValueError("zero points with equal bits")
            if not given.is_compatible_with(schema, param):
                raise ValueError("not compatible")
        config, out = self.transform(
            made,
            shape_n=case["shape_n"],
            shape_k=case["shape_k"],
            weight_schema=schema,
            input_schema=given,
            num_experts=case["num_experts"],
            pad_n_to_multiple=case["pad_n_to_multiple"],
            pad_k_to_multiple=case["pad_k_to_multiple"],
            has_bias=case["has_bias"],
            torch_dtype=param,
        )
        return config, out

    def _layer(self, case: dict[str, Any], tensors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Entry `humming-layer`: the layer class. It takes one tensor scale an expert."""
        layer = self.layer_class(
            shape_n=case["shape_n"],
            shape_k=case["shape_k"],
            weight_config=self.weight_schema(**case["weight_schema"]),
            input_config=self.input_schema(**case["input_schema"]),
            pad_n_to_multiple=case["pad_n_to_multiple"],
            pad_k_to_multiple=case["pad_k_to_multiple"],
            num_experts=case["num_experts"],
            has_bias=case["has_bias"],
            torch_dtype=getattr(self.torch, case["param_dtype"]),
        ).cuda()
        layer.load_from_tensors(tensors)
        layer.transform()
        roles = ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias")
        return layer.humming_config, {r: x for r in roles if (x := getattr(layer, r, None)) is not None}


class _Fields(dict[str, Any]):
    """Attributes of a configuration, in plain values, as they are asked for."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config = config

    def __missing__(self, name: str) -> Any:
        value = getattr(self._config, name)
        value = getattr(value, "value", value)
        plain = value is None or isinstance(value, (bool, int, str))
        return value if plain else str(value)
