"""The command that makes an output again, by the options that shaped its bytes.

In: a Plan.  Out: one line; options that have their defaults are left out, and how the run was carried out shaped nothing.
Facts: architecture.md 9.1.
"""

from __future__ import annotations

import shlex
from typing import Any

from humming_convert.formats.source import ReadOptions
from humming_convert.plan.types import Plan, Request
from humming_convert.targets.activations import SIXTEEN

PADS = {"vllm": (256, 128), "humming-layer": (1, 1)}  # entry -> default pads, runtimes.md 2.3
DTYPES = {"BF16": "bf16", "F16": "fp16"}
ELSEWHERE = frozenset(
    ("target", "act", "dtype", "pad_n", "pad_k", "read", "cubin_patch")
)  # options whose default or spelling is not the field's


def command_of(plan: Plan) -> str:
    """`humming-convert org/name@commit --target sm90 --act fp8`; a folder by its last part."""
    request, source = plan.request, plan.source
    words = [f"{source.name}@{source.revision}" if source.revision else source.name]
    words += ["--target", request.target.name, "--act", request.act] if request.target is not None else ["--standard"]
    if request.dtype != source.dtype and request.act not in SIXTEEN:
        words += ["--dtype", DTYPES[request.dtype]]
    for option, value, default in zip(("--pad-n", "--pad-k"), (request.pad_n, request.pad_k), PADS[request.entry], strict=True):
        words += [option, str(value)] if value != default else []
    words += [] if request.cubin_patch else ["--no-cubin-patch"]
    for struct in (request, request.read):
        for name, default in _defaults(type(struct)).items():
            if name not in ELSEWHERE and getattr(struct, name) != default:
                words += _option(name, getattr(struct, name))
    return f"humming-convert {shlex.join(words)}"


def _defaults(kind: type[Request] | type[ReadOptions]) -> dict[str, Any]:
    """Fields that have a default."""
    named = kind.__struct_defaults__
    return dict(zip(kind.__struct_fields__[-len(named) :], named, strict=True))


def _option(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [option] if value is True else [option, str(value)]
