"""What a version of the library makes of what another has packed: does it read a stored configuration the same way, are the bytes the same?

In: stored configurations and recipes.  Out: differences in words, none where there are none.
Facts: layouts.md 4.1 (resolution order), 9 (every difference of versions); runtimes.md 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from humming_convert.findings import Refused
from humming_convert.layouts.config import LayerRecipe
from humming_convert.layouts.small import REFERENCE, SmallPasses, pack_small
from humming_convert.standard.lossy import Meter
from humming_convert.standard.numbers import number
from humming_convert.targets.configure import configure, split_group
from humming_convert.targets.environment import Environment
from humming_convert.targets.pair import Pair, flags, unsigned
from humming_convert.targets.table import Target

Tensors = Mapping[str, NDArray[Any]]


def stored_pair(config: Mapping[str, Any], target: Target, env: Environment) -> Pair:
    """The pair that a stored configuration asks for, before it is resolved again. KeyError or ValueError if it is no configuration."""
    zero = "none" if not config["has_zero_point"] else "fp" if config["is_fp_zero_point"] else "int"
    return Pair(
        target=target,
        env=env,
        a=number(config["a_dtype"]),
        b=unsigned(number(config["b_dtype"])),
        c=number(config["c_dtype"]),
        bs=config["bs_dtype"],
        kind=config["weight_scale_type"],
        gw=config["weight_scale_group_size"],
        gn=config["weight_scale_group_size_n"],
        scale_2=config["weight_scale_2_type"],
        zero_point=zero,  # type: ignore[arg-type]  # one of three words by the line above
        mode=config["input_quant_mode"],
        gi=config["input_scale_group_size"],
        as_=config["as_dtype"],
    )


def reading_differs(config: Mapping[str, Any], said: Mapping[str, Any], target: Target, env: Environment) -> list[str]:
    """How the version of `env` reads a stored configuration and its flags otherwise than they say; [] if it reads them the same way.

    config: every LayerConfig field; said: the derived flags beside it.
    """
    try:
        p = stored_pair(config, target, env)
        again = configure(split_group(p))
    except Refused as refused:
        return [f"refused: {refused.findings[0].message}"]
    derived = flags(again, config["shape_n"])
    fresh: dict[str, Any] = {
        "sm_version": target.sm,
        "b_dtype": again.b.name,
        "a_dtype": again.a.name,
        "c_dtype": again.c.name,
        "bs_dtype": again.bs,
        "as_dtype": again.as_,
        "weight_scale_group_size": again.gw,
        "weight_scale_type": again.kind,
        "weight_scale_2_type": again.scale_2,
        "use_int_weight_scale": again.int_scale,
        "use_fused_e8m0_scale": again.fused,
        "use_packed_k_layout": derived["use_packed_k_layout"],
    }
    out = [f"{k}: stored {config[k]}, read {v}" for k, v in fresh.items() if config[k] != v]
    # a flag that only one version knows shapes no bytes (layouts.md 9, last row)
    out += [f"{k}: stored {said[k]}, read {v}" for k, v in derived.items() if k in said and said[k] != v and k not in fresh]
    return out


def bytes_differ(own: LayerRecipe, other: LayerRecipe, small: Callable[[], Tensors], by: SmallPasses = REFERENCE) -> list[str]:
    """In what the bytes of two recipes for the same layer differ; [] if they are the same. small: its standard tensors but the weight, read
    only where they decide."""
    mine, theirs = own.config.as_dict(), other.config.as_dict()
    out = [f"{name}: {value}, there {theirs[name]}" for name, value in mine.items() if value != theirs[name]]
    if not out and own.weight != other.weight:
        out = ["the layout of the weight"]
    # columns that are repeated (S4 a) are in both as wide as the configuration's groups, which are equal
    if not out and replace(own.small, groups=0) != replace(other.small, groups=0):
        out = ["how the scales are made"]
    rows = own.config.pad_shape_n and own.small.fused
    if not out and rows and own.environment.pads_rows_with_maximum != other.environment.pads_rows_with_maximum:
        tensors = small()
        (first, aux), (second, their_aux) = (pack_small(r, tensors, Meter(), by) for r in (own, other))
        roles = [role for role in first if first[role].tobytes() != second[role].tobytes()]
        assert aux.offsets is not None and their_aux.offsets is not None
        if not np.array_equal(aux.offsets, their_aux.offsets):
            roles.append("weight")
        out = [f"padded rows of fused E8M0 scales, in {', '.join(roles)}"] if roles else []
    return out
