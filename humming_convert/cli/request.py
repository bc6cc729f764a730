"""One signature for the options that `convert` and `plan` share.

`with_request(function)` gives typer the merged signature; the function gets them as one dict of plain values.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from humming_convert.cli import options as o
from humming_convert.cli.guard import plain


def _request(
    target: o.Target = None,
    act: o.Act = "auto",
    standard: o.Standard = False,
    act_fallback: o.ActFallback = False,
    allow_lossy: o.AllowLossy = False,
    strict: o.Strict = False,
    fuse: o.FuseOption = None,
    on_mixed: o.OnMixedOption = o.OnMixed.refuse,
    pad_n: o.PadN = None,
    pad_k: o.PadK = None,
    e0m: o.E0mOption = o.E0m.auto,
    entry: o.EntryOption = o.Entry.vllm,
    humming_version: o.VersionOption = o.HummingVersion.v0_1_20,
    cuda_compiler_version: o.Compiler = "13.0",
    no_cubin_patch: o.NoCubinPatch = False,
    dtype: o.DtypeOption = None,
    scale_dtype: o.ScaleDtypeOption = o.ScaleDtype.model,
    lm_head: o.LmHeadOption = o.LmHead.dequantize,
    w13: o.W13Option = o.W13.keep,
    include: o.Include = None,
    exclude: o.Exclude = None,
    tp: o.Tp = 1,
    ep: o.Ep = 1,
    shard_size: o.ShardSize = "5GB",
    gptq_zeros: o.ZerosOption = o.Zeros.auto,
    gptq_wrap: o.WrapOption = o.Wrap.auto,
    on_desc_act: o.OnDescActOption = o.OnDescAct.refuse,
    e8m0_nan: o.E8m0NanOption = o.E8m0Nan.refuse,
    missing_input_scale: o.MissingInputScaleOption = o.MissingInputScale.refuse,
    qkv_layout: o.QkvLayoutOption = o.QkvLayout.auto,
) -> None:
    """The options, in the order of --help."""


def with_request(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(model, *, request: dict, …own options)` with the shared options in its signature."""
    shared = inspect.signature(_request).parameters
    own = {k: p for k, p in inspect.signature(function).parameters.items() if k != "request"}

    def command(**values: Any) -> Any:
        request = {k: plain(values.pop(k)) for k in shared}
        request["cubin_patch"] = not request.pop("no_cubin_patch")
        return function(**values, request=request)

    hints = typing.get_type_hints(function, include_extras=True) | typing.get_type_hints(_request, include_extras=True)
    model = own.pop("model")
    keyword = inspect.Parameter.KEYWORD_ONLY
    merged = [model.replace(kind=keyword), *(p.replace(kind=keyword) for p in (*shared.values(), *own.values()))]
    command.__signature__ = inspect.Signature([p.replace(annotation=hints[p.name]) for p in merged])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: hints[p.name] for p in merged}
    return command
