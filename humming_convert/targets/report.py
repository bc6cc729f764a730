"""All that the rules say of one combination: accepted or not, why, and with which flags. For `targets --check` and the legality grid.

In: forms, target, environment.  Out: a dictionary of plain values.
Facts: golden/README.md (flags.jsonl.gz), layouts.md 4, 10.
"""

from __future__ import annotations

from typing import Any

from humming_convert.findings import Refused
from humming_convert.standard.forms import InputForm, WeightForm
from humming_convert.targets.configure import channel_for_int8, check_schema, configure, model_scales, split_group
from humming_convert.targets.environment import Environment
from humming_convert.targets.legality import compatible
from humming_convert.targets.pair import as_integer, flags, pair_of
from humming_convert.targets.table import Target


def report(
    form: WeightForm,
    input: InputForm,  # noqa: A002
    target: Target,
    env: Environment,
    param_dtype: str,
    *,
    n_padded: int = 256,
) -> dict[str, Any]:
    """status: `ok`, `schema_refused` (no tensors can be described), `config_refused`; `reason` then says why. No data is looked at."""
    out: dict[str, Any] = {"status": "schema_refused", "compatible": None, "rule": 0, "why": "", "reason": None}
    p = pair_of(form, input, target, env, param_dtype)
    try:
        check_schema(p)
        verdict = compatible(form, input, target, env, param_dtype)
        out |= {"status": "config_refused", "compatible": verdict.ok, "rule": verdict.rule, "why": verdict.reason}
        p = configure(split_group(channel_for_int8(as_integer(model_scales(p)))))
    except Refused as refused:
        return out | {"reason": refused.findings[0].code}
    return (
        out
        | dict(flags(p, n_padded))
        | {
            "status": "ok",
            "b_dtype": p.b.name,
            "bs_dtype": p.bs,
            "as_dtype": p.as_,
            "weight_scale_group_size": p.gw,
            "weight_scale_type": p.kind,
            "weight_scale_2_type": p.scale_2,
            "input_quant_mode": p.mode,
        }
    )
